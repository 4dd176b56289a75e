"""Command `inv sweep`: turns a sweep's name or file into runs, with plan, price, result table and page.

Ctrl-C detaches from the runs; the runs continue.
"""

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from invoke import Exit

from flows.pods.apply import pod_request
from flows.runs.follow import DETACHED
from flows.specs.launch import STAGES, LaunchSpec
from flows.supervisor import supervisor_client
from infra.errors import SlipwayError, UsageError
from infra.flags import command_words, copy_flag, flag
from infra.ledger.held_pods import gpus_of
from infra.ledger.journal import Journal
from infra.records import Offer
from infra.runs.journal_upkeep import settle
from infra.runs.lookup import scale_of
from infra.selection import preflight, registry
from infra.selection.machine_spec import LIMITS, MACHINE
from infra.settings import HELD, Settings
from infra.units import per_hour
from packs.sweeps.commands import sweep_text
from packs.sweeps.control import configurations, pods, prices, rehearsed, shared_machine
from packs.sweeps.control import evaluation as answers
from packs.sweeps.control import plan as planning
from packs.sweeps.control.begin import prepare_sweep
from packs.sweeps.control.limit import default_of
from packs.sweeps.control.plan import SweepPlan
from packs.sweeps.control.rehearsed import RehearsedSweep
from packs.sweeps.control.settings import SweepSettings
from packs.sweeps.control.summary import summary_of
from packs.sweeps.control.trials import results as kept
from packs.sweeps.control.trials import resume_sweep
from packs.sweeps.control.trials.promote import promote
from packs.sweeps.control.trials.records import EarlyStop, SweepSpec
from packs.sweeps.control.trials.results import SweepResult
from scripts.cli import context, prompts, render, session
from scripts.cli.command import BEGIN, command
from scripts.cli.flags import Output, Questions
from scripts.cli.render import columns, print_json
from scripts.cli.session import open_journal
from scripts.market import offers_table
from scripts.runs.deploy import about

SWEEP = "Sweep"


@dataclass(frozen=True, kw_only=True)
class SweepFlags(Output, Questions):
    config: str = flag(
        "",
        "name of a sweep (--list-configs lists the names), or a YAML file: `runs`, `axes`, `seeds`, `each`",
        word=True,
        group=SWEEP,
    )
    list_configs: bool = flag(False, "list the named sweeps, with pods, runs, hours and dollars", group=SWEEP)
    early_stop: bool = flag(
        False, "stop runs that are behind after a quarter of the steps, and after half", group=SWEEP
    )
    sample: int | None = flag(None, "run only this many combinations of `axes`, chosen at random", group=SWEEP)
    promote: str = flag("", "publish the artifacts of this run of a sweep under --tag", group=SWEEP, unit="RUN")
    tag: str = flag("", "with --promote: the tag (default: the name of the sweep)", group=SWEEP)
    report: bool = flag(False, "only show the table and write the page, from the results so far", group=SWEEP)
    dry_run: bool = flag(False, "show the pod and the cost of each run, and stop", group=SWEEP)
    pods: int | None = flag(None, "number of pods at once (ssh: all free machines; local: 1)", group=MACHINE, least=1)
    pack: int | None = flag(
        None,
        "rented: hold the pods from the first run to the last, with this many runs side by side on "
        "each pod, every run with separate GPUs; a sweep that describes pods always does this",
        group=MACHINE,
        unit="RUNS",
    )
    deploy_only: bool = flag(False, "rent and hold the pods, but run nothing", group=STAGES)
    no_deploy: bool = flag(
        False,
        "rent nothing: use the pods that are held for this sweep, and leave them held; runs of "
        "missing pods are skipped",
        group=STAGES,
    )
    no_sync: bool = copy_flag(LaunchSpec, "no_sync")
    no_setup: bool = copy_flag(LaunchSpec, "no_setup")
    provider: str = flag("", "local, ssh, runpod, lium, shadeform, or market (default: from .env)", group=MACHINE)
    store: str = flag("", "store for artifacts (default var/artifacts)", group=MACHINE, unit="URI")
    spend_limit: str = flag("", "rented: US dollars for all runs together", group=LIMITS, unit="USD")


