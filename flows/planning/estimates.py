"""The requests to the estimator, and the check that a training fits into memory before the start.

    plan, its machine -> of_plan -> the plan with its Estimate
    phases of a recipe, a kind of machine -> of_phases -> Estimate

The input is plans, phases and measured times beside the journal: the work in the steps, and the kind of machine. Every
`Estimate` comes from `infra.market.step_times.estimate`. A plan in a rehearsal gets two estimates: for this machine,
which runs the simulation, and for the imitated rented machine. The check of memory is for local work; offers of vendors
are filtered by `infra.selection.preflight`.
"""

import functools
import math
import os
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from data import references
from data.config import ConfigError, TextSpec, load
from infra.agent import host
from infra.agent.environments import environment
from infra.agent.execution.utilization import SHORTEST_S, OtherLoad
from infra.agent.job import Job, Step
from infra.checkout import ROOT
from infra.errors import UsageError
from infra.ledger.timings import Timings
from infra.market.step_times import AROUND, SETUP_S, StepTime, estimate
from infra.providers import Provider
from infra.records import Estimate, EstimateRequest, MachineKind, Offer, Plan, Request, StepWork
from infra.selection.preflight import machine_with
from infra.settings import Settings
from infra.units import size
from trainer import memory
from trainer.config import ImportSpec, PhaseConfig, load_phase
from trainer.fingerprints import VERSIONS, digest
from trainer.plan import estimates as amounts
from trainer.plan.phase_needs import needs_of

# Seconds of overhead around the steps: on this machine; on other own machines; to build environments; with a full
# cache.
HERE_S, ELSEWHERE_S, BUILD_S, CACHED_S = 3.0, 15.0, 60.0, 10.0
# Useful FLOP/s per core, measured with whole runs of the smoke profile on two cores: 1.0e11 on a Zen 4, 0.7e11 and more
# with AMX, 0.35e11 without bfloat16 units.
CORE_FLOPS_PER_S, PLAIN_CORE_FLOPS_PER_S = 0.9e11, 0.35e11
LOAD_S = 1.5 * SHORTEST_S  # sampling time for the load of this machine
LOAD_HOLDS_S = 20.0
MOST_PASSES = 4  # Muennighoff et al., arXiv 2305.16264
LONG_TOKENS = 1e9  # tokens of a phase below which a repeated text costs little money
LONG_TEXT_BYTES, ENOUGH_PASSES = 2e9, 0.4  # shorter text costs little money; short documents are read at most once
FINEWEB = f"hf://{TextSpec.dataset}/{TextSpec.config}:train[:0]"


def of_plan(plan: Plan, settings: Settings, vendor: Provider, offer: Offer | None = None) -> Plan:
    """Return the plan with estimates for the steps and the overhead."""
    if plan.job is None:
        return plan
    past = Timings.for_journal(settings.state_file).step_times()
    machine = machine_of(plan.request, settings, vendor, offer)
    is_found = is_environment_there(plan.job, settings, vendor)
    is_cached = is_found is False and environment.is_cached("train", ROOT, plan.job.torch)
    rest = overhead_work(machine.name, settings, vendor, is_found, is_cached)
    works = (*works_of(plan.job, plan.target, machine.name), rest)
    found = estimate(EstimateRequest(machine=machine, steps=works), past)
    imitated = _of_imitated(plan, settings, vendor, offer, past) if settings.rehearsal else None
    seconds = {one.step: one.seconds for one in (imitated or found).steps}
    artifacts = tuple(replace(one, estimate_s=seconds.get(one.step)) if one.step else one for one in plan.artifacts)
    return replace(plan, artifacts=artifacts, works=works, estimate=found, imitated=imitated)


def _of_imitated(
    plan: Plan, settings: Settings, vendor: Provider, offer: Offer | None, past: Iterable[StepTime]
) -> Estimate | None:
    """Return the estimate for the rented machine that a rehearsal imitates, or None for other providers."""
    assert plan.job is not None
    if not vendor.is_rented:
        return None
    machine = remote_machine(plan.request, vendor, offer)
    return estimate(EstimateRequest(machine=machine, steps=works_of(plan.job, plan.target, machine.name)), past)


def of_phases(phases: Sequence[PhaseConfig], machine: MachineKind, settings: Settings, text_bytes: int = 0) -> Estimate:
    """Return the estimate for phases of a recipe, without inputs, boot and set-up."""
    works = tuple(work_of_phase(one, one.phase, machine.name, text_bytes) for one in phases)
    past = Timings.for_journal(settings.state_file).step_times()
    return estimate(EstimateRequest(machine=machine, steps=works), past)


def works_of(job: Job, target: str, machine: str) -> tuple[StepWork, ...]:
    """Return the work of all steps of a job, with the facts for a time estimate."""
    text_bytes = text_bytes_of(job.steps)
    return tuple(_work_of(step, target, machine, text_bytes) for step in job.steps)


