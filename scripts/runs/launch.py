"""What launch, down, resume and keep do: the plan, the run at work on it, following it to the end.

Each gets the flags as they are declared there.
"""

import contextlib
import shlex
import signal
import sys
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from invoke import Exit

from infra import job_environment
from infra.agent.job import Job, Limits
from infra.agent.limits import read_clocks
from infra.agent.state import NODE_LOST
from infra.errors import SlipwayError, UsageError, as_told
from infra.ledger import spend
from infra.ledger.journal import Fenced, Journal, Op, Taken
from infra.ledger.life_cycle import TERMINATING
from infra.names import check_name, run_name
from infra.providers import Provider, registry
from infra.records import Offer, Plan
from infra.runs import keeper as keep
from infra.runs import launch as street
from infra.runs import observe, pods, snapshot
from infra.runs.acceptance_policy import terms_for
from infra.runs.keeper import Keeper
from infra.runs.lookup import find_run, last_verdict, way
from infra.runs.settle import bring_home, end_others, settle
from infra.runs.timing import stage
from infra.selection import preflight
from infra.selection.choose import of_machines
from infra.settings import Settings
from scripts.cli import context, prompts, render
from scripts.cli.context import ROOT
from scripts.cli.invoke_patch import print_json
from scripts.cli.session import open_journal
from scripts.market import select
from scripts.models import memory_check
from scripts.runs import init_model, same_request
from scripts.runs.follow_up import hand_on, leave, say_how
from scripts.runs.logs import tell_steps
from scripts.runs.planning import (
    ask_about_made,
    hold_for,
    made_by_words,
    move_names,
    node_commands,
    plan_for,
    refuse_beside_older,
    release,
    renew,
)
from store import StoreError
from trainer.plan import CHECKPOINTS

DETACHED = 130
THEN = {"failed": "mend that, then launch again or ", NODE_LOST: "when its machine, or another, is free: "}


