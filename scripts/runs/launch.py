"""The command `launch`: the plan and its price, the question, the run at work."""

from dataclasses import dataclass, replace
from typing import Any

from flows.planning.training_plan import Work, node_commands
from flows.runs import launch as use_case
from flows.runs import run_leases, work_kinds
from flows.specs.launch import RUN, LaunchSpec
from flows.supervisor import due, supervisor_client
from infra.errors import UsageError
from infra.flags import flag, given
from infra.ledger.journal import Journal
from infra.records import Plan
from infra.runs.settle import settle
from infra.selection import registry
from infra.selection.preflight import with_most
from infra.settings import Settings
from scripts.cli import context, plan_text, prompts, render
from scripts.cli.command import BEGIN, command
from scripts.cli.flags import Output, Questions
from scripts.cli.invoke_patch import print_json
from scripts.cli.session import open_journal
from scripts.market import offers_table
from scripts.runs import following
from scripts.runs.deploy import NOT_OF_THE_PLAN, deploy
from store import moving_line, packs


@dataclass(frozen=True, kw_only=True)
class LaunchFlags(Output, Questions, LaunchSpec):
    file: str = flag(
        "", "YAML: a job of your own (`run: python my.py`), or these flags (`gpu: H100`); command-line flags override "
        "the file",
        word=True,
    )  # fmt: skip
    detach: bool = flag(False, "hand over and return", group=RUN)


@command(
    record=LaunchFlags,
    world=BEGIN,
    env=True,
    flag_file="file",
    example="inv launch --phase sft --gpu H100 --num-gpus 8 --spend-limit 100",
    rents=True,
)
def launch(spec: LaunchFlags) -> None:
    """Train one or more phases, with all they need, to the end.

    Artifacts that exist are reused. Ctrl-C leaves the run working; the same launch follows it again.
    """
    work = work_kinds.asked(spec, spec.file)
    spec = work.placed(spec)
    if spec.no_deploy:
        spec = use_case.on_held(spec)
    settings = context.settings_of(spec)
    context.give([f"{name}={value}" for name, value in work.variables(settings).items()])
    spec = work.applied(spec, settings, render.tell)
    settings = context.settings_of(spec)
    resolved = work.understand(spec, settings)
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
                following.leave(op, settings, spec.json)
                return
            following.conclude(op, journal, settings, spec.json)


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


def report_plan(plan: Plan, journal: Journal, spec: Any) -> None:
    """Show a plan that nothing is done about. `spec`: the flags of a command that has `--dry-run` and `--json`."""
    last, dry_run = use_case.last_on(plan, journal), spec.dry_run
    if spec.json:
        state = "planned" if plan.job else "succeeded"
        said = {"run": last.run if last else None, "state": state, "ran": [], **plan_text.plan_json(plan)}
        print_json({**said, "commands": node_commands(plan), "flags": given(spec, NOT_OF_THE_PLAN)})
    elif plan.job is None:
        moved = "".join(f"; {one.name} stands for it now" for one in plan.pointers) if not dry_run else ""
        render.say(
            f"everything is here{moved}; nothing to do. {following.talk_to(plan.artifacts[-1].name, plan.store)}"
        )
    elif dry_run:
        for line in node_commands(plan):
            render.say(line)
        render.say("dry run: nothing was started")
