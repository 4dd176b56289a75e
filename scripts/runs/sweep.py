"""What `inv sweep` does: a file of runs -> the plan and its price -> all of them, and a table. Ctrl-C detaches all."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from invoke import Exit

from flows import sweep as use_case
from flows.follow import DETACHED
from flows.sweep import Sweep, SweepRun
from infra import strict_yaml
from infra.errors import UsageError
from infra.money import in_usd
from scripts.cli import context, prompts, render
from scripts.cli.invoke_patch import print_json
from scripts.cli.render import columns
from scripts.cli.session import open_journal
from scripts.runs.flags import SweepFlags


def sweep(spec: SweepFlags) -> None:
    if not spec.file:
        raise UsageError("FILE is missing: inv sweep runs.yaml, with `runs:` and below it `- name: a`, `  seed: 1`")
    try:
        document = strict_yaml.read(Path(spec.file))
    except FileNotFoundError:
        raise UsageError(f"there is no {spec.file}") from None
    runs = use_case.read(str(Path(spec.file)), document, spec.pods)
    settings = context.settings(provider=spec.provider)
    with open_journal(settings) as journal:
        planned = use_case.plan(runs, journal, settings, context.again("--with-missing"), render.tell)
    if not spec.json:
        show_plan(planned)
    if planned.idle:
        render.say(f"{render.count(planned.idle, 'pod')} {'has' if planned.idle == 1 else 'have'} no run")
    if spec.dry_run:
        if spec.json:
            rows = [row_json(run) for run in planned.runs.values()]
            print_json({"lanes": planned.lanes, "idle_pods": planned.idle, "runs": rows})
        return
    if planned.micro_usd:
        prompts.confirm(spec.yes)
    try:
        planned.go()
    except KeyboardInterrupt:
        render.say(f"\ndetached; what runs goes on. See it: ./inv status. Go on with the rest: ./inv sweep {spec.file}")
        raise Exit(code=DETACHED) from None
    report(planned.runs, planned.idle, spec.json)


def show_plan(planned: Sweep) -> None:
    rows = [("pod", "run", "about", "")]
    for lane in planned.lanes:
        for name in lane.runs:
            run = planned.runs[name]
            rows.append((lane.pod, name, render.duration(run.estimate_s), "" if run.plan.job else "everything is here"))
    render.say(columns(rows))
    longest_s = max(lane.estimate_s for lane in planned.lanes)
    what = f"{render.count(len(planned.runs), 'run')} on {render.count(len(planned.lanes), 'pod')}"
    render.say(f"{what}, about {render.duration(longest_s)} (estimates, one by one)")
    if planned.micro_usd:
        render.say(f"each on a machine that is rented for it: {in_usd(planned.micro_usd)} together at most")


def report(runs: Mapping[str, SweepRun], idle: int, as_json: bool) -> None:
    """Print a line for each run of a sweep. Raises Exit with code 1 unless all have succeeded."""
    rows = [("run", "pod", "state", "seconds", "loss", "")]
    for run in runs.values():
        seconds = "" if run.seconds is None else f"{run.seconds:.1f}"
        loss = "" if run.loss is None else f"{run.loss:.4f}"
        rows.append((run.name, run.pod, run.state, seconds, loss, run.reason))
    if as_json:
        print_json({"runs": [row_json(run) for run in runs.values()], "idle_pods": idle})
    else:
        print(render.clean(columns(rows)))
    bad = [run.name for run in runs.values() if run.state != "succeeded"]
    if bad:
        raise Exit(f"inv sweep: {len(bad)} of {len(runs)} runs have not succeeded: {', '.join(bad)}", code=1)


def row_json(run: SweepRun) -> dict[str, Any]:
    return {
        "run": run.name, "pod": run.pod, "state": run.state, "seconds": run.seconds, "loss": run.loss,
        "estimate_s": round(run.estimate_s, 1), "most_usd": render.usd(run.micro_usd), "reason": run.reason or None,
    }  # fmt: skip
