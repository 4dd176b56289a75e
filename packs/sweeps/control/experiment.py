"""Reinforcement-learning experiments in the format of GRAIL's sweeps, and their conversion into launches.

A sweep function returns `(pods, {pod: [experiments]})`, built from `PodSpec` and `ExperimentConfig`. An experiment's
settings reach the trainer as options of the phase rl, which the first line of the run's figures repeats.
"""

import difflib
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, TypeVar, get_args, get_type_hints

from flows.specs import files, work
from flows.specs.launch import LaunchSpec
from flows.specs.work import filled
from infra.errors import UsageError
from infra.flags import flags_of
from infra.names import check_name
from infra.runs.keepers.pod_set import PodEntry
from packs.sweeps.control.trials.ranking import Ranking
from packs.sweeps.control.trials.records import SweepTrial

PodSpec = PodEntry  # GRAIL's name
R = TypeVar("R")
DATASETS = ("gsm8k", "math", "mbpp")
RANK = Ranking(by="reward", mode="max")
GROUP, MAX_NEW, ROW = 16, 2048, 3072  # answers per prompt; tokens per answer; tokens per answer with its prompt
NOT_OF_A_TRIAL = (  # launch flags set by the sweep itself, or common to all runs
    *("run_name", "dry_run", "provider", "store", "host", "nodes", "wait", "on_failure", "self_end"),
    *("with_missing", "remake", "keep_made", "move_tag", "data_tag", "budget", "devices"),
    *("deploy_only", "no_deploy", "no_sync", "no_setup"),
)


def not_of_a_trial() -> tuple[str, ...]:
    """Return the launch flags that no run of a sweep has, with those of packs."""
    added = [one for record in work.phase_flags() if record.of_launch for one in flags_of(record)]
    return *NOT_OF_A_TRIAL, *(one.name for one in added)


def key(default: Any, about: str) -> Any:
    """Return a dataclass field with a description."""
    return field(default=default, metadata={"about": about})


