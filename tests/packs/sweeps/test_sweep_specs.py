"""The description of a sweep: files with arms and ranges, functions with pods and experiments; a trainer's flags."""

import dataclasses
import functools
import json
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from flows.planning.training_plan import PlannedWork
from infra.errors import UsageError
from infra.flags import command_words
from infra.records import Inventory, Request
from infra.settings import Settings
from packs.sweeps.commands import sweep, sweep_text
from packs.sweeps.control import configurations, experiment, rehearsed, sweep_file
from packs.sweeps.control.axes import values
from packs.sweeps.control.experiment import ExperimentConfig, PodSpec
from packs.sweeps.control.plan import pod_lanes, settings_of
from tests.world import ROOT
from trainer import plan
from trainer.recipes import PROFILES
from trainer.records import phase_options
from trainer.records.phase_options import NOT_FOR_A_PHASE

EXAMPLES = ROOT / "examples" / "sweeps"


@pytest.fixture(scope="module", autouse=True)
def sweep_files_read_once():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sweep_file, "load", functools.cache(sweep_file.load))
        yield


def test_axes_are_combined_into_arms_with_every_seed():
    document = {
        "each": {"phase": "sft", "phases": {"sft": {"rows": 16}}, "env": {"STAGE": "2"}},
        "seeds": [1, 2],
        "axes": {"sft.turns": [1, 2], "sft.optimizer.lr": [0.001, "3e-4"]},
    }
    found = sweep_file.read("f", document, "my rates")
    assert list(found.arms) == ["turns-1-lr-0.001", "turns-1-lr-3e-4", "turns-2-lr-0.001", "turns-2-lr-3e-4"]
    assert len(found.trials) == 8
    assert [one.seed for one in found.trials.values()] == [1] * 4 + [2] * 4, "all arms with one seed, then the next"
    last = found.trials["my-rates.turns-2-lr-3e-4-seed-2"]
    assert (last.spec.tag, last.spec.phase, last.env) == (last.run, "sft", {"STAGE": "2"})
    assert dict(last.spec.options) == {"sft.rows": "16", "sft.turns": "2", "sft.optimizer.lr": "3e-4"}
    assert last.asked == {"sft.turns": "2", "sft.optimizer.lr": "3e-4"}


@pytest.mark.parametrize(
    ("said", "found"),
    [
        ({"from": 1, "to": 4}, [1, 2, 3, 4]),
        ({"from": 8, "to": 32, "step": 8}, [8, 16, 24, 32]),
        ({"from": "1e-4", "to": 0.01, "count": 3, "scale": "log"}, [1e-4, 1e-3, 1e-2]),
        ({"from": 0.0, "to": 1, "count": 5}, [0.0, 0.25, 0.5, 0.75, 1.0]),
    ],
)
def test_range_is_a_list_of_values(said, found):
    assert values("f", said) == found


def test_sample_is_random_and_reproducible():
    document = {
        "axes": {"base.optimizer.lr": {"from": 1e-4, "to": 1e-1, "scale": "log"}, "seed": {"from": 1, "to": 9}},
        "sample": 5,
    }
    once, again = (sweep_file.read("f", document, "s") for _ in range(2))
    assert list(once.trials) == list(again.trials) and len(once.trials) == 5
    rates = {float(one.spec.options["base.optimizer.lr"]) for one in once.trials.values()}
    assert len(rates) > 2 and all(1e-4 <= one <= 1e-1 for one in rates)


@pytest.mark.parametrize(
    ("document", "said"),
    [
        ({"axes": {"seed": 1}}, "expected a list of values"),
        ({"axes": {"sed": [1]}}, "did you mean seed"),
        ({"axes": {"seed": [1, 1]}}, "two runs have the name"),
        ({"axes": {"seed": [1]}, "seeds": [1]}, "`seed` and `seeds` are both set"),
        ({"axes": {"base.optimizer.lr": {"from": 0.1, "to": 0.2}}}, "needs a count, or `sample`"),
        ({"axes": {"seed": {"from": 1, "to": 10**7}}}, "more than 1000 values"),
        ({"runs": [{"name": "a"}], "rank": {"mode": "least"}}, "rank: mode is 'least'"),
        ({"runs": [{"name": "a"}], "early_stop": {"first": 2.0}}, "first is 2.0"),
        ({"runs": [{"name": "a"}], "against": "b"}, "against is 'b'; the arms are: a"),
        ({"runs": [{"name": "a", "env": {"SLIPWAY_STOR": 1}}]}, "unknown setting SLIPWAY_STOR"),
    ],
)
def test_invalid_file_is_refused_with_the_place(document, said):
    with pytest.raises(UsageError, match="^f: ") as refused:
        sweep_file.read("f", document, "s")
    assert said in str(refused.value)