# `speed`: the runs of a rehearsed sweep take real time, which must not use up the limits of the pods.
@command(
    record=SweepFlags,
    world=BEGIN,
    env=True,
    speed=20.0,
    rents=True,
    example="inv sweep examples/sweeps/rates.yaml --provider local",
)
def sweep(spec: SweepFlags) -> None:
    """Run many trainings on several pods, and compare them.

    Run it again to continue with what is missing.
    """
    settings = context.settings_of(spec)
    if spec.list_configs:
        list_configs(settings, spec.json)
        return
    if not spec.config:
        raise UsageError(
            "CONFIG is missing: give a YAML file such as examples/sweeps/rates.yaml, or a name of: ./inv "
            "sweep --list-configs"
        )
    if spec.promote or spec.report:
        show_results(spec, settings)
        return
    asked = resolve_sweep(spec, settings)
    toys = rehearsed.reduced(asked, settings.profile) if settings.rehearsal else None
    own = not settings.sources["provider"].startswith("default") and not registry.candidates(settings)[0].is_rented
    if (asked.pods or asked.hours[1]) and not own:
        price = prices.price_sweep(asked, settings, render.tell)
        if not spec.json:
            render.say(sweep_text.trials_table(asked))
            for line in sweep_text.pods_lines(asked, price):
                render.say(line)
        if spec.dry_run and asked.pods and not toys:
            if spec.json:
                print_json(described(asked, price))
            render.say("dry run: nothing was rented; models and data are checked at the start of the sweep")
            return
    asked = toys.spec if toys else asked
    with open_journal(settings) as journal:
        if spec.deploy_only:
            deploy(spec, asked, journal, settings)
            return
        planned, running = plan(spec, asked, journal, settings)
        planned.more = tuple(f"--{flag}" for flag in ("no-sync", "no-setup") if getattr(spec, flag.replace("-", "_")))
        if not spec.json:
            for line in sweep_text.toy_lines(toys) if toys else ():
                render.say(line)
            costs = prices.of_runs(planned, toys.real if toys else {}, settings)
            sweep_text.show_plan(planned, costs)
            for line in sweep_text.tracker_lines(asked, settings):
                render.say(line)
            rented = {
                one.offer.provider: (one.plan.job, one.offer)
                for one in reversed(planned.trials.values())
                if one.offer and one.plan.job
            }
            for job, offer in rented.values():  # the first offer of each vendor
                offers_table.show_ends(job.limits, offer, settings, job.on_failure)
        if planned.idle:
            render.say(f"{render.count(planned.idle, 'pod')} {'has' if planned.idle == 1 else 'have'} no run")
        if spec.dry_run:
            if spec.json:
                print_json({"lanes": planned.lanes, "idle_pods": planned.idle, "runs": rows(planned, toys, settings)})
            render.say("dry run: nothing was rented, and no run was started")
            return
        is_rented = planned.shared is not None and bool(planned.shared.entries)
        if planned.most_micro_usd or is_rented and any(one.plan.job for one in planned.trials.values()):
            prompts.confirm(spec.yes)
        command = command_of(spec, asked, settings)
        try:
            with resume_sweep.hold_sweep_lease(command, journal, settings):
                keep_watch(command, settings)
                at_work = prepare_sweep(planned, journal, running, render.tell, settings)
                at_work.run()
        except KeyboardInterrupt:
            again = context.rerun_command()
            render.say(
                f"\ndetached; started runs continue. See the runs: ./inv status. Start the remaining runs: {again}"
            )
            raise Exit(code=DETACHED) from None
    report(at_work.result, planned.idle, spec.json, settings)


def command_of(spec: SweepFlags, asked: SweepSpec, settings: Settings) -> resume_sweep.SweepCommand:
    """Return the command for the supervisor to resume the sweep after the death of this process."""
    path = Path(spec.config).expanduser()
    spec = replace(spec, config=str(path.absolute()) if path.is_file() else spec.config, dry_run=False)
    env = [f"--env={name}" for name in settings.given]
    typed = resume_sweep.command_text(["sweep", *command_words(replace(spec, yes=False, json=False)), *env])
    words = ("sweep", *command_words(replace(spec, yes=True, json=True, provider=settings.provider)), *env)
    is_here = registry.candidates(settings)[0].is_here
    return resume_sweep.SweepCommand(asked.name, words, typed, is_here)