@dataclass(kw_only=True)
class ExperimentConfig:
    """Experiment of reinforcement learning; the defaults are GRAIL's. A sweep function may set the fields."""

    name: str = field(metadata={"about": "name of the experiment; the run is called <configuration>.<name>"})
    dataset: str = key("gsm8k", "task to learn: gsm8k, math, mbpp, or another task of --task")
    model_id: str = key("Qwen/Qwen2.5-1.5B-Instruct", "model to start from: a repository of the hub, or a folder")
    learning_rate: float = key(3e-6, "learning rate of AdamW")
    batch_size: int = key(4, "answers per forward pass")
    grad_accum_steps: int = key(128, "batches per optimizer step")
    total_steps: int = key(100, "optimizer steps")
    eval_every: int = key(40, "steps between measurements")
    seed: int = key(42, "random seed of the training")
    gpu_devices: str = key("1,2,3,4", "GPUs of the pod on which vLLM generates answers, on a pod with several GPUs")
    train_gpu_device: str = key("0", "GPUs of the pod for the training, on a pod with several GPUs")
    vllm_tensor_parallel: int = key(4, "GPUs of gpu_devices over which each process of vLLM spreads the model")
    custom_env: Mapping[str, str] = field(
        default_factory=dict, metadata={"about": "environment variables of the job; for a secret, the name only"}
    )
    custom_args: Mapping[str, Any] = field(
        default_factory=dict,
        metadata={
            "about": "flags of launch, and options such as rl.schedule.warmup_steps; they override everything else"
        },
    )

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in ExperimentConfig.__dataclass_fields__:
            near = difflib.get_close_matches(name, ExperimentConfig.__dataclass_fields__, 1)
            raise AttributeError(f"an experiment has no {name}{f'; did you mean {near[0]}?' if near else ''}")
        super().__setattr__(name, value)

    def check(self) -> None:
        """Raise UsageError for numbers below 1, and for devices in both roles."""
        for name in ("batch_size", "grad_accum_steps", "total_steps", "vllm_tensor_parallel"):
            if getattr(self, name) < 1:
                raise UsageError(f"experiment {self.name}: {name} is {getattr(self, name)}; expected at least 1")
        both = sorted(_devices(self, self.gpu_devices) & _devices(self, self.train_gpu_device))
        if both:
            raise UsageError(
                f"experiment {self.name}: device {', '.join(map(str, both))} is in both gpu_devices and "
                "train_gpu_device; use different GPUs for answers and training"
            )

    @property
    def effective_batch(self) -> int:
        """Return the number of answers per optimizer step."""
        return self.batch_size * self.grad_accum_steps

    def engine(self, gpu_count: int) -> str:
        """Return the generation engine for a pod with `gpu_count` GPUs.

        The default is vLLM for several GPUs, as in GRAIL's sweeps, and "" for a single GPU.
        """
        return str(self.custom_args.get("engine") or ("vllm" if gpu_count > 1 else ""))

    def devices(self, gpu_count: int) -> list[int]:
        """Return the pod's GPU indices used by the experiment, in ascending order; [] means all GPUs.

        Raises UsageError for GPUs missing on the pod.
        """
        if self.engine(gpu_count) != "vllm" or gpu_count < 2:
            return []
        own = sorted(_devices(self, self.gpu_devices) | _devices(self, self.train_gpu_device))
        if beyond := [str(one) for one in own if one >= gpu_count]:
            raise UsageError(
                f"experiment {self.name}: GPU {', '.join(beyond)} does not exist; the pod has GPUs 0 to "
                f"{gpu_count - 1}. Choose the GPUs for answers and training (gpu_devices, train_gpu_device, "
                "vllm_tensor_parallel), or generate answers with the model in training: "
                f"custom_args={{'engine': 'embedded'}}"
            )
        return own

    def launch(self, gpu_count: int) -> LaunchSpec:
        """Return the experiment's launch on a pod with `gpu_count` GPUs.

        Raises UsageError for unknown custom_args, and for GPUs missing on the pod.
        """
        self.check()
        where = f"experiment {self.name}: custom_args"
        own = files.read(where, dict(self.custom_args), LaunchSpec, not_of_a_trial())
        words = [
            f"rl.optimizer.lr={self.learning_rate!r}",
            f"rl.rows={self.effective_batch}",
            f"rl.micro_rows={self.batch_size}",
            f"rl.sequence_len={ROW}",
            f"rl.rl.group={GROUP}",
            f"rl.rl.max_new={MAX_NEW}",
            f"rl.rl.eval_every={self.eval_every}",
            *own.pop("options", ()),
        ]
        is_folder = self.model_id.startswith(("/", ".", "hf://"))
        said = {
            "phase": "rl",
            "profile": "qwen3_0_6b",
            "task": self.dataset,
            "seed": self.seed,
            "init": self.model_id if is_folder else f"hf://{self.model_id}",
            "steps": self.total_steps,
        }
        if self.engine(gpu_count) == "vllm":
            said["engine"] = "vllm"
        if own_gpus := self.devices(gpu_count):  # GPU numbers relative to the run's own GPUs
            answering, training = (_devices(self, some) for some in (self.gpu_devices, self.train_gpu_device))
            if len(answering) % self.vllm_tensor_parallel:
                raise UsageError(
                    f"experiment {self.name}: vllm_tensor_parallel {self.vllm_tensor_parallel} does not divide "
                    f"the {len(answering)} GPUs of gpu_devices ({self.gpu_devices})"
                )
            said |= {
                "engine_devices": _counted(answering, own_gpus),
                "train_devices": _counted(training, own_gpus),
                "engine_tensor_parallel": self.vllm_tensor_parallel,
                "num_gpus": len(own_gpus),
            }
        return filled(LaunchSpec(), {**said, **own, "options": work.read_options(words)})


def _devices(one: ExperimentConfig, words: str) -> set[int]:
    found = [word.strip() for word in words.split(",") if word.strip()]
    if odd := [word for word in found if not word.isdecimal()]:
        raise UsageError(f"experiment {one.name}: {odd[0]!r} is not a GPU number; expected numbers such as 1,2,3,4")
    return set(map(int, found))


def _counted(some: Collection[int], all_of_them: Sequence[int]) -> str:
    return ",".join(str(number) for number, one in enumerate(all_of_them) if one in some)


def schema() -> list[tuple[str, Any, str]]:
    """Return name, default (None if required) and description of every experiment field."""
    found = []
    for one in fields(ExperimentConfig):
        default = {} if one.name.startswith("custom_") else None if one.name == "name" else one.default
        found.append((one.name, default, one.metadata["about"]))
    return found


def read(where: str, said: Any) -> ExperimentConfig:
    """Parse an experiment from the result of a sweep function. Raises UsageError."""
    return _record(where, said, ExperimentConfig)


