"""The commands launch, resume and keep: the plan, the run at work on it, following it to the end.

Each gets the flags as they are declared there.
"""

import contextlib
import os
import shlex
import signal
import sys
import time
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from invoke import Exit

from flows.jobs import request as jobs
from flows.jobs import training
from flows.jobs.work import JobWork
from flows.planning.training_plan import Work, node_commands
from flows.pods.held_pods import scale_of
from flows.runs import follow, run_leases
from flows.runs import launch as use_case
from flows.runs import resume as resuming
from flows.specs import variables
from flows.supervisor import due, supervisor_client
from infra.agent.limits import read_clocks
from infra.agent.state import NODE_LOST
from infra.errors import UsageError
from infra.flags import given
from infra.jobs.job_file import JobFile
from infra.ledger import service_rows, spend
from infra.ledger.journal import Journal
from infra.ledger.leases import keeper_lease
from infra.ledger.op import Op
from infra.ledger.service_rows import service_lease
from infra.records import Plan
from infra.runs import pods
from infra.runs.follow import Seen
from infra.runs.lookup import find_run
from infra.runs.settle import settle
from infra.selection import registry
from infra.selection.preflight import with_most
from infra.settings import Settings
from scripts.cli import context, plan_text, prompts, render, steps_text
from scripts.cli.invoke_patch import print_json
from scripts.cli.session import open_journal
from scripts.market import offers_table
from scripts.runs.deploy import deploy
from scripts.runs.flags import NOT_OF_THE_PLAN, KeepFlags, LaunchFlags
from scripts.runs.logs import tell_steps
from serve.processes import controller_client, controller_process
from store import moving_line, packs
from trainer.records.phase_registry import PHASES, USUAL

THEN = {"failed": "mend that, then launch again or ", NODE_LOST: "when its machine, or another, is free: "}


def launch(spec: LaunchFlags) -> None:
    file = jobs.load(spec, spec.file, spec.cmd, spec.script, spec.workdir)
    if file:
        spec = replace(spec, provider=jobs.provider_of(file, spec))
    if spec.no_deploy:
        spec = use_case.on_held(spec)
    settings, names_tag = context.settings_of(spec), False
    if file and training.is_training(file):
        names_tag = not spec.tag
        context.give([f"{name}={value}" for name, value in training.variables(file, settings).items()])
        spec, file = training.spec_of(file, spec, settings, render.tell), None
        settings = context.settings_of(spec)
    elif not file:
        spec = variables.applied(spec, settings.given)
        settings = context.settings_of(spec)
    resolved = own_job(file, spec, settings) if file else use_case.understand(spec, settings, names_tag)
    if spec.deploy_only:
        is_rented = registry.candidates(settings)[0].is_rented
        limits = with_most(resolved.limits, is_rented, render.tell)
        narrow = use_case.narrow_held(resolved, settings)
        deploy((resolved.request, *resolved.others), resolved.is_ordered, limits, spec, settings, narrow)
        return
    with open_journal(settings) as journal:
        with moving_line.waiting("looking at what exists, and what the rest costs"):
            settle(journal, settings, render.tell, own=[settings.provider] if spec.dry_run else None)
            found = use_case.prepare(resolved, journal, settings, render.tell)
        if found.is_open:
            assert isinstance(resolved.work, Work)
            resolved = replace(resolved, work=replace(resolved.work, made=prompts.ask_about_made(found.plan, spec.yes)))
            found = use_case.prepare(resolved, journal, settings, render.tell)
        plan, at_work = found.plan, found.at_work
        if not spec.json:
            render.say(f"provider {settings.provider} ({settings.sources['provider']})")
            plan_text.show_plan(plan)
            if found.offers:
                offers_table.show(plan, found.offers, settings, spec.on_failure or "end", spec.self_end)
        found = use_case.check(found, settings, context.again("--with-missing"), render.tell)
        if spec.dry_run and at_work and not spec.json:
            render.say(f"{at_work.run} is already running it; a launch would follow it")
        if spec.dry_run or plan.job is None:
            if not spec.dry_run:
                run_leases.move_names(plan)
            report_plan(plan, journal, spec)
            return
        if found.to_ask:
            prompts.ask_to_send(found.to_ask, use_case.refusal(found.to_ask), spec.yes)
            found = replace(found, may_send=True)
        if found.offers:
            found = ask_which(found, spec, settings)
            if not found.offers:
                render.say("nothing was rented")
                return
            for warning in found.warnings:
                render.say(warning)
                prompts.confirm(spec.yes)
        with supervisor_client.handing_on(settings):
            with moving_line.waiting("the run begins"):
                op = use_case.start(found, journal, settings, render.tell)
            if due.is_watch_wanted(journal, settings):
                supervisor_client.ensure(settings)
            if spec.detach:
                leave(op, settings, spec.json)
                return
            conclude(op, journal, settings, spec.json)