def keep_watch(command: resume_sweep.SweepCommand, settings: Settings) -> None:
    """Ask the supervisor to resume the sweep if this process dies; for a sweep on this machine, do nothing."""
    if command.is_here:
        return
    try:
        supervisor_client.ensure(settings)
    except SlipwayError as error:
        render.tell(f"{error}; if this process is killed, continue with: {command.typed}")


def is_shared(spec: SweepFlags, asked: SweepSpec, settings: Settings) -> bool:
    """Return whether the runs share rented pods, new or already held.

    Raises UsageError for contradictory flags, and for flags unsuitable for the provider.
    """
    is_rented = registry.candidates(settings)[0].is_rented
    flags = {"--pack": spec.pack, "--deploy-only": spec.deploy_only}
    for typed in (name for name, value in flags.items() if value and not is_rented):
        raise UsageError(
            f"{typed} is for rented machines; machines of --provider {settings.provider} are not rented, "
            "and runs share their GPUs without the flag"
        )
    if not is_rented:
        practice = f"inv sweep --rehearse {shlex.quote(spec.config)}"
        preflight.refuse_money_flags(settings, {"spend-limit": spec.spend_limit}, practice=practice)
    if spec.no_deploy and (spec.pack or spec.deploy_only):
        raise UsageError("--no-deploy uses existing pods; leave out --pack and --deploy-only")
    if spec.no_deploy and spec.spend_limit:
        raise UsageError(
            "--spend-limit: with --no-deploy nothing is rented; the pods keep the limits from their creation"
        )
    if spec.pack is not None and spec.pack < 1:
        raise UsageError(f"--pack is {spec.pack}; expected at least 1")
    return is_rented and bool(spec.pack or asked.pods or spec.deploy_only or spec.no_deploy)


def plan(spec: SweepFlags, asked: SweepSpec, journal: Journal, settings: Settings) -> tuple[SweepPlan, Settings]:
    """Plan the sweep; return the plan and the settings of its runs.

    Runs on shared pods use the provider of held pods. Raises SlipwayError.
    """
    again = context.rerun_command("--with-missing")
    if not is_shared(spec, asked, settings):
        if (spec.no_sync or spec.no_setup) and registry.candidates(settings)[0].is_rented:
            raise UsageError(
                "--no-sync, --no-setup: a new machine has neither code nor an environment; use these flags "
                "with --no-deploy, or with machines of your own"
            )
        return planning.plan(asked, journal, settings, again, render.tell), settings
    running = context.settings(provider=HELD, store=spec.store)
    machines: dict[str, tuple[int, Offer | None]]
    offers: dict[str, Offer] = {}
    if spec.no_deploy:
        settle(journal, settings, render.tell)
        found = pods.find_held_pods(asked, journal, render.tell)
        machines = {op.run: (gpus_of(op), None) for op in found[: None if asked.pods else spec.pods]}
        shared = pods.SweepPods(asked.name, existing=tuple(machines))
    else:
        asked = shared_machine.with_machine(asked, spec.pack or 1, settings, render.tell)
        shared = pods.pods_to_rent(asked, spec.pack or 1, asked.num_pods, settings.provider)
        pods.check_names(shared, journal)
        offers = pods.find_offers(shared, journal, settings, render.tell)
        machines = {
            name: (one.gpu_count or (offers[name].num_gpus if name in offers else 0), offers.get(name))
            for name, one in shared.entries.items()
        }
    planned = planning.plan_on(asked, machines, shared, running, again, render.tell)
    planned.offers = offers
    if shared.entries:
        if shared.is_open:
            highs = shared_machine.highs_of(planned, offers, settings)
            planned.shared = shared = shared.with_limit(default_of(asked.name, highs or [None], journal, render.tell))
        show_pods(spec, shared, offers, settings)
    return planned, running