def settings(tmp_path, **environ):
    return Settings.load(ROOT, {}, (), {"HOME": str(tmp_path), **environ})


def test_five_named_sweeps_have_the_numbers_of_their_source(tmp_path):
    known = configurations.known(settings(tmp_path))
    said = {name: known[name].make() for name in list(known)[:5]}
    assert {name: (len(one.pods), len(one.trials), one.gpu_hours) for name, one in said.items()} == {
        "lr_sweep": (2, 4, 96),
        "multi_dataset": (3, 3, 192),
        "model_size": (3, 3, 240),
        "batch_grid": (4, 4, 256),
        "custom_advanced": (1, 1, 80),
    }
    for one in said.values():
        assert {(pod.gpu_type, pod.gpu_count, pod.min_upload_mbps) for pod in one.pods} == {("A100", 8, 500)}
        assert {trial.spec.options["rl.rows"] for trial in one.trials.values()} == {"512"}
        assert all(run.startswith(f"{one.name}.") for run in one.trials)
    rates = [float(one.spec.options["rl.optimizer.lr"]) for one in said["lr_sweep"].trials.values()]
    assert rates == [1e-6, 3e-6, 5e-6, 1e-5]
    advanced = said["custom_advanced"].trials["custom_advanced.advanced"]
    assert advanced.spec.options["rl.schedule.warmup_steps"] == "50" and "WANDB_TAGS" in advanced.env


def test_vllm_uses_the_gpus_that_an_experiment_names_on_a_pod_with_several():
    usual = ExperimentConfig(name="a")
    assert [usual.engine(number) for number in (0, 1, 2, 8)] == ["", "", "vllm", "vllm"]
    assert [usual.launch(number).engine for number in (0, 1)] == ["", ""] and usual.devices(1) == []
    spec = usual.launch(8)
    assert (spec.engine, spec.engine_devices, spec.train_devices, spec.num_gpus) == ("vllm", "1,2,3,4", "0", 5)
    assert (spec.engine_tensor_parallel, usual.devices(8)) == (4, [0, 1, 2, 3, 4])
    alone = ExperimentConfig(name="a", custom_args={"engine": "embedded"})
    assert (alone.launch(8).engine, alone.launch(8).engine_devices, alone.devices(8)) == ("embedded", "", [])
    for answering, training, own in (
        ("2,3", "0,1", ("2,3", "0,1", 4)),
        ("0, 2", "1", ("0,2", "1", 3)),
        ("5,7", "6", ("0,2", "1", 3)),  # Of a pod with further GPUs for other processes.
    ):
        one = ExperimentConfig(name="a", gpu_devices=answering, train_gpu_device=training, vllm_tensor_parallel=2)
        found = one.launch(8)
        assert (found.engine_devices, found.train_devices, found.num_gpus) == own
    with pytest.raises(UsageError, match="GPU 4 does not exist; the pod has GPUs 0 to 3. Choose the GPUs"):
        usual.launch(4)
    with pytest.raises(UsageError, match=r"vllm_tensor_parallel 4 does not divide the 2 GPUs of .*\(1,2\)"):
        ExperimentConfig(name="a", gpu_devices="1,2").launch(8)


