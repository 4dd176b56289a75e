"""What `inv sweep` does: a name or a file -> its runs, the plan and the price -> all of them, a table and a page.

Ctrl-C detaches all that runs.
"""

from dataclasses import replace
from typing import Any

from invoke import Exit

from flows.follow import DETACHED
from flows.sweeps import answer as answers
from flows.sweeps import configurations, prices, work
from flows.sweeps import plan as planning
from flows.sweeps import results as kept
from flows.sweeps.plan import SweepPlan
from flows.sweeps.promote import promote
from flows.sweeps.records import EarlyStop, SweepSpec
from flows.sweeps.results import SweepResult
from infra.errors import UsageError
from infra.settings import Settings
from scripts.cli import context, prompts, render
from scripts.cli.invoke_patch import print_json
from scripts.cli.render import columns
from scripts.cli.session import open_journal
from scripts.runs import sweep_text
from scripts.runs.flags import SweepFlags


def sweep(spec: SweepFlags) -> None:
    settings = context.settings_of(spec)
    if spec.list_configs:
        list_configs(settings, spec.json)
        return
    if not spec.config:
        raise UsageError("CONFIG is missing: a YAML file such as examples/sweeps/rates.yaml, or a name; "
                         "./inv sweep --list-configs shows those")  # fmt: skip
    if spec.promote or spec.report:
        look_back(spec, settings)
        return
    asked = asked_for(spec, settings)
    if asked.pods:
        price = prices.of(asked, settings, render.tell)
        if not spec.json:
            render.say(sweep_text.trials_table(asked))
            for line in sweep_text.pods_lines(asked, price):
                render.say(line)
        if spec.dry_run:
            if spec.json:
                print_json(described(asked, price))
            render.say("dry run: nothing was rented; models and data are looked at when it begins")
            return
    with open_journal(settings) as journal:
        planned = planning.plan(asked, journal, settings, context.again("--with-missing"), render.tell)
        if not spec.json:
            sweep_text.show_plan(planned)
        if planned.idle:
            render.say(f"{render.count(planned.idle, 'pod')} {'has' if planned.idle == 1 else 'have'} no run")
        if spec.dry_run:
            if spec.json:
                print_json({"lanes": planned.lanes, "idle_pods": planned.idle, "runs": rows(planned)})
            return
        if planned.most_micro_usd:
            prompts.confirm(spec.yes)
        at_work = work.begin(planned, journal, settings, render.tell)
        try:
            at_work.go()
        except KeyboardInterrupt:
            again = context.again()
            render.say(f"\ndetached; what runs goes on. See it: ./inv status. Go on with the rest: {again}")
            raise Exit(code=DETACHED) from None
    report(at_work.result, planned.idle, spec.json)


def look_back(spec: SweepFlags, settings: Settings) -> None:
    """Show a sweep that has run, by its name or its file, or publish what one of its runs has made."""
    has_run = (kept.folder_of(spec.config, settings) / "sweep.json").is_file()
    result = kept.load(spec.config if has_run else asked_for(spec, settings).name, settings)
    if spec.report:
        report(result, 0, spec.json)
        return
    said = promote(result, spec.promote, spec.tag or result.name, settings)
    if spec.json:
        print_json({"run": spec.promote, "artifact": said})
    render.say(f"{said} stands for it now. Talk to it: ./inv chat {said}")


def asked_for(spec: SweepFlags, settings: Settings) -> SweepSpec:
    """Return the sweep, with what was typed beside its name. Raises UsageError."""
    found = configurations.named(spec.config, settings)
    if spec.early_stop and found.early_stop is None:
        found = replace(found, early_stop=EarlyStop())
    if found.early_stop is not None:
        found = configurations.by_chance(found)
    return replace(found, num_pods=spec.pods or found.num_pods, spend_limit=spec.spend_limit or found.spend_limit)


def rows(planned: SweepPlan) -> list[dict[str, Any]]:
    """Return the trials of a plan for a program."""
    return [
        {"run": run, "arm": one.trial.arm, "pod": next(lane.pod for lane in planned.lanes if run in lane.runs),
         "estimate_s": round(one.estimate_s, 1), "most_usd": render.usd(one.most_micro_usd)}
        for run, one in planned.trials.items()
    ]  # fmt: skip


def described(spec: SweepSpec, price: prices.SweepPrice) -> dict[str, Any]:
    """Return a sweep whose pods are described for a program."""
    low, high = (price.total(one) for one in spec.hours)
    return {
        "sweep": spec.name, "about": spec.about, "pods": len(spec.pods), "runs": list(spec.trials),
        "gpu_hours": spec.gpu_hours, "hours": list(spec.hours), "idle_pods": spec.idle_pods,
        "usd": [None if one is None else render.usd(one) for one in (low, high)],
        "usd_per_pod_hour": [one.micro_usd_per_hour and render.usd(one.micro_usd_per_hour) for one in price.kinds],
        "usd_per_gpu_hour": [one.per_gpu and render.usd(one.per_gpu) for one in price.kinds],
        "prices_of": [one.source for one in price.kinds],
    }  # fmt: skip


def list_configs(settings: Settings, as_json: bool) -> None:
    """Show every sweep that has a name. Neither the network nor an account is needed."""
    found = []
    table: list[tuple[str, ...]] = [("name", "pods", "runs", "GPU-hours", "hours", "dollars", "per GPU", "per pod", "")]
    for one in configurations.known(settings).values():
        spec = one.make()
        price = prices.of(spec, settings, render.tell, only_catalogue=True)
        found.append({**described(spec, price), "where": one.where})
        kind = price.kinds[0] if price.kinds else None
        each = [usd_per_hour(kind.per_gpu), usd_per_hour(kind.micro_usd_per_hour)] if kind else ["", ""]
        pods = str(len(spec.pods)) if spec.pods else "1 or more"
        hours = [f"{spec.gpu_hours:g}" if spec.pods else "", sweep_text.hours(spec), sweep_text.costs(spec, price)]
        table.append((one.name, pods, str(len(spec.trials)), *hours, *each, one.about))
    if as_json:
        print_json(found)
        return
    print(render.clean(columns(table)))
    render.say(
        f"prices: {prices.CATALOGUE}; today's: ./inv sweep NAME --dry-run. Your own: functions in {settings.sweeps}"
    )
    render.say("Before an expensive one: the same with few steps on one pod, and --spend-limit for all runs together")


def usd_per_hour(micro_usd: int | None) -> str:
    """Return a price in a table; "" where there is none."""
    return "" if micro_usd is None else f"{render.usd(micro_usd)} USD/h"


def report(result: SweepResult, idle: int, as_json: bool) -> None:
    """Print the table, and write the page. Raises Exit (5 for a limit, else 1) unless all ended as was wanted."""
    answer = answers.of(result)
    page = sweep_text.write_page(result, answer)
    if as_json:
        print_json(sweep_text.as_json(result, answer, idle, str(page)))
    else:
        print(sweep_text.table(result, answer))
        for name, value in sweep_text.facts(answer, result):
            render.say(f"{name}: {value}")
        if answer.best:
            render.say(f"best: {answers.command_line(answer.best.trials[0])}")
            render.say(f"keep it: {sweep_text.promote_line(result, answer)}")
        print(page)
    bad = [one.run for one in result.trials.values() if not one.is_over]
    is_limit = {result.trials[run].state for run in bad} == {kept.LIMIT}
    if bad:
        words = f"{len(bad)} of {len(result.trials)} runs have not come to their end: {', '.join(bad)}"
        raise Exit(f"inv sweep: {words}", code=5 if is_limit else 1)