def show_pods(spec: SweepFlags, shared: pods.SweepPods, offers: Mapping[str, Offer], settings: Settings) -> None:
    """Show the rented pods of the sweep, with prices and limits; print no text with --json."""
    if spec.json:
        return
    for line in sweep_text.held_lines(shared, offers):
        render.say(line)
    limits = {name: pod_request(shared.entries[name], settings, lambda _: None, shared.limit)[2] for name in offers}
    rented = [(one, limits[name]) for name, one in offers.items()]
    offers_table.show_laptop_off("no further run starts on these pods", rented, settings)


def deploy(spec: SweepFlags, asked: SweepSpec, journal: Journal, settings: Settings) -> None:
    """Rent and hold the pods of a sweep. Raises Exit with code 1 when pods are missing."""
    is_shared(spec, asked, settings)
    asked = shared_machine.with_machine(asked, spec.pack or 1, settings, render.tell)
    shared = pods.pods_to_rent(asked, spec.pack or 1, asked.num_pods, settings.provider)
    pods.check_names(shared, journal)
    if shared.is_open:
        shared = shared.with_limit(default_of(asked.name, [None], journal, render.tell))
    show_pods(spec, shared, pods.find_offers(shared, journal, settings, render.tell), settings)
    if spec.dry_run:
        render.say("dry run: nothing was rented")
        return
    prompts.confirm(spec.yes)
    if shared.limit:
        shared.limit.open_budget(journal, settings)
    missing = pods.deploy(shared, journal, settings, render.tell)
    rows = [op for op in journal.ops(live=True) if op.run in shared.entries]
    if spec.json:
        print_json([about(op, settings) for op in rows])
    for op in rows:
        render.say(f"{op.run} is ready: {session.cost_of(op, scale_of(op, settings))}")
    use = f"inv sweep {shlex.quote(spec.config)} --no-deploy"
    render.say(f"next: {use}; end them: {'; '.join(f'inv down {op.run}' for op in rows)}")
    if missing:
        raise Exit(f"inv sweep: {'; '.join(missing)}", code=1)


def show_results(spec: SweepFlags, settings: Settings) -> None:
    """Show the results of an earlier sweep, found by name or file; with --promote, publish the artifact of a run."""
    has_run = (kept.folder_of(spec.config, settings) / "sweep.json").is_file()
    result = kept.load(spec.config if has_run else resolve_sweep(spec, settings).name, settings)
    if spec.report:
        report(result, 0, spec.json, settings)
        return
    said = promote(result, spec.promote, spec.tag or result.name, settings)
    if spec.json:
        print_json({"run": spec.promote, "artifact": said})
    render.say(f"{said} now points to this run. Talk to the model: ./inv chat {said}")


def resolve_sweep(spec: SweepFlags, settings: Settings) -> SweepSpec:
    """Return the sweep named by `spec.config`, with the typed overrides. Raises UsageError.

    On this machine the toy of a named sweep replaces the sweep.
    """
    vendor = registry.candidates(settings)[0]
    found = configurations.named(spec.config, settings, vendor.is_here)
    if found.name == f"{spec.config}{configurations.TOY}":
        itself = f"inv sweep {spec.config} --dry-run --provider market"
        practised = f"inv sweep {spec.config} --rehearse --dry-run"
        render.say(
            f"{spec.config} is for rented machines; this machine runs the toy version, {found.name}. The "
            f"full sweep, with the price: {itself}; without an account: {practised}"
        )
    if not vendor.is_rented:
        found = configurations.on_own(found)
    if spec.early_stop and found.early_stop is None:
        found = replace(found, early_stop=EarlyStop())
    if found.early_stop is not None:
        found = configurations.shuffle_arms(found)
    return replace(found, num_pods=spec.pods or found.num_pods, spend_limit=spec.spend_limit or found.spend_limit)


def rows(planned: SweepPlan, toys: RehearsedSweep | None, settings: Settings) -> list[dict[str, Any]]:
    """Return the trials of a plan as JSON rows."""
    costs = prices.of_runs(planned, toys.real if toys else {}, settings)
    real = {run: words for run, words, _ in rehearsed.rows(toys)} if toys else {}
    return [
        {
            "run": run,
            "arm": one.trial.arm,
            "toy_of": real.get(run),
            "pod": next((lane.pod for lane in planned.lanes if run in lane.runs), ""),
            "estimate_s": round(one.estimate_s, 1),
            "most_usd": render.usd(one.most_micro_usd),
            "usd": [render.usd(each) for each in costs[run]] if run in costs else None,
        }
        for run, one in planned.trials.items()
    ]