def test_processes_of_lr_sweep_equal_its_source(tmp_path):
    """One GPU trains, and one process of vLLM distributes the model over four others."""
    own = settings(tmp_path)
    spec = configurations.named("lr_sweep", own)
    assert {one.devices for one in spec.trials.values()} == {"0,1,2,3,4"}
    trial = spec.trials["lr_sweep.gsm8k_lr_1e-06"]
    its = settings_of(trial, own)
    # The number of heads of the model on the hub is divisible by the number of GPUs.
    wanted = PlannedWork.from_spec(dataclasses.replace(trial.spec, init=""), its).training_request(its)
    request = Request(run="r", num_gpus=trial.spec.num_gpus, devices=trial.devices)
    found = plan.resolve(wanted, Inventory("s"), ROOT, run="r", request=request, torch="cuda")
    step = found.job.steps[-1]
    assert step.together == ("-m", "trainer.spread", "--train", "0", "--answer", "1,2,3,4")
    assert found.job.setup == ("serve-cuda",) and step.config["spec"]["rl"]["engine_tensor_parallel"] == 4
    assert (
        "rl: GPU 0 trains, GPUs 1,2,3,4 answer; vLLM: 1 process, the model over 4 GPUs each (tensor parallel), "
        "with 0.9 of the memory of each GPU"
    ) in found.notes
    words = command_words(trial.spec)
    assert {"--engine=vllm", "--engine-devices=1,2,3,4", "--train-devices=0", "--engine-tensor-parallel=4"} <= {*words}
    (said,) = {sweep_text.engine_words(one) for one in spec.trials.values()}
    assert said == (
        "vLLM answers on GPU 1,2,3,4 of a pod: 1 process, each with the model over 4 GPUs (tensor parallel) "
        "and 0.9 of the memory; GPU 0 trains"
    )


def queues_of(*trials):
    """Return queues of experiments, given as (pod, GPUs)."""
    planned: Any = {
        f"r{number}": SimpleNamespace(trial=SimpleNamespace(pod=pod, devices=devices), estimate_s=1.0)
        for number, (pod, devices) in enumerate(trials)
    }
    return [(one.pod, one.runs, one.host, one.devices, one.estimate_s) for one in pod_lanes(planned)]


def test_experiments_of_one_pod_run_in_sequence_unless_their_gpus_are_disjoint():
    assert queues_of(("p", "0,1"), ("q", "0,1"), ("p", "0,1")) == [
        ("p", ("r0", "r2"), "p", "0,1", 2.0),
        ("q", ("r1",), "q", "0,1", 1.0),
    ]
    assert queues_of(("p", "0,1"), ("p", "2,3"), ("p", "1,0")) == [
        ("p device 2,3", ("r1",), "p", "2,3", 1.0),
        ("p device 0,1", ("r0", "r2"), "p", "0,1", 2.0),
    ]
    assert queues_of(("p", "0"), ("p", "1"), ("p", "0,1,10")) == [("p", ("r0", "r1", "r2"), "p", "0,1,10", 3.0)]
    assert queues_of(("p", "0"), ("p", "")) == [("p", ("r0", "r1"), "p", "", 2.0)], "the second one has all GPUs"
    assert queues_of(("p", ""), ("p", "")) == [("p", ("r0", "r1"), "p", "", 2.0)]


def test_custom_functions_are_found_by_name_and_report_idle_pods(tmp_path):
    own = settings(tmp_path, SLIPWAY_SWEEPS=str(EXAMPLES / "custom.py"))
    assert {"custom_sweep", "loop_sweep", "lr_sweep"} <= set(configurations.known(own))
    loop = configurations.named("loop_sweep", own)
    assert list(loop.trials)[0] == "loop_sweep.gsm8k_lr_1e-04" and len(loop.idle_pods) == 6
    custom = configurations.named("custom_sweep", own)
    first, second = (dict(one.spec.options) for one in custom.trials.values())
    differ = {name for name in first if first[name] != second[name]}
    assert differ == {"rl.optimizer.lr"}
    assert (first["rl.rl.eval_every"], next(iter(custom.trials.values())).spec.steps) == ("10", 50)
    with pytest.raises(UsageError, match="did you mean custom_sweep"):
        configurations.named("custom_swep", own)
    with pytest.raises(UsageError, match=r".*gone\.py does not exist; shell sets this path"):
        configurations.known(settings(tmp_path, SLIPWAY_SWEEPS=str(tmp_path / "gone.py")))