def ask_which(found: use_case.Launch, spec: LaunchFlags, settings: Settings) -> use_case.Launch:
    """Return the launch on the offer that the user picks; without offers where the user wants none.

    Where nothing on a finished pod would end that pod, the question offers the two ways that do with the laptop off.
    """
    is_named = bool(spec.cloud and spec.region and spec.instance_type)
    while True:
        takes_self_end = use_case.takes_self_end(found, settings)
        is_followed_here = takes_self_end and not offers_table.always_on_here(settings)
        machines = {one.letter: one for one in packs.always_on_machines()} if is_followed_here else {}
        others = (
            {"s": "the pod deletes itself when its work is over, also with the laptop off"} if takes_self_end else {}
        )
        others |= {letter: one.answer for letter, one in machines.items()}
        picked = prompts.pick_or(list(found.offers), is_named, spec.yes, others)
        if picked == "s":
            try:
                found = use_case.with_self_end(found, settings)
                render.say("--self-end: the pod deletes itself when its work is over")
            except UsageError as error:
                render.say(f"{error}; nothing was rented yet")
        elif isinstance(picked, str):
            render.say(machines[picked].how(context.again))
            return use_case.picked(found, [], settings)
        else:
            return use_case.picked(found, picked, settings)


def own_job(file: JobFile, spec: LaunchFlags, settings: Settings) -> use_case.ResolvedLaunch:
    """Return the launch of a user's own job; its secrets are then in the environment of this process and its keeper."""
    resolved = jobs.understand(spec, file, jobs.secrets_of(spec.secret, os.environ), settings)
    assert isinstance(resolved.work, JobWork)
    os.environ.update(resolved.work.secrets)
    return resolved


def report_plan(plan: Plan, journal: Journal, spec: Any) -> None:
    """Show a plan that nothing is done about. `spec`: the flags of a command that has `--dry-run` and `--json`."""
    last, dry_run = use_case.last_on(plan, journal), spec.dry_run
    if spec.json:
        state = "planned" if plan.job else "succeeded"
        said = {"run": last.run if last else None, "state": state, "ran": [], **plan_text.plan_json(plan)}
        print_json({**said, "commands": node_commands(plan), "flags": given(spec, NOT_OF_THE_PLAN)})
    elif plan.job is None:
        moved = "".join(f"; {one.name} stands for it now" for one in plan.pointers) if not dry_run else ""
        render.say(f"everything is here{moved}; nothing to do. {talk_to(plan.artifacts[-1].name, plan.store)}")
    elif dry_run:
        for line in node_commands(plan):
            render.say(line)
        render.say("dry run: nothing was started")


def conclude(op: Op, journal: Journal, settings: Settings, as_json: bool) -> None:
    """Keep the run to its verdict, settle the row, tell the result. Ctrl-C, and a hang-up, leave the run at work."""
    with hang_up() as hung_up:
        try:
            with follow.keeping(op, journal, settings, render.tell) as seen:
                progress, verdict = show_progress(op, seen, as_json, scale_of(op, settings))
        except (KeyboardInterrupt, OSError) as error:
            if isinstance(error, OSError) and not hung_up:  # else it is the terminal that is gone
                raise
            kept = supervisor_client.hand_on(op, settings)  # before anything is said, which may fail
            render.say(f"\ndetached; {op.run} goes on. {kept}")
            say_how(op, as_json)
            raise Exit(code=follow.DETACHED) from None
    with moving_line.waiting(f"{op.run}: its end is written down and told"):
        follow.conclude(op, verdict["state"], journal, settings, render.tell)
    succeeded = verdict["state"] == "succeeded"
    if as_json:
        print_json(
            {
                "run": op.run,
                "state": verdict["state"],
                "ran": [step["name"] for step in progress.get("steps", ()) if step["state"] == "done"],
                "steps": steps_text.steps_json(progress),
                "reason": verdict["reason"] or None,
                "recoveries": progress["recoveries"],
            }
        )
    elif succeeded:
        scale, rows = scale_of(op, settings), journal.ops(run=op.run)
        total = spend.run_s(rows, read_clocks(), scale, verdict.get("at"))
        steps = op.read_job().steps
        making = steps[-1].config.get("making") if steps else None
        then = talk_to(making["name"], op.store) if making else f"Next: ./inv {'logs' if steps else 'pod.run'} {op.run}"
        render.say(f"{op.run} succeeded in {render.duration(total)}. {then}")
    if not succeeded:
        logs = f"./inv logs {op.run}{' --errors' if verdict['state'] == 'failed' else ''}"
        if verdict.get("tail") and not as_json:
            render.say(render.clean(verdict["tail"]))
        reason = f": {render.clean(verdict['reason'])}" if verdict["reason"] else ""
        code = 5 if verdict["state"] == "limit" else 1
        then = THEN.get(verdict["state"], "go on with ") + f"./inv resume {op.run}"
        if journal.op(op.token).is_live and op.stays:
            then = f"mend that, then: ./inv {'pod.run' if op.read_job().steps else 'pod.setup'} {op.run}"
        raise Exit(f"{op.run} {verdict['state']}{reason}; see {logs}; {then}", code=code)