def described(spec: SweepSpec, price: prices.SweepPrice) -> dict[str, Any]:
    """Return the sweep's pods, hours and prices as JSON."""
    low, high = (price.total(one) for one in spec.hours)
    return {
        "sweep": spec.name,
        "about": spec.about,
        "pods": len(spec.pods),
        "runs": list(spec.trials),
        "gpu_hours": spec.gpu_hours,
        "hours": list(spec.hours),
        "idle_pods": spec.idle_pods,
        "usd": [None if one is None else render.usd(one) for one in (low, high)],
        "usd_per_pod_hour": [one.micro_usd_per_hour and render.usd(one.micro_usd_per_hour) for one in price.kinds],
        "usd_per_gpu_hour": [one.per_gpu and render.usd(one.per_gpu) for one in price.kinds],
        "prices_of": [one.source for one in price.kinds],
    }


def list_configs(settings: Settings, as_json: bool) -> None:
    """Show every named sweep, without the network or an account."""
    found = []
    table: list[tuple[str, ...]] = [("name", "pods", "runs", "GPU-hours", "hours", "dollars", "per GPU", "per pod", "")]
    for one in configurations.known(settings).values():
        try:
            spec = one.make()
        except UsageError as error:  # The other sweeps are listed all the same.
            found.append({"name": one.name, "where": one.where, "error": str(error)})
            table.append((one.name, *[""] * 7, str(error)))
            continue
        price = prices.price_sweep(spec, settings, render.tell, only_catalogue=True)
        found.append({**described(spec, price), "where": one.where})
        kind = price.kinds[0] if price.kinds else None
        each = [usd_per_hour(kind.per_gpu), usd_per_hour(kind.micro_usd_per_hour)] if kind else ["", ""]
        pods = str(len(spec.pods)) if spec.pods else "1 or more"
        hours = [f"{spec.gpu_hours:g}" if spec.gpu_hours else "", sweep_text.hours(spec), sweep_text.costs(spec, price)]
        table.append((one.name, pods, str(len(spec.trials)), *hours, *each, one.about))
    if as_json:
        print_json(found)
        return
    print(render.clean(columns(table, least=(7, 6, 3, 4))))
    own = settings.for_pack(SweepSettings).sweeps
    render.say(
        f"prices: {prices.CATALOGUE}; today's prices: ./inv sweep NAME --dry-run. Your own sweeps: functions in {own}"
    )
    render.say(
        "Before an expensive sweep, run the same sweep with few steps on one pod; --spend-limit "
        "limits all runs together"
    )


def usd_per_hour(micro_usd: int | None) -> str:
    """Format a price for a table; "" for an unknown price."""
    return "" if micro_usd is None else per_hour(micro_usd)


def report(result: SweepResult, idle: int, as_json: bool, settings: Settings) -> None:
    """Print the result table, and write the page if a pack makes pages.

    Raises Exit unless every trial is over: with code 5 when all others have reached a limit, else with code 1.
    """
    answer = answers.evaluate(result)
    found, page = summary_of(result, answer), sweep_text.write_page(result, settings)
    if as_json:
        print_json({**found, "idle_pods": idle, "page": page})
    else:
        print(sweep_text.table(result, answer))
        for name, value in found["facts"]:
            render.say(f"{name}: {value}")
        if answer.best:
            render.say(f"best: {found['best']}")
            render.say(f"keep it: {found['promote']}")
        if page:
            print(page)
    bad = [one.run for one in result.trials.values() if not one.is_over]
    is_limit = {result.trials[run].state for run in bad} == {kept.LIMIT}
    if bad:
        words = f"{len(bad)} of {len(result.trials)} runs did not finish: {', '.join(bad)}"
        raise Exit(f"inv sweep: {words}", code=5 if is_limit else 1)