def test_rehearsed_sweep_trains_toys_on_the_machines_of_the_sweep_in_order(tmp_path):
    own = settings(tmp_path)
    for name in list(configurations.known(own))[:5]:
        asked = configurations.named(name, own)
        found = rehearsed.reduced(asked, own.profile)
        assert list(found.spec.trials) == list(asked.trials) == list(found.real) and found.spec.pods == asked.pods
        each = [(one.spec, settings_of(one, own)) for one in found.spec.trials.values()]
        recipes = [plan.recipe(PlannedWork.from_spec(toy, its).training_request(its))["rl"].spec for toy, its in each]
        assert max(one.model.num_params for one in recipes) < 1e6 and {one.rl.engine for one in recipes} == {"embedded"}
        assert len({one.digest() for one in recipes}) == len(recipes), "no two of them make the same artifact"
        for run, one in found.spec.trials.items():
            real = asked.trials[run]
            assert (one.pod, one.arm, one.asked, one.env) == (real.pod, real.arm, real.asked, real.env)
            kept = ("gpu", "num_gpus", "min_upload_mbps", "ttl", "tag", "phase", "seed")
            assert [getattr(one.spec, each) for each in kept] == [getattr(real.spec, each) for each in kept]
        for run, real, toy in rehearsed.rows(found):
            model = asked.trials[run].spec.init.removeprefix("hf://")
            assert real.startswith(f"rl 100 steps of {model} on ") and "512 answers a step" in real, real
            assert toy == "rl 12 steps of a model of 147,904 parameters on sort, 16 answers a step", toy
    rates = rehearsed.reduced(configurations.named("lr_sweep", own), own.profile).spec.trials.values()
    assert [one.spec.options["rl.optimizer.lr"] for one in rates] == ["1e-06", "3e-06", "5e-06", "1e-05"]


@pytest.mark.pack("bits")
@pytest.mark.parametrize(
    ("name", "arms", "hours", "steps", "disk"),
    [
        ("ablation_haar", {"baseline": "haar-false", "haar": "haar-true"}, (4, 6), (2000, 1000), ""),
        ("ablation_saliency", {"baseline": "saliency-false", "saliency": "saliency-true"}, (8, 12), (500, 1000), "100"),
    ],
)
def test_named_ablations_equal_the_published_ones_and_run_locally_as_toys(tmp_path, name, arms, hours, steps, disk):
    own = settings(tmp_path)
    asked = configurations.named(name, own)
    assert (list(asked.arms), len(asked.trials), asked.hours) == (list(arms), 2, hours)
    for one in asked.trials.values():
        spec = one.spec
        assert (spec.gpu, spec.num_gpus, spec.use_spot, spec.disk_size) == ("A100-80GB", 1, True, disk)
        assert one.env == {"WANDB_PROJECT": "wrinklefree-ablation"} and spec.init == "hub"
        found = {each.phase: each for each in rehearsed.phases_of(spec, own.profile)}
        assert (found["bits1.9"].steps, found["bits2"].steps) == steps
        job = plan.profile_named(str(ROOT / "examples" / "jobs" / "profiles" / f"{spec.profile}-{arms[one.arm]}.yaml"))
        assert dataclasses.replace(found["bits2"], model=job.phases["bits2"].model) == job.phases["bits2"]
        has_haar = job.phases["bits2"].model.ternary.haar
        assert (spec.options.get("model.ternary.haar", "False") == "True") == has_haar
    toy = configurations.named(name, own, is_here=True)
    assert toy.name == f"{name}_toy" and len(toy.trials) > 10 and toy.about.startswith(f"toy of {name}")
    assert max(each.model.num_params for one in toy.trials.values() for each in rehearsed.phases_of(one.spec, "")) < 5e6
    small = rehearsed.reduced(asked, own.profile).spec.trials.values()
    assert {one.spec.phase for one in small} == {"bits1+bits1.9+bits2"}
    recipes = [
        plan.recipe(PlannedWork.from_spec(one.spec, its).training_request(its))
        for one in small
        for its in [settings_of(one, own)]
    ]
    assert max(each["bits2"].spec.model.num_params for each in recipes) < 1e6
    differ = (lambda each: each.model.ternary.haar) if name == "ablation_haar" else (lambda each: each.bits.saliency)
    assert len({differ(each["bits2"].spec) for each in recipes}) == 2, "the toys differ as the arms do"


