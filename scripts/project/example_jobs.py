"""docs/reference/jobs.md: every job file of the examples with its machine, and what it takes there, as far as is known.

In: examples/jobs, the catalogue of prices that comes along, the estimates of plans. Out: the page. Nobody is asked.
"""

from dataclasses import dataclass, replace

from flows import launch
from flows.jobs import training
from flows.specs.launch import LaunchSpec
from flows.sweeps import prices
from infra.checkout import ROOT
from infra.flags import flags_of
from infra.jobs import job_file, machines
from infra.market import catalogue
from infra.market.forecast import flops_per_s
from infra.records import Inventory, Offer, Request
from infra.selection.machine_spec import MachineSpec
from infra.settings import Settings
from trainer import plan as planning

FOLDER = ROOT / "examples" / "jobs"
ROWS = (  # a file, the words that it is launched with, and those that make it small enough for this machine
    ("smoke_test.yaml", "", ""),
    ("train.yaml", "-e STAGE=2", "-e MODEL=examples/jobs/profiles/toy.yaml -e STAGE=2"),
    ("train.yaml", "-e STAGE=3", "-e MODEL=examples/jobs/profiles/toy.yaml -e STAGE=3"),
    ("train.yaml", "-e STAGE=2 -e MODEL=smollm2_135m -e ACCELERATOR=A100:1", ""),
    ("dlm_train.yaml", "", "-e MODEL=tiny -e INIT= -e TOKENS=2048 -e BLOCK_SIZE=8"),
    ("ablation_haar.yaml", "", "-e MODEL=toy -e INIT="),
    ("ablation_saliency.yaml", "", "-e MODEL=toy -e INIT="),
    ("bert_ddp.yaml", "-e SIZE=base", ""),
    ("data.yaml", "", ""),
)
HEAD = f"""# The job files of the examples

Each is begun with `./inv launch examples/jobs/FILE WORDS`, and on this machine with the words of the last column and
`--provider local`. Hours are what a plan expects of the phases that are named, at two fifths of what the machine's GPUs
can do at most; what they go on from is not among them. Those of a job without a training were measured on a CPU, as
no GPU would shorten them. Dollars are those hours, boot and setup, at the lowest price on demand in {prices.CATALOGUE};
spot machines cost less. A ? is not known: no estimate, or no such machine there. `--dry-run` says what is true today.

| File | words | machine | hours | USD | words for this machine |
| --- | --- | --- | --- | --- | --- |
"""
BOOT_H = 300 / 3600
OWN_S = {"smoke_test.yaml": 10, "data.yaml": 1}  # steps that pause; words that are counted. Not known for BERT on V100s


@dataclass(frozen=True)
class JobEstimate:
    """The estimate for a job file."""

    machine: str
    hours: float | None
    usd: float | None


def page() -> str:
    """Return the page."""
    lines = []
    for file, words, small in ROWS:
        found = estimate(file, tuple(words.split()[1::2]))
        known = ["?" if one is None else f"{float(f'{one:.2g}'):g}" for one in (found.hours, found.usd)]
        link = f"[{file}](../../examples/jobs/{file})"
        said = [f"`{one}`" if one else "" for one in (words, small)]
        lines.append(f"| {link} | {said[0]} | {found.machine} | {known[0]} | {known[1]} | {said[1]} |")
    sweep = "[rates.yaml](../../examples/sweeps/rates.yaml)"
    service = "[service.yaml](../../serve/service.yaml)"
    return (
        HEAD
        + "\n".join(lines)
        + f"""

A search for a learning rate is a file of `inv sweep`, {sweep}; a service is one of `inv serve.up`, {service}.
"""
    )


def estimate(name: str, given: tuple[str, ...]) -> JobEstimate:
    """Return the machine of a job file, and what the phases of a training take there."""
    file = job_file.load(FOLDER / name)
    task = file.tasks[0]
    asked = machines.wishes(task, MachineSpec(), "", True, name).wishes[0].machine
    spec = None
    if training.is_training(file):
        spec = training.spec_of(file, LaunchSpec(), _settings("", given), lambda _: None)
        asked = MachineSpec(**{one.name: getattr(spec, one.name) for one in flags_of(MachineSpec)})
    kinds = asked.gpu.replace(",", " or ")
    nodes = f"{task.num_nodes} x " if task.num_nodes > 1 else ""
    machine = f"{nodes}{asked.num_gpus} {kinds}" if asked.gpu else f"{asked.cpus or 1} CPUs"
    if spec is None and name not in OWN_S:
        return JobEstimate(machine, None, None)
    hours = OWN_S[name] / 3600 if spec is None else _hours(spec, given)
    found = prices.listed(asked.gpu, asked.num_gpus, catalogue.BUNDLED) if asked.gpu else None
    return JobEstimate(machine, hours, None if found is None else (hours + BOOT_H) * found[0] / 1e6)


def _hours(spec: LaunchSpec, given: tuple[str, ...]) -> float:
    settings = _settings(spec.profile, given)
    wanted = launch.Work.of(replace(spec, init=""), settings).wanted(settings)
    rate = flops_per_s(Offer(provider="", offer_id="", gpu=spec.gpu, num_gpus=spec.num_gpus))
    assert rate is not None, f"{spec.gpu} is in no table"
    request = Request(run="new", gpu=spec.gpu, num_gpus=spec.num_gpus)
    plan = planning.resolve(wanted, Inventory("", {}), ROOT, run="new", request=request, flops_per_s=rate)
    return sum(one.estimate_s or 0.0 for one in plan.artifacts if one.step in wanted.phases) / 3600


def _settings(profile: str, given: tuple[str, ...]) -> Settings:
    flags = {"provider": "runpod", "profile": profile}
    return Settings.load(
        ROOT, flags, given, environ={"HOME": str(ROOT), "RUNPOD_API_KEY": "of nobody, who is not asked"}
    )