def text_bytes_of(steps: Iterable[Step]) -> int:
    """Return the bytes of text that steps make; 0 without such a step, or if the size is unknown before the run."""
    made = (one for one in steps if one.words[-2:] == ("data", "text"))
    with suppress(ConfigError):  # the journal may hold a job in an older settings format
        return sum(amounts.known_text_bytes(load(TextSpec, one.config["spec"], one.name)) for one in made)
    return 0


def work_of_phase(phase: PhaseConfig, step: str, machine: str, text_bytes: int = 0) -> StepWork:
    """Return the work of a training phase. text_bytes: size of the text of the plan; 0 = unknown."""
    params, beside_s = phase.model.num_params, sum(seconds_beside_steps(phase, machine, text_bytes).values())
    return StepWork(
        step=step,
        kind=_kind(phase.phase),
        machine=machine,
        shape=amounts.shape(phase),
        size=float(params),
        amount=amounts.operations(phase),
        fixed_s=amounts.PHASE_START_S + beside_s,
        guess_s=None if phase.steps else amounts.constant_s((phase.phase,), params) + beside_s,
    )


def seconds_beside_steps(phase: PhaseConfig, machine: str, text_bytes: int) -> dict[str, float]:
    """Return the seconds of a training beside the steps on a kind of machine, by part of a bill; {} for CPUs."""
    return amounts.seconds_beside_steps(phase, machine_with(machine.rpartition(" x ")[2], 1).flops_per_s, text_bytes)


def _work_of(step: Step, target: str, machine: str, text_bytes: int) -> StepWork:
    making = step.config.get("making")
    if not making:  # a user job: the same command counts as the same work
        return StepWork(step=step.name, kind=f"job {target}", machine=machine, shape=step.name)
    try:
        phase = next(iter(phases_of([step])), None)
    except ConfigError:  # the journal may hold a job in an older settings format
        phase = None
    if phase is not None:
        return replace(work_of_phase(phase, step.name, machine, text_bytes), kind=_kind(step.words[-1]))
    read = {role: one["fingerprint"] for role, one in sorted(making["inputs"].items())}
    is_model = step.words[-1] == "import" and "model" in step.config["spec"]
    params = load(ImportSpec, step.config["spec"], step.name).model.num_params if is_model else 0
    return StepWork(
        step=step.name,
        kind=_kind(step.words[-1]),
        machine=machine,
        shape=digest([making.get("spec"), read]),
        guess_s=amounts.constant_s(step.words, params, text_bytes),
    )


def _kind(program: str) -> str:
    return f"{program} v{VERSIONS.get(program, 1)}"


def overhead_work(
    machine: str, settings: Settings, vendor: Provider, is_found: bool | None, is_cached: bool = False
) -> StepWork:
    """Return the work of a run besides its steps.

    `is_found`: the environment exists; None = unknown. `is_cached`: the environment can be built without downloads.
    """
    usual_s = SETUP_S[1] if vendor.is_rented and not settings.rehearsal else HERE_S if vendor.is_here else ELSEWHERE_S
    guess_s = usual_s + (0.0 if is_found is not False else CACHED_S if is_cached else BUILD_S)
    kind = around_kind(vendor.name, is_found)
    return StepWork(step=AROUND, kind=kind, machine=machine, shape="", guess_s=guess_s, fixed_s=guess_s)


def around_kind(vendor: str, is_found: bool | None) -> str:
    """Return the kind of work around the steps at a vendor; building the environment is a separate kind."""
    built = "" if is_found is None else f", environment {'found' if is_found else 'built'}"
    return f"around the steps, {vendor}{built}"


def is_environment_there(job: Job, settings: Settings, vendor: Provider) -> bool | None:
    """Return whether the environment exists, or None if only the remote machine knows."""
    if not (vendor.is_here or settings.rehearsal) or not any(step.environment for step in job.steps):
        return None
    return environment.find("train", ROOT, settings.environments, job.torch) is not None


def machine_of(request: Request, settings: Settings, vendor: Provider, offer: Offer | None = None) -> MachineKind:
    """Return the kind of machine for the work; in a rehearsal this machine, since pods are local processes."""
    if vendor.is_here or settings.rehearsal:
        found = this_machine(0 if settings.rehearsal else request.num_gpus)
        return found if request.nodes == 1 else replace(found, name=f"{request.nodes} nodes of {found.name}")
    return remote_machine(request, vendor, offer)


def remote_machine(request: Request, vendor: Provider, offer: Offer | None = None) -> MachineKind:
    """Return the kind of a remote machine, from the offer or else from the request."""
    if request.num_gpus or (offer and offer.num_gpus):
        gpu = offer.gpu if offer and offer.gpu else request.gpu
        return machine_with(gpu, offer.num_gpus if offer and offer.num_gpus else request.num_gpus, request.nodes)
    kind = (offer.instance_type or offer.place) if offer else request.host or request.pool or request.instance_type
    cpus = offer.cpus if offer and offer.cpus else 0
    name = " ".join(filter(None, (vendor.name, kind, f"{cpus} CPUs" if cpus else "")))
    speed = CORE_FLOPS_PER_S * (cpus or _cpus()) * request.nodes
    return MachineKind(name=name if request.nodes == 1 else f"{request.nodes} nodes of {name}", flops_per_s=speed)