def test_rehearsed_sweep_of_small_models_is_unchanged(tmp_path):
    asked = sweep_file.load(EXAMPLES / "rates.yaml")
    found = rehearsed.reduced(asked, settings(tmp_path).profile)
    assert found.spec == asked and not found.real and not list(rehearsed.rows(found))


def test_experiments_that_differ_only_in_the_seed_are_one_arm():
    def seeds():
        some = [ExperimentConfig(name=f"a-{seed}", seed=seed) for seed in (1, 2)]
        return [PodSpec(name="p")], {"p": [*some, ExperimentConfig(name="b", learning_rate=1e-6)]}

    assert [len(some) for some in configurations.of_function(seeds).arms.values()] == [2, 1]


@pytest.mark.parametrize(
    ("said", "told"),
    [
        (lambda: {"gpu_devices": "0,1"}, "device 0 is in both gpu_devices and train_gpu_device"),
        (lambda: {"batch_size": 0}, "batch_size is 0"),
        (lambda: {"custom_args": {"sed": 1}}, "did you mean seed"),
    ],
)
def test_invalid_experiment_is_refused(said, told):
    with pytest.raises(UsageError, match=told):
        ExperimentConfig(name="a", **said()).launch(0)


def leaves(record, above=""):
    """Yield every field of a record and of its nested records, by path, with the value."""
    for one in dataclasses.fields(record):
        value = getattr(record, one.name)
        if dataclasses.is_dataclass(value):
            yield from leaves(value, f"{above}{one.name}.")
        else:
            yield f"{above}{one.name}", value


OTHER = {
    "packed": "never", "packing": "best-fit",
         "dtype": "bfloat16", "compile": "never", "parallel": "ddp", "schedule.kind": "cosine",
         "optimizer.betas": "0.5,0.6", "mixture": None, "rl.loss": "grpo", "rl.engine": None, "rl.engine_devices": None,
         "schedule.end": None,
         "rl.engine_tensor_parallel": None,
         "rl.train_devices": None,
         "rl.reward": "text",
         "rl": None, "bits": None, "blocks": None, "micro_rows": "2", "rl.group": "2", "rl.top_p": "0.5",
         "rl.engine_memory": "0.5", "rl.overlong": "3", "schedule.decay": "0.25", "sequence_len": "32",
         "optimizer.embed_lr": "0.5", "optimizer.head_lr": "0.5", "optimizer.muon_decay": "0.5",
         "optimizer.muon": None, "optimizer.value_lr": "0.5", "optimizer.scale_lr": "0.5",
         "optimizer.smear_lr": "0.5"}  # fmt: skip
"""Values other than a larger default; None: no other value is possible, or the phase has no such field."""


@pytest.mark.parametrize("phase", ["base", "rl"])
def test_every_field_of_a_phase_can_be_an_axis_and_reaches_the_record_of_its_trainer(phase):
    before = PROFILES["tiny"]().phases[phase]
    checked = 0
    for path, value in leaves(before):
        if path.split(".")[0] in NOT_FOR_A_PHASE or OTHER.get(path, "") is None:
            continue
        if phase == "rl" and path in ("packing", "document_masks"):
            continue  # Of phases that read text.
        if path in OTHER:
            wanted = OTHER[path]
        elif isinstance(value, bool):
            wanted = str(not value).lower()
        else:
            wanted = str(value * 2 or 1)
        document = {"axes": {f"{phase}.{path}": [wanted]}}
        (trial,) = sweep_file.read("f", document, "s").trials.values()
        after = dict(leaves(phase_options.with_options(before, trial.spec.options)))
        assert after[path] != value, path
        changed = {name for name in after if after[name] != dict(leaves(before))[name]}
        # A chosen number of rows is not fitted to the GPU.
        assert changed == ({path, "fit"} if path == "micro_rows" else {path})
        checked += 1
    assert checked > 20


def test_schema_of_an_experiment_has_the_defaults_of_its_source():
    found = {name: default for name, default, _ in experiment.schema()}
    wanted = {
        "name": None,
        "dataset": "gsm8k",
        "learning_rate": 3e-6,
        "batch_size": 4,
        "grad_accum_steps": 128,
        "total_steps": 100,
        "eval_every": 40,
        "gpu_devices": "1,2,3,4",
        "train_gpu_device": "0",
        "vllm_tensor_parallel": 4,
        "custom_env": {},
        "custom_args": {},
    }
    assert {name: found[name] for name in wanted} == wanted
    assert json.dumps(found)