def launch(
    *, provider, profile, source, store, pool, host, nodes, ttl, spend_limit, idle_stop, run_name, detach, no_accept,
    wait, on_failure, with_missing, dry_run, json, yes, phase, packages, persona, seed, steps, tag,
    save_every, keep, ckpt_prefix, init, mixture, remake, keep_made, **machine,
):  # fmt: skip
    settings = context.settings(provider=provider, profile=profile, source=source, store=store)
    name = check_name(run_name) if run_name else ""
    typed = {**machine, "nodes": nodes, "pool": pool, "host": host, "ttl": ttl, "spend_limit": spend_limit,
             "idle_stop": idle_stop, "on_failure": on_failure, "save_every": save_every, "keep": keep,
             "ckpt_prefix": ckpt_prefix}  # fmt: skip
    nodes, on_failure = 1 if nodes is None else nodes, on_failure or "end"
    if nodes < 1:
        raise UsageError(f"--nodes is {nodes}; it must be at least 1")
    if on_failure not in ("keep", "end"):
        raise UsageError(f"--on-failure {on_failure}: known: end, keep")
    work = {"phase": phase, "packages": packages, "persona": persona, "seed": seed, "steps": steps, "tag": tag,
            "save_every": save_every, "keep": keep, "ckpt_prefix": ckpt_prefix, "mixture": mixture,
            "made": made_by_words(remake, keep_made), "with_missing": with_missing,
            "init": init_model.look(init, settings) if init else None}  # fmt: skip
    candidates = registry.candidates(settings)
    vendor = candidates[0]
    limits = preflight.limits_for(settings, vendor.is_rented, ttl, spend_limit, render.say, idle_stop)
    request = select.request_for(machine, name or "new", candidates, nodes, pool, host)
    chosen = () if settings.sources["provider"].startswith("default") else tuple(one.name for one in candidates)
    asked = same_request.asking(typed, request, limits, name=name, vendors=chosen)
    limits = replace(limits, spend_micro_usd=limits.spend_micro_usd and limits.spend_micro_usd // nodes)
    with open_journal(settings) as journal:
        settle(journal, settings, render.tell)
        plan = plan_for(settings, request, vendor, limits, **work)
        if not dry_run and (made := ask_about_made(plan, yes)):
            plan = plan_for(settings, request, vendor, limits, **(work := {**work, "made": made}))
        offers: list[Offer] = []
        before = last_on(plan, journal)
        at_work = before if before and before.is_live and plan.job else None
        if at_work:
            asked.check(at_work)
        if vendor.is_rented and plan.job and not at_work:
            offers = select.find(candidates, request, settings, wait)
            plan = plan_for(
                settings, request, vendor, limits, **work, flops_per_s=select.work_rate(settings, offers[0])
            )
        if plan.job:
            plan = replace(plan, job=replace(plan.job, on_failure=on_failure))
        if not json:
            render.say(f"provider {settings.provider} ({settings.sources['provider']})")
            render.show_plan(plan)
            if offers:
                select.show(plan, offers, settings, on_failure)
        if offers:
            offers = preflight.preflight(
                plan, offers, settings, with_missing, select.again("--with-missing"), render.tell
            )
        elif plan.job and not at_work:
            if vendor.is_here:
                memory_check.check(memory_check.phases_of(plan.job.steps), request.num_gpus)
            if dry_run:
                of_machines(vendor, request)  # a plan that no machine can carry out is no plan
        if dry_run and at_work and not json:
            render.say(f"{at_work.run} is at it already; a launch follows it")
        if dry_run or plan.job is None:
            if not dry_run:
                move_names(plan)
            report_plan(plan, journal, json, dry_run)
            return
        if offers:
            is_named = all(machine[flag] for flag in ("cloud", "region", "instance_type"))
            offers = prompts.pick(offers, is_named, yes)
            if not offers:
                render.say("nothing was rented")
                return
        known = {op.token for op in journal.ops()}
        if at_work:
            op = go_on(at_work, journal, settings)
        else:
            op = begin(plan, offers, vendor, journal, settings, asked, no_accept)
        if not vendor.is_here and op.token not in known:
            snapshot.keep_code(op, ROOT, settings.homes / op.run)
        if detach:
            leave(op, settings, json)
            return
        conclude(op, journal, settings, json)


def report_plan(plan: Plan, journal: Journal, as_json: bool, dry_run: bool) -> None:
    last = last_on(plan, journal)
    if as_json:
        state = "planned" if plan.job else "succeeded"
        said = {"run": last.run if last else None, "state": state, "ran": [], **render.plan_json(plan)}
        print_json({**said, "commands": node_commands(plan)})
    elif plan.job is None:
        moved = "".join(f"; {one.name} stands for it now" for one in plan.pointers) if not dry_run else ""
        render.say(f"everything is here{moved}; nothing to do. {talk_to(plan.artifacts[-1].name, plan.store)}")
    elif dry_run:
        for line in node_commands(plan):
            render.say(line)
        render.say("dry run: nothing was started")


def begin(
    plan: Plan,
    offers: Sequence[Offer],
    vendor: Provider,
    journal: Journal,
    settings: Settings,
    asked: same_request.Asking,
    unchecked: bool = False,
) -> Op:
    """The run of this plan: the one that was cut off, a new one, or one that somebody else has just begun.

    `offers`: of rented machines, in the order in which they are tried.
    """
    before, name = last_on(plan, journal), asked.name
    taken = [op.run for op in journal.ops()]
    if before and not name and last_verdict(before, settings).get("state") != "succeeded":
        name = before.run
        render.say(f"going on with {name}")
    name = name or run_name(taken)
    plan = replace(plan, request=replace(plan.request, run=name))
    refuse_beside_older(plan, journal.ops(live=True))
    hold_for(plan, name, journal.installation)
    move_names(plan)
    try:
        if not vendor.is_rented:
            with stage("connect", render.say):
                offers = of_machines(vendor, plan.request)
        terms = replace(terms_for(settings, vendor, unchecked), asked=asked.record())
        vendors, secrets = registry.vendors(settings), job_environment.secrets(settings)
        return street.start(plan, offers, vendors, journal, ROOT, secrets, render.say, terms)
    except Taken as taken_by:
        if taken_by.op.run != name:
            release(plan.store, name, journal.installation)
        if (taken_by.op.target, taken_by.op.store) != (plan.target, plan.store):
            raise
        asked.check(taken_by.op)
        return attach(taken_by.op, journal, settings)
    except SlipwayError:
        if not any(op.run == name for op in journal.ops(live=True)):
            release(plan.store, name, journal.installation)
        raise


def last_on(plan: Plan, journal: Journal) -> Op | None:
    """The newest pod that was to make the same, in the same store."""
    return next((op for op in reversed(journal.ops()) if (op.target, op.store) == (plan.target, plan.store)), None)


def go_on(op: Op, journal: Journal, settings: Settings) -> Op:
    """A run that was stopped, or lost, at work again; one that has lost a node is left to its keeper."""
    if pods.is_in_pieces(op, journal):
        return op
    try:
        return (attach if op.is_live else again)(op, journal, settings)
    except Taken as taken_by:
        return attach(taken_by.op, journal, settings)


def attach(op: Op, journal: Journal, settings: Settings) -> Op:
    """Join a run that another launch began; bring it back when it is lost."""
    deadline = time.monotonic() + street.ARM_S
    while op.state in ("PLANNED", "CREATING", "BOOTING") and time.monotonic() < deadline:
        time.sleep(0.1)
        op = journal.op(op.token)
    if observe.is_alive(op, way(settings, op)):
        render.say(f"{op.run} is at it already; following it")
        return op
    return again(op, journal, settings)


def again(op: Op, journal: Journal, settings: Settings, limits: Limits | None = None, asked: str = "") -> Op:
    """Bring back a run that has stopped: on its pod where that is still there, else on another one.

    `limits`: of a rented run, as `Keeper.elsewhere` takes them; `asked`: what is on record of it then.
    """
    render.say(f"going on with {op.run}")
    vendor = registry.provider(settings, op.vendor)
    if vendor.is_rented and not op.is_live:
        keeper = Keeper.of(op, journal, settings, render.tell)
        keeper.terms = replace(keeper.terms, asked=asked)
        return keeper.elsewhere(op, limits=limits)
    return street.resume(op, vendor, journal, job_environment.secrets(settings))


def conclude(op: Op, journal: Journal, settings: Settings, as_json: bool) -> None:
    """Keep the run to its verdict, settle the row, tell the result. Ctrl-C, and a hang-up, leave the run at work."""
    keeper = Keeper.of(op, journal, settings, render.tell)
    renew(op, journal.installation)
    with hang_up() as hung_up:
        try:
            with keeper.keeping(op.run):
                progress, verdict = show_progress(op, keeper, quiet=as_json)
        except (KeyboardInterrupt, OSError) as error:
            if isinstance(error, OSError) and not hung_up:  # else it is the terminal that is gone
                raise
            kept = hand_on(op, settings)  # before anything is said, which may fail
            render.say(f"\ndetached; {op.run} goes on. {kept}")
            say_how(op, as_json)
            raise Exit(code=DETACHED) from None
    settle(journal, settings, render.tell)
    end_others(op, journal, settings, verdict["state"], render.tell)
    succeeded = verdict["state"] == "succeeded"
    if as_json:
        print_json(
            {
                "run": op.run,
                "state": verdict["state"],
                "ran": [step["name"] for step in progress.get("steps", ()) if step["state"] == "done"],
                "steps": render.steps_json(progress),
                "reason": verdict["reason"] or None,
                "recoveries": progress["recoveries"],
            }
        )
    elif succeeded:
        total = sum(step["elapsed_s"] for step in progress["steps"])
        steps = Job.from_json(op.job).steps
        then = talk_to(steps[-1].config["making"]["name"], op.store) if steps else f"Next: ./inv pod.run {op.run}"
        render.say(f"{op.run} succeeded in {render.duration(total)}. {then}")
    if succeeded:
        snapshot.forget(keeper.folder)
        release(op.store, op.run, journal.installation)
    else:
        logs = f"./inv logs {op.run}{' --errors' if verdict['state'] == 'failed' else ''}"
        if verdict.get("tail") and not as_json:
            render.say(render.clean(verdict["tail"]))
        reason = f": {render.clean(verdict['reason'])}" if verdict["reason"] else ""
        code = 5 if verdict["state"] == "limit" else 1
        then = THEN.get(verdict["state"], "go on with ") + f"./inv resume {op.run}"
        if journal.op(op.token).is_live and op.stays:
            then = f"mend that, then: ./inv {'pod.run' if Job.from_json(op.job).steps else 'pod.setup'} {op.run}"
        raise Exit(f"{op.run} {verdict['state']}{reason}; see {logs}; {then}", code=code)


@contextlib.contextmanager
def hang_up() -> Iterator[list[int]]:
    """Meanwhile a terminal that is closed counts as Ctrl-C, unless somebody (`nohup`) wanted it ignored."""
    heard: list[int] = []

    def note(number: int, _: object) -> None:
        heard.append(number)
        raise KeyboardInterrupt

    before = signal.getsignal(signal.SIGHUP)
    if before != signal.SIG_IGN:
        signal.signal(signal.SIGHUP, note)
    try:
        yield heard
    finally:
        signal.signal(signal.SIGHUP, before)


def talk_to(artifact: str, store: str) -> str:
    """The command for a model just made, which need not be the one that is meant when nothing is said."""
    usual = context.settings()
    where = "" if store == usual.store and not usual.rehearsal else f"SLIPWAY_STORE={shlex.quote(store)} "
    model = "" if artifact == f"{CHECKPOINTS['sft']}/{usual.profile}" else f" {artifact}"
    return f"Talk to it: {where}./inv chat{model}"


def show_progress(op: Op, keeper: Keeper, quiet: bool) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """Bars on a terminal, a line per step elsewhere; returns the last progress and the verdict."""
    seen = keeper.keep(op)
    if not quiet:
        render.say(f"run {op.run} in {pods.where(op)}")
    if quiet:
        return _last(seen)
    if not sys.stderr.isatty():
        return _last(_lines(seen))
    from rich.live import Live

    with Live(console=render.console(), refresh_per_second=8) as live:
        return _last(_redraw(seen, live))


def _last(seen: Iterator[Any]) -> Any:
    return deque(seen, maxlen=1).pop()


def _redraw(seen: Iterator[Any], live: Any) -> Iterator[Any]:
    for progress, verdict in seen:
        live.update(render.steps_table(progress, time.time()))
        yield progress, verdict


def _lines(seen: Iterator[Any]) -> Iterator[Any]:
    """A line when a step begins and ends, and now and then between."""
    told: dict[str, tuple[str, float]] = {}
    for progress, verdict in seen:
        tell_steps(progress, told)
        yield progress, verdict


def down(run, all, json):
    settings = context.settings()
    problems = list[SlipwayError]()
    with open_journal(settings) as journal:
        if all or (run and journal.service(run)):
            from scripts.services import controller_client

            for one in [one.name for one in journal.services()] if all else [run]:  # else they replace what is ended
                try:
                    controller_client.finish(one, settings, journal)
                    render.say(f"{one}: ended, nothing of it runs")
                except Exception as error:  # what else there is, is to end all the same
                    problems.append(as_told(error, one))
            if not all:
                raise_worst(problems)
                if json:
                    print_json({"ended": [run]})
                return
        if all:
            live = journal.ops(live=True)
        else:
            op = find_run(journal, run)
            beside = pods.aside_of(pods.run_of(op), journal)
            if pods.rank_of(op):
                live = [op, *(one for one in beside if one.run == op.run)]
            else:
                live = [*pods.nodes_of(op, journal), *beside]
        ended = []
        for op in dict.fromkeys(live):
            try:
                end(op, journal, settings)
                ended.append(op.run)
            except Exception as error:  # likewise
                problems.append(as_told(error, op.run))
        raise_worst(problems)
        if json:
            print_json({"ended": ended})
        elif not live:
            render.say("nothing is running")


def raise_worst(problems: Sequence[SlipwayError]) -> None:
    """Tell them all; the one with the highest exit code is raised."""
    ordered = sorted(problems, key=lambda one: one.exit_code)
    for one in ordered[:-1]:
        render.say(render.clean(str(one)))
    if ordered:
        raise ordered[-1]


def end(op: Op, journal: Journal, settings: Settings) -> None:
    """Raises SlipwayError when it is not proven that nothing of the pod runs."""
    was_live, vendor = op.is_live, registry.provider(settings, op.vendor)
    has_words = was_live and op.address and op.slot >= 0
    if has_words and vendor.is_rented:  # nothing can be asked of it afterwards
        op = last_rites(op, vendor, journal, settings)
    pods.end(vendor, op, journal)
    keep.end_keeper(op.run, journal)
    if has_words and not vendor.is_rented:
        bring_home(op, vendor, settings)
    render.say(f"{op.run}: {'ended, nothing of it runs' if was_live else 'had ended already'}")


def last_rites(op: Op, vendor: Provider, journal: Journal, settings: Settings) -> Op:
    """Of a rented pod: it saves, and what it says is brought home. One that is deaf is ended all the same."""
    while op.is_live and op.state != TERMINATING:  # from then on nobody brings it back
        try:
            op = journal.advance(op, "end", **pods.ASKED_FOR)
        except Fenced:  # who follows it has just written something down
            op = journal.op(op.token)
    if not op.is_live:
        return op
    keep.end_keeper(op.run, journal, patience_s=0.0)  # it would end the pod as soon as that has a verdict
    render.say(f"{op.run}: saving and leaving")
    try:
        pods.stop_work(vendor, op)
        bring_home(op, vendor, settings)
    except (SlipwayError, StoreError) as error:
        render.say(render.clean(f"{op.run}: {error}"))
    return op


def stop(run):
    name = run or "RUN"
    raise UsageError(
        "no pod is stopped: the one vendor that can would bill its disk at twice the rate, and may have no GPU for it "
        f"later. End it: inv down {name}; go on from its checkpoints: inv resume {name}"
    )


def resume(run, spend_limit, ttl, detach, json):
    settings = context.settings()
    with open_journal(settings) as journal:
        settle(journal, settings, render.tell)
        op = find_run(journal, run)
        if op.slot < 0 and pods.rank_of(op) > 0:
            raise UsageError(f"{op.run} was a node of {pods.run_of(op)}; run: inv resume {pods.run_of(op)}")
        if op.slot >= 0 and last_verdict(op, settings).get("state") == "succeeded":
            raise UsageError(f"{op.run} has succeeded; there is nothing to go on with")
        if op.is_live and op.stays and street.is_idle(op, way(settings, op)):
            raise UsageError(f"{op.run} is at no work; give it some: inv pod.run {op.run}")
        limits = more_for(op, journal, settings, spend_limit, ttl)
        if limits:
            op = again(op, journal, settings, limits, same_request.with_limits(op.asked, ttl, spend_limit, limits))
        else:
            op = go_on(op, journal, settings)
        if detach:
            leave(op, settings, json)
        else:
            conclude(op, journal, settings, json)


def more_for(op: Op, journal: Journal, settings: Settings, spend_limit: str, ttl: str) -> Limits | None:
    """Other limits of a run, as `Keeper.elsewhere` takes them; None when none are asked for. Raises UsageError."""
    if not spend_limit and not ttl:
        return None
    if not registry.provider(settings, op.vendor).is_rented:
        raise UsageError(f"{op.run} costs nothing; --spend-limit and --ttl are for rented machines")
    if op.is_live:
        raise UsageError(
            f"{op.run} has its pod still, with the limits that it was rented with; first: inv down {op.run}"
        )
    limits = preflight.limits_for(settings, True, ttl, spend_limit, render.say)
    if limits.spend_micro_usd is not None:
        rows = pods.rows_of(op.run, pods.size_of(op), journal)
        spent = sum(spend.spent(row, read_clocks(), settings.clock_scale) for row in rows)
        if spent >= limits.spend_micro_usd:
            raise UsageError(f"{op.run} has cost {render.cents(spent)} USD already; give a --spend-limit above that")
    return limits


def keep_(run, detach, json):
    settings = context.settings()
    with open_journal(settings) as journal:
        if run and journal.service(run):
            from scripts.services import controller_client

            controller_client.look_after(run, settings, journal, json)
            return
        op = find_run(journal, run)
        holder = journal.holder(keep.lease_name(op.run))
        if holder:
            state, said = "kept", f"{op.run} is kept by process {holder.pid}"
        elif op.is_live and op.stays and street.is_idle(op, way(settings, op)):
            state, said = "idle", f"{op.run} is at no work; its guard holds it"
        elif pods.is_over(op):
            state, said = "over", f"{op.run} is over; run: inv status {op.run}"
        elif detach:
            leave(op, settings, json)
            return
        else:
            conclude(op, journal, settings, json)
            return
        render.say(said)
        if json:
            print_json({"run": op.run, "state": state, "keeper": holder.pid if holder else None})