@contextlib.contextmanager
def hang_up() -> Iterator[list[int]]:
    """Treat the closing of the terminal as Ctrl-C, unless somebody (`nohup`) wanted it ignored."""
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
    """Return the command that talks to a model just made, which need not be the one that is meant by default."""
    usual = context.settings()
    where = "" if store == usual.store and not usual.rehearsal else f"SLIPWAY_STORE={shlex.quote(store)} "
    model = "" if artifact == f"{PHASES[USUAL].folder}/{usual.profile}" else f" {artifact}"
    return f"Talk to it: {where}./inv chat{model}"


def show_progress(
    op: Op, seen: Iterator[Seen], quiet: bool, scale: float
) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """Show bars on a terminal, a line per step elsewhere; return the last progress and the verdict.

    `scale`: how many times faster than ours the clock of the run's cost is, by which its times are told, too.
    """
    if not quiet:
        render.say(f"run {op.run} in {pods.where(op)}")
    if quiet:
        return _last(seen)
    if not sys.stderr.isatty():
        return _last(_lines(seen, scale))
    from rich.live import Live

    with Live(console=render.console(), refresh_per_second=8) as live:
        return _last(_redraw(seen, live, scale))


def _last(seen: Iterator[Any]) -> Any:
    return deque(seen, maxlen=1).pop()


def _redraw(seen: Iterator[Any], live: Any, scale: float) -> Iterator[Any]:
    for progress, verdict in seen:
        live.update(steps_text.steps_table(progress, time.time(), scale))
        yield progress, verdict


def _lines(seen: Iterator[Any], scale: float) -> Iterator[Any]:
    """Yield the observations, and print a line when a step begins and ends, and now and then between."""
    told: dict[str, tuple[str, float]] = {}
    for progress, verdict in seen:
        tell_steps(progress, told, scale)
        yield progress, verdict


def keep_(spec: KeepFlags) -> None:
    run = spec.run
    settings = context.settings()
    with open_journal(settings) as journal:
        if run and service_rows.find(journal, run):
            look_after(run, settings, journal, spec.json)
            return
        op = find_run(journal, run)
        holder = journal.leases.holder(keeper_lease(op.run))
        if holder:
            state, said = "kept", f"{op.run} is kept by process {holder.pid}"
        elif resuming.is_idle(op, settings):
            state, said = "idle", f"{op.run} is idle; its guard holds it"
        elif pods.is_over(op):
            state, said = "over", f"{op.run} is over; run: inv status {op.run}"
        elif spec.detach:
            leave(op, settings, spec.json)
            return
        else:
            conclude(op, journal, settings, spec.json)
            return
        render.say(said)
        if spec.json:
            print_json({"run": op.run, "state": state, "keeper": holder.pid if holder else None})


def look_after(name: str, settings: Settings, journal: Journal, as_json: bool) -> None:
    """Look after a service: another controller takes over where one has died."""
    was_kept = controller_process.is_kept(name, journal)
    seen = controller_client.ensure(name, settings, journal, render.tell)
    holder = journal.leases.holder(service_lease(name))
    if was_kept and holder:
        render.say(f"{name} is kept by process {holder.pid} at {seen.endpoint}")
    if as_json:
        print_json({"run": name, "state": "kept", "keeper": holder.pid if holder else None})


def leave(op: Op, settings: Settings, as_json: bool) -> None:
    """Hand the run on, as nobody follows it from here on, and say how to look at it again."""
    render.say(supervisor_client.hand_on(op, settings))
    say_how(op, as_json)


def say_how(op: Op, as_json: bool) -> None:
    if as_json:
        print_json({"run": op.run, "state": "running"})
    render.say(f"follow: ./inv logs {op.run} --follow   watch: ./inv status --watch   stop: ./inv down {op.run}")