@pytest.mark.pack("bits")
@pytest.mark.parametrize("name", ["ablation_saliency_toy", "ablation_saliency_4m"])
def test_arms_of_the_ablations_share_one_base_and_differ_as_named(name):
    spec = sweep_file.load(EXAMPLES / f"{name}.yaml")
    persona = plan.load_persona(ROOT / "data" / "persona.yaml")
    arms = {}
    for one in spec.trials.values():
        wanted = plan.TrainingRequest(
            phases=plan.parse_phases(one.spec.phase),
            profile=one.spec.profile,
            persona=persona,
            options=one.spec.options,
            seed=one.seed,
        )
        arms.setdefault(one.arm, []).append(plan.recipe(wanted))
    assert {len(some) for some in arms.values()} == {3}
    first = {arm: some[0] for arm, some in arms.items()}
    assert len({repr(nodes["base"].spec) for nodes in first.values()}) == 1
    read = {
        arm: sum(nodes[name].spec.steps for name in {"bits1.9", "bits2"} & steps_before(nodes))
        for arm, nodes in first.items()
    }
    assert len(set(read.values())) == 1, "as many tokens in each arm"
    shapes = {arm: nodes["bits2"].spec.model for arm, nodes in first.items()}
    assert shapes["row"].ternary.per_row and shapes["haar"].ternary.haar and not shapes["baseline"].ternary.haar
    assert shapes["fp"].ternary is None and not shapes["fp"].sub_norm and shapes["no-sub-norm"].ternary
    assert {arm for arm, nodes in first.items() if "bits1.9" not in nodes} == {
        "no-1.9",
        "no-1.9-lambda",
        "no-sub-norm",
        "fp",
    }


def test_arms_of_the_rewards_share_one_sft_and_differ_only_in_the_reward(tmp_path):
    spec = sweep_file.load(EXAMPLES / "rewards.yaml")
    usual = settings(tmp_path)
    arms = [plan.recipe(PlannedWork.from_spec(one.spec, usual).training_request(usual)) for one in spec.trials.values()]
    assert len({repr(nodes["sft"].spec) for nodes in arms}) == 1
    records = [nodes["rl"].spec.rl for nodes in arms]
    assert [one.reward.count("def reward(") for one in records] == [0, 1, 1]
    assert records[1].reward != records[2].reward
    assert len({dataclasses.replace(one, reward="") for one in records}) == 1


def steps_before(nodes):
    """Return the steps that bits2 depends on."""
    found, todo = set(), ["bits2"]
    while todo:
        found.add(one := todo.pop())
        todo += nodes[one].inputs.values()
    return found


@pytest.mark.parametrize(("gpus", "each", "devices"), [(8, 5, "0,1,2,3,4"), (1, 1, ""), (0, 0, "")])
def test_experiment_has_the_gpus_that_it_names_or_all_of_its_pod(gpus, each, devices):
    machine = PodSpec(name="p", gpu_type="A100" if gpus else None, gpu_count=gpus)
    found = experiment.trial("s", ExperimentConfig(name="a"), machine, ())
    assert (found.spec.num_gpus, found.devices) == (each, devices)
    alone = experiment.trial("s", ExperimentConfig(name="a", custom_args={"engine": "embedded"}), machine, ())
    assert (alone.spec.num_gpus, alone.devices) == (gpus, "")


def test_setting_that_distinguishes_runs_is_shown_with_its_default():
    spec = configurations.of_function(configurations.lr_sweep)
    assert [one.asked["learning_rate"] for one in spec.trials.values()] == ["1e-06", "3e-06", "5e-06", "1e-05"]


def test_named_sweeps_are_listed_without_an_account_with_cost_and_preparation(tmp_path, capsys):
    sweep.list_configs(settings(tmp_path), as_json=False)
    listed = capsys.readouterr()
    head, *rows = listed.out.splitlines()
    assert head.split()[:4] == ["name", "pods", "runs", "GPU-hours"] and "per GPU" in head and "per pod" in head
    (rates,) = (one.split() for one in rows if one.startswith("lr_sweep"))
    assert rates[1:4] == ["2", "4", "96"] and rates.count("USD/h") == 2
    assert "the same sweep with few steps on one pod; --spend-limit limits all runs together" in " ".join(
        listed.err.split()
    )