def _record(where: str, said: Any, kind: type[R]) -> R:
    """Return a record of a sweep function, given as a record or as a mapping. Raises UsageError for a wrong type."""
    hints = get_type_hints(kind)
    if not isinstance(said, kind):
        if not isinstance(said, Mapping):
            called = "PodSpec" if kind is PodEntry else kind.__name__
            raise UsageError(f"{where}: expected {called} or a dictionary, not {type(said).__name__}")
        files.check_keys(where, said, list(hints))
        if "name" not in said:
            raise UsageError(f"{where}: name is missing; give a name, as text")
        said = kind(**said)
    for name, hint in hints.items():
        value, kinds = getattr(said, name), {hint, *get_args(hint)}
        if {int, float} & kinds and not isinstance(value, (int, float, type(None))):
            raise UsageError(f"{where}: {name} is {value!r}; expected a number")
        if name == "name" and not isinstance(value, str):
            raise UsageError(f"{where}: name is {value!r}; expected a text")
    return said


def trial(sweep: str, one: ExperimentConfig, machine: PodEntry, differing: Collection[str]) -> SweepTrial:
    """Return the trial of an experiment, which uses the whole pod or the named GPUs of the pod.

    differing: settings in which the experiments of the sweep differ.
    """
    spec = one.launch(machine.gpu_count)
    run = check_name(f"{sweep}.{one.name}")
    extra = on_pod(machine)
    given = {name: value for name, value in extra.items() if not getattr(spec, name)}
    spec = replace(spec, tag=spec.tag or run, **given)
    said = {name: getattr(one, name) for name, _, _ in schema() if name in differing}
    asked = {name: _in_words(value) for name, value in said.items() if value != {}}
    devices = ",".join(map(str, one.devices(machine.gpu_count)))
    return SweepTrial(
        run=run, arm=one.name, spec=spec, env=dict(one.custom_env), pod=machine.name, asked=asked, devices=devices
    )


def differing(experiments: Iterable[ExperimentConfig]) -> set[str]:
    """Return the settings in which at least one experiment differs from the defaults."""
    every = list(experiments)
    return {name for name, default, _ in schema() for one in every if name != "name" and getattr(one, name) != default}


def _in_words(value: Any) -> str:
    return ", ".join(f"{word}={text}" for word, text in value.items()) if isinstance(value, Mapping) else f"{value}"


def on_pod(machine: PodEntry) -> dict[str, Any]:
    """Return the launch flags to request a pod like `machine`."""
    found = {
        "gpu": machine.gpu_type,
        "num_gpus": machine.gpu_count,
        "country": machine.country,
        "city": machine.city,
        "volume": machine.volume_id,
        "min_upload_mbps": machine.min_upload_mbps,
        "cloud": machine.cloud,
        "min_download_mbps": machine.min_download_mbps,
        "spend_limit": machine.spend_limit,
        "cpus": machine.cpus,
        "memory": machine.memory,
        "disk_size": machine.disk_size,
        "region": machine.region,
        "instance_type": machine.instance_type,
        "use_spot": machine.use_spot,
        "max_price": machine.max_price,
        "ttl": "" if machine.ttl_hours is None else f"{round(machine.ttl_hours * 3600)}s",
    }
    return {name: value for name, value in found.items() if value}


def slug(text: str) -> str:
    """Replace characters outside the alphabet of names by `-`."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip("-.")


def parse_result(name: str, said: Any) -> tuple[Sequence[PodEntry], dict[str, list[ExperimentConfig]]]:
    """Validate a sweep function's result; return the pods and experiments. Raises UsageError."""
    if not (isinstance(said, tuple) and len(said) == 2 and isinstance(said[1], Mapping)):
        raise UsageError(f"{name}() must return (pods, {{pod: [experiments]}}), not {type(said).__name__}")
    pods, dealt_out = said
    if not isinstance(pods, Sequence) or isinstance(pods, str):
        raise UsageError(f"{name}(): the pods must be a list of PodSpec, not {type(pods).__name__}")
    entries = [_record(f"{name}(): a pod", one, PodEntry) for one in pods]
    names = [one.name for one in entries]
    if len(set(names)) < len(names):
        raise UsageError(f"{name}(): two pods have the same name")
    if unknown := [one for one in dealt_out if one not in names]:
        raise UsageError(f"{name}(): experiments are assigned to {', '.join(unknown)}; the pods are {', '.join(names)}")
    for pod, some in dealt_out.items():
        if not isinstance(some, Sequence) or isinstance(some, str):
            raise UsageError(f"{name}(): {pod}: the experiments must be a list, not {type(some).__name__}")
    found = {pod: [read(f"{name}(): {pod}", one) for one in some] for pod, some in dealt_out.items()}
    every = [one.name for some in found.values() for one in some]
    if twice := sorted({one for one in every if every.count(one) > 1}):
        raise UsageError(f"{name}(): two experiments have the name {twice[0]}")
    return entries, found