def this_machine(num_gpus: int = 0) -> MachineKind:
    """Return the kind of this machine: `num_gpus` of the GPUs, or the CPUs with their load."""
    found = [] if environment.torch_build() == "cpu" else [one["name"] for one in host.nvidia()[0]]
    if found:
        return replace(machine_with(found[0], max(1, num_gpus)), is_here=True)
    info = Path("/proc/cpuinfo")
    text = info.read_text(errors="replace") if info.exists() else ""
    model = next(
        (line.partition(":")[2].strip() for line in text.splitlines() if line.startswith("model name")),
        os.uname().machine,
    )
    core = CORE_FLOPS_PER_S if "amx_bf16" in text or "avx512_bf16" in text else PLAIN_CORE_FLOPS_PER_S
    name = f"{_cpus()} x {' '.join(model.split())}"
    held_for = int(time.monotonic() / LOAD_HOLDS_S)
    return MachineKind(name=name, flops_per_s=_cpus() * core, is_here=True, others=_others(held_for))


def _cpus() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@functools.lru_cache(maxsize=1)
def _others(held_for: int) -> float:
    """Return the share of the CPUs used by other processes, or 0 if unknown. Blocks for LOAD_S seconds unless unknown.

    held_for: cache key that changes every LOAD_HOLDS_S seconds.
    """
    load = OtherLoad()
    if load.began is None:  # the system reports no CPU times
        return 0.0
    time.sleep(LOAD_S)
    return load.share() or 0.0


def phases_of(steps: Iterable[Step]) -> list[PhaseConfig]:
    """Return the configurations of the training steps."""
    return [load_phase(step.config["spec"], step.name) for step in steps if "spec" in step.config and step.together]


def notes_of_text(source: str, plan: Plan) -> tuple[str, ...]:
    """Return a note for each long phase that reads the same text often, and for a long text that is hardly read."""
    steps = plan.job.steps if plan.job else ()
    made_bytes, reading = text_bytes_of(steps), [one for one in phases_of(steps) if one.reads_text]
    text_bytes = made_bytes or (amounts.known_text_bytes(TextSpec(source=source)) if reading else 0)
    passes = [(one, amounts.passes_over(text_bytes, one)) for one in reading]
    found = [
        f"{one.phase} reads the text about {times:.0f} times; after {MOST_PASSES} times, a model learns little from "
        f"the same text{'' if source == 'fineweb' else '. To name more text: --source fineweb'}"
        for one, times in passes
        if times > MOST_PASSES and one.steps * amounts.tokens_of_step(one) > LONG_TOKENS
    ]
    read = max((times for _, times in passes), default=0.0)
    if made_bytes > LONG_TEXT_BYTES and 0 < read < ENOUGH_PASSES / 4:
        rows = math.ceil(read / ENOUGH_PASSES * made_bytes / amounts.DOCUMENT_BYTES / 1000) * 1000
        whole = FINEWEB if source == "fineweb" else source
        if (part := references.FIRST_ROWS.sub(rf"\1[:{rows}]", whole)) != whole:
            found.append(f"{size(made_bytes)} of text are made, and {read:.1%} are read; for less: --source '{part}'")
    return tuple(found)


def memory_shortage(phases: Iterable[PhaseConfig], num_gpus: int = 1) -> str:
    """Return why the first phase that is too large does not fit on this machine, by an estimate; "" if all fit."""
    gpus = [one["memory_bytes"] for one in host.nvidia()[0] if one["memory_bytes"]]
    ram = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    there = min(gpus, default=0) or ram
    device, what = ("cuda", "each GPU of this machine has") if gpus else ("cpu", "this machine has")
    for phase in phases:
        training = needs_of(phase).training_gpus(phase, num_gpus)
        ways = memory.ways(phase, max(1, training)) if gpus else {"alone": memory.ModelLayout()}
        least = min(memory.estimate(phase, device, **spread).total for spread in ways.values())
        if least > there:
            takes = f"{phase.phase} takes about {size(least)} of memory (an estimate)"
            return f"{takes}, but {what} {size(there)}; use a smaller recipe (--profile smoke), or see: inv fit"
        if gpus and (copied := memory.host_bytes(phase)) > ram:
            takes = f"{phase.phase} copies {size(copied)} into the memory of this machine to write checkpoints"
            return f"{takes}, but this machine has {size(ram)}; use a machine with more memory, or a smaller recipe"
    return ""


def check_memory(phases: Iterable[PhaseConfig], num_gpus: int = 1) -> None:
    """Raise UsageError if a phase does not fit on this machine."""
    if found := memory_shortage(phases, num_gpus):
        raise UsageError(found)