GRAIL = """
from experiment_runner import ExperimentConfig
from lium_manager import PodSpec

def deal(some: list[ExperimentConfig]):
    for number, one in enumerate(some):
        one.vllm_gpu, one.train_gpu, one.vllm_port = str(2 * number), str(2 * number + 1), 9000 + number
    return some

def rates() -> tuple[list[PodSpec], dict[str, list[ExperimentConfig]]]:
    some = [ExperimentConfig(name=f"r{number}", learning_rate=number * 1e-6, dataset="math") for number in (1, 2, 3)]
    return [PodSpec(name="p", gpu_count=8, min_upload_mbps=500, ttl_hours=6)], {"p": deal(some)}

def one():
    said = {"vllm_gpu": "2,3", "train_gpu": "4", "vllm_port": 8000, "custom_env": {"WANDB_TAGS": "a,b"}}
    return [PodSpec(name="q")], {"q": [ExperimentConfig(name="only", **said)]}

def names() -> list[str]:
    return ["rates", "one"]
"""


def test_file_of_grail_is_a_file_of_sweeps(tmp_path):
    (tmp_path / "sweeps.py").write_text(GRAIL)
    own = settings(tmp_path, SLIPWAY_SWEEPS=str(tmp_path / "sweeps.py"))
    rates = configurations.named("rates", own)
    assert [one.devices for one in rates.trials.values()] == ["0,1", "2,3", "4,5"]
    assert {one.spec.task for one in rates.trials.values()} == {"math"}
    (only,) = configurations.named("one", own).trials.values()
    assert (only.devices, only.spec.engine_tensor_parallel, only.env) == ("2,3,4", 2, {"WANDB_TAGS": "a,b"})
    with pytest.raises(UsageError, match=r"names\(\) must return"):
        configurations.named("names", own)
    assert "experiment_runner" not in sys.modules


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("def a():\n    x = 1\n    return 1 / 0\n", r"sweeps.py: line 3: a\(\): ZeroDivisionError"),
        ("def a():\n    return b()\ndef b(x=1):\n    raise RuntimeError('no')\n", r"line 4: a\(\): RuntimeError: no"),
        (
            "from packs.sweeps.control.experiment import ExperimentConfig\ndef a():\n"
            "    one = ExperimentConfig(name='a')\n    one.learning_rat = 1\n",
            r"line 4: a\(\): AttributeError: an experiment has no learning_rat; did you mean learning_rate",
        ),
        ("x = 1\ny = (\n", r"sweeps.py: line 2: SyntaxError"),
        ("import no_such_module\n", r"sweeps.py: line 1: ModuleNotFoundError"),
        ("import sys\nsys.exit(3)\n", r"sweeps.py: line 2: SystemExit: 3"),
        ("import sys\ndef a():\n    sys.exit('no')\n", r"sweeps.py: line 3: a\(\): SystemExit: no"),
        ("\ndef a():\n    return 3\n", r"sweeps.py: line 2: a\(\) must return \(pods, .* not int"),
        ("def a():\n    return [3], {}\n", r"line 1: a\(\): a pod: expected PodSpec or a dictionary, not int"),
        ("def a():\n    return 3, {}\n", r"line 1: a\(\): the pods must be a list of PodSpec, not int"),
        ("def a():\n    return [{'name': 'x'}], {'x': 3}\n", r"a\(\): x: the experiments must be a list, not int"),
        ("def a():\n    return [{'name': 'x', 'gpu_count': 'y'}], {}\n", r"gpu_count is 'y'; expected a number"),
    ],
)
def test_error_in_a_file_of_sweeps_names_its_line(tmp_path, text, said):
    (tmp_path / "sweeps.py").write_text(text)
    with pytest.raises(UsageError, match=said):
        configurations.named("a", settings(tmp_path, SLIPWAY_SWEEPS=str(tmp_path / "sweeps.py")))
