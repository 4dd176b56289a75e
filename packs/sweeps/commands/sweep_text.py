"""Text output for sweeps: named sweeps, the plan, the result table, the page."""

import math
from collections.abc import Iterator, Mapping, Sequence

from flows.planning.estimates import phases_of
from infra.errors import SlipwayError
from infra.records import Offer
from infra.settings import Settings
from infra.units import about, estimated, in_usd, per_hour
from packs.sweeps.control import prices, rehearsed
from packs.sweeps.control.evaluation import ArmRow, SweepAnswer
from packs.sweeps.control.plan import SweepPlan
from packs.sweeps.control.pods import SweepPods
from packs.sweeps.control.prices import SweepPrice
from packs.sweeps.control.rehearsed import RehearsedSweep
from packs.sweeps.control.trials.records import SweepSpec, SweepTrial, shown
from packs.sweeps.control.trials.results import SweepResult
from scripts.cli import render
from store import packs
from store.manifest import StoreError
from trainer.records.rl_config import RlConfig


def hours(spec: SweepSpec) -> str:
    """Format the time for which the pods are rented, in hours; "" when unspecified."""
    low, high = spec.hours
    return "" if not high else f"{low:g} h" if low == high else f"{low:g} to {high:g} h"


def costs(spec: SweepSpec, price: SweepPrice, parts: int = 1) -> str:
    """Format the price of all pods, divided by `parts`; "" without a price or without hours."""
    low, high = (price.total(one) for one in spec.hours)
    return "" if low is None or high is None or not high else between(low // parts, high // parts)


def between(low: int, high: int) -> str:
    """Format a range of two amounts in micro-dollars; equal amounts are shown once."""
    return in_usd(low) if low == high else f"{in_usd(low)} to {in_usd(high)}"


def pods_lines(spec: SweepSpec, price: SweepPrice) -> Iterator[str]:
    """Yield a summary of the pods, or of the runs' machines, with the total price; then one line per kind."""
    if not price.kinds:
        return
    runs = render.count(len(spec.trials), "run")
    said = f"{render.count(len(spec.pods), 'pod')}, {runs}" if spec.pods else f"{runs}, a machine each"
    if hours(spec):
        each = "" if spec.pods else " each"
        said += f", {spec.gpu_hours:g} GPU-hours ({hours(spec)}{each}): {costs(spec, price) or 'no price known'}"
        said += f", {costs(spec, price, len(spec.trials))} a run" if costs(spec, price) else ""
    yield said
    for one in price.kinds:
        if one.micro_usd_per_hour is not None and one.per_gpu is not None:
            each = f"{per_hour(one.micro_usd_per_hour)} per pod, {per_hour(one.per_gpu)} per GPU"
            yield f"{prices.in_words([one])}: {each} ({one.source})"
        else:
            yield f"{prices.in_words([one])}: {one.source}"
    if not spec.pods:
        return
    on_each = {pod.name: [one.devices for one in spec.trials.values() if one.pod == pod.name] for pod in spec.pods}
    if max(map(len, on_each.values())) > 1:
        yield "runs on the same pod follow each other, unless their GPUs are disjoint"
    for said in dict.fromkeys(map(engine_words, spec.trials.values())):
        if said:
            yield said
    if idle := spec.idle_pods:
        yield f"{render.count(len(idle), 'pod')} {'has' if len(idle) == 1 else 'have'} no run: {', '.join(idle)}"


def engine_words(trial: SweepTrial) -> str:
    """Describe the GPUs on which a run generates and trains, and vLLM's share of GPU memory.

    Returns "" for a run without vLLM or without assigned GPUs.
    """
    spec, own = trial.spec, trial.devices.split(",")
    if spec.engine != "vllm" or not spec.engine_devices or not trial.devices:
        return ""
    answering, training = (
        [own[int(one)] for one in some.split(",")] for some in (spec.engine_devices, spec.train_devices)
    )
    share = spec.options.get("rl.rl.engine_memory", f"{RlConfig().engine_memory:g}")
    number = len(answering) // (spec.engine_tensor_parallel or 1)
    return (
        f"vLLM answers on GPU {','.join(answering)} of a pod: {render.count(number, 'process')}, each "
        f"with the model over {render.count(len(answering) // number, 'GPU')} (tensor parallel) and "
        f"{share} of the memory; GPU {','.join(training)} trains"
    )


def held_lines(shared: SweepPods, offers: Mapping[str, Offer]) -> Iterator[str]:
    """Yield one line per rented pod of the sweep, then the sum with the common limit."""
    for name, one in offers.items():
        gpus = f"{one.num_gpus} {one.gpu}" if one.num_gpus else "no GPU"
        yield f"{name}: {gpus} at {one.provider}, {per_hour(one.micro_usd_per_hour)}"
    limit = f", {in_usd(shared.limit.amount)} together at most" if shared.limit else ""
    rate = per_hour(sum(one.micro_usd_per_hour for one in offers.values()))
    yield f"{render.count(len(offers), 'pod')}, {rate}{limit}; each pod is deleted after the last run on the pod"


def trials_table(spec: SweepSpec) -> str:
    """Return a table of the trials and the settings in which they differ."""
    rows = [("pod", "run", "differences")]
    for one in spec.trials.values():
        said = [f"{name}={value}" for name, value in one.asked.items()]
        if one.env and "custom_env" not in one.asked:
            said += [f"{name}={value}" for name, value in one.env.items()]
        rows.append((one.pod, shown(one.run, spec.name), " ".join(said) or "the defaults"))
    return render.columns(rows)


def work_lines(planned: SweepPlan) -> Iterator[str]:
    """Yield the sweep's description, then model size and steps of the first run with work to do."""
    if planned.spec.about:
        yield planned.spec.about
    for job in filter(None, (one.plan.job for one in planned.trials.values())):
        if phases := list(phases_of(job.steps)):
            steps = ", ".join(f"{one.phase} {one.steps:,}" for one in phases)
            yield f"{phases[-1].model.num_params:,} parameters; steps of the first run: {steps}"
        return


def toy_lines(toys: RehearsedSweep) -> Iterator[str]:
    """Yield a table of the real runs and their toys in the rehearsal."""
    rows = list(rehearsed.rows(toys))
    if rows:
        found = [("run", "on its machine", "in this rehearsal")]
        yield render.columns([*found, *((shown(run, toys.spec.name), real, toy) for run, real, toy in rows)])
        yield (
            "the rehearsal rents the machines of the sweep, at the same prices, and starts the runs in "
            "the same order. This machine trains toys of the same phases; the times and limits below are "
            "for the toys"
        )


def tracker_lines(spec: SweepSpec, settings: Settings) -> Iterator[str]:
    """Yield each tracker's note about the runs, such as the W&B projects in their variables."""
    environs = [one.env for one in spec.trials.values()]
    yield from filter(None, (one.describe_runs(environs, settings) for one in packs.named_trackers().values()))


def show_plan(planned: SweepPlan, costs: Mapping[str, tuple[int, int]]) -> None:
    """Show model and steps, the runs of each pod in order with estimated times, and the costs (if any)."""
    for line in work_lines(planned):
        render.say(line)
    rows = [("pod", "run", "about", *(["cost"] if costs else []), "")]
    for lane in planned.lanes:
        for run in lane.runs:
            one = planned.trials[run]
            cost = [between(*costs[run]) if run in costs else "?"] if costs else []
            state = "" if one.plan.job else "everything is here"
            rows.append((lane.pod, shown(run, planned.spec.name), estimated(one.estimate_s), *cost, state))
    render.say(render.columns(rows))
    if costs and costs.keys() == planned.trials.keys():
        low, high = (sum(each) for each in zip(*costs.values(), strict=True))
        render.say(f"cost of all runs together: {between(low, high)} (estimates, on the planned machines)")
    longest_s = max(lane.estimate_s for lane in planned.lanes)
    machines = {lane.host or lane.pod for lane in planned.lanes}
    beside = f", {len(planned.lanes)} at once" if len(planned.lanes) > len(machines) else ""
    what = f"{render.count(len(planned.trials), 'run')} on {render.count(len(machines), 'pod')}{beside}"
    render.say(f"{what}, {about(longest_s)} (estimates, one after another)")
    if planned.is_rented:
        together = planned.most_micro_usd if planned.limit is None else min(planned.limit, planned.most_micro_usd)
        render.say(f"each run on a separate rented machine: {in_usd(together)} in all at most")


def number(value: float | None) -> str:
    """Format a score with four decimals, or three significant digits below 0.01; "" for None."""
    return "" if value is None else f"{value:.4f}" if abs(value) >= 0.01 else f"{value:.3g}"


def numbers(values: Sequence[float]) -> str:
    """Format an arm's additional figures: a single number, or one number per layer."""
    return " ".join(f"{one:.0f}" if abs(one) >= 1000 else f"{one:.4g}" for one in values)


def interval(row: ArmRow) -> str:
    """Format an arm's difference with its confidence interval; "" without a difference."""
    if row.apart is None:
        return ""
    half = "" if math.isnan(row.apart.half) else f" ± {row.apart.half:.4f}"
    return f"{row.apart.mean:+.4f}{half}"


def table(result: SweepResult, answer: SweepAnswer) -> str:
    """Return the result table: one line per run, then one line per arm."""
    rows: list[tuple[str, ...]] = [("run", "pod", "state", "steps", "seconds", str(result.rank["by"]), "")]
    for one in result.trials.values():
        steps = f"{one.at} of {one.steps}" if one.at < one.steps else str(one.steps or "")
        seconds = "" if one.seconds is None else f"{one.seconds:.1f}"
        rows.append((shown(one.run, result.name), one.pod, one.state, steps, seconds, number(one.score), one.reason))
    arms: list[tuple[str, ...]] = [
        ("arm", f"mean {result.rank['by']}", "seeds", f"minus {answer.against}", "", *result.beside)
    ]
    for each in answer.rows:
        seeds = f"{len(each.arm.scores)} of {each.arm.wanted}"
        more = [numbers(each.additional_means(name)) for name in result.beside]
        arms.append((each.arm.name, number(each.arm.mean), seeds, interval(each), each.verdict, *more))
    return render.clean("\n\n".join([render.columns(rows), render.columns(arms)]))


def write_page(result: SweepResult, settings: Settings) -> str:
    """Write the page of the sweep with the pack that makes pages; return the path, or "" without a page."""
    makers = [*packs.entries("group_pages").values()]
    if not makers:
        why = packs.missing_pack_message("commands", "report") or "no pack makes pages"
        render.say(f"the page of the sweep is left out: {why}")
    try:
        return "".join(str(packs.load(one)(settings, result.name, result.folder, render.tell)) for one in makers[:1])
    except (SlipwayError, StoreError, OSError) as error:
        render.say(f"the page of the sweep was not written: {error}")
        return ""
