"""Reference section about the example job files: machine, hours and cost of each file.

The estimates use examples/jobs, the bundled price catalog and the plan estimates; no vendor is queried.
"""

from dataclasses import dataclass

from flows.reading import quotes
from infra.checkout import ROOT
from infra.flags import Typed
from infra.market import catalogue
from infra.selection.machine_spec import MachineSpec
from infra.settings import Settings
from packs.jobs.control import job_file, machines, training
from packs.jobs.control.flags import JobCostFlags

FOLDER = ROOT / "examples" / "jobs"
ROWS = (  # file, words of the launch command, words for a small job on this machine
    ("smoke_test.yaml", "", ""),
    ("train.yaml", "-e STAGE=2", "-e MODEL=examples/jobs/profiles/toy.yaml -e STAGE=2"),
    ("train.yaml", "-e STAGE=3", "-e MODEL=examples/jobs/profiles/toy.yaml -e STAGE=3"),
    ("train.yaml", "-e STAGE=2 -e MODEL=smollm2_135m -e ACCELERATOR=A100:1", ""),
    ("dlm_train.yaml", "", "-e MODEL=tiny -e INIT= -e TOKENS=2048 -e BLOCK_SIZE=8"),
    ("ablation_haar.yaml", "", "-e MODEL=toy -e INIT="),
    ("ablation_saliency.yaml", "", "-e MODEL=toy -e INIT="),
    ("bert_ddp.yaml", "-e SIZE=base", ""),
    ("data.yaml", "", ""),
    ("shard_nodes.yaml", "-e SOURCE=/shared/pages -e OUT=/shared/shards", "-e SOURCE=/data/pages -e OUT=/data/shards"),
    ("gpt_cpu.yaml", "", ""),
)
HEAD = """## The job files of the examples

Each is begun with `./inv launch examples/jobs/FILE WORDS`, and on this machine with the words of the last column and
`--provider local`. Hours are those of `./inv cost --estimate --job FILE`: of the phases that are named, from a table of
GPUs, without what they go on from. Dollars are those hours, boot and set-up, at the lowest price on demand in the
catalogue of prices; spot machines cost less. A ? is not known: a job of your own is estimated once it has run.

| File | words | machine | hours | USD | words for this machine |
| --- | --- | --- | --- | --- | --- |
"""


@dataclass(frozen=True)
class JobEstimate:
    """The estimated machine, hours and cost of a job file; None for unknown values."""

    machine: str
    hours: float | None
    usd: float | None


def lines() -> list[str]:
    """Return the section as Markdown lines."""
    rows = []
    for file, words, small in ROWS:
        found = estimate(file, tuple(words.split()[1::2]))
        known = ["?" if one is None else f"{float(f'{one:.2g}'):g}" for one in (found.hours, found.usd)]
        link = f"[{file}](../../examples/jobs/{file})"
        said = [f"`{one}`" if one else "" for one in (words, small)]
        rows.append(f"| {link} | {said[0]} | {found.machine} | {known[0]} | {known[1]} | {said[1]} |")
    sweep = "[rates.yaml](../../examples/sweeps/rates.yaml)"
    service = "[service.yaml](../../serve/service.yaml)"
    return [
        *HEAD.splitlines(),
        *rows,
        "",
        f"A search for a learning rate is a file of `./inv sweep`, {sweep}; a service is a file of "
        f"`./inv serve.up`, {service}.",
        "",
    ]


def estimate(name: str, given: tuple[str, ...]) -> JobEstimate:
    """Return the machine of a job file; for a training, also the estimated hours and cost on that machine."""
    file = job_file.load(FOLDER / name)
    task = file.tasks[0]
    if not training.is_training(file):
        asked = machines.wishes(task, MachineSpec(), "", True, name).wishes[0].machine
        kinds = asked.gpu.replace(",", " or ")
        nodes = f"{task.num_nodes} x " if task.num_nodes > 1 else ""
        machine = f"{nodes}{asked.num_gpus} {kinds}" if asked.gpu else f"{asked.cpus or 1} CPUs"
        return JobEstimate(machine, None, None)
    settings = Settings.load(ROOT, {}, given, environ={"HOME": str(ROOT)})
    wanted = Typed(added=(JobCostFlags(job=str(FOLDER / name)),))
    named = quotes.work_named("", wanted, settings)
    offers = [one.offer for one in catalogue.read(catalogue.BUNDLED)]
    gpu, number = named.machine.gpu, named.machine.num_gpus
    found = quotes.quote(named.phases, gpu, number, offers, settings, text_bytes=named.text_bytes)
    usd = None if found.micro_usd is None else found.micro_usd[1] / 1e6
    return JobEstimate(f"{number} {found.offer.gpu if found.offer else gpu}", found.seconds[1] / 3600, usd)
