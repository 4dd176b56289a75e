"""The command `launch`: print the plan and the offers, ask for the pick and for confirmation, and start."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from flows.planning.training_plan import PlannedWork, node_commands
from flows.runs import launch as use_case
from flows.runs import run_leases, work_kinds
from flows.specs.launch import RUN, LaunchSpec
from infra.flags import flag, masked_flags
from infra.ledger.journal import Journal
from infra.records import Plan
from infra.selection import registry
from infra.selection.preflight import with_most
from infra.settings import VENDORS, Settings
from scripts.cli import context, plan_text, render
from scripts.cli.command import BEGIN, command
from scripts.cli.flags import Output, Questions
from scripts.cli.render import print_json
from scripts.cli.session import open_journal
from store import terminal


@dataclass(frozen=True, kw_only=True)
class LaunchFlags(Output, Questions, LaunchSpec):
    file: str = flag(
        "",
        "YAML file: a job (`run: python my.py`), or flags of launch (`gpu: H100`); flags on the command "
        "line override the file",
        word=True,
    )
    detach: bool = flag(False, "hand the run to the supervisor and return", group=RUN)


@command(
    record=LaunchFlags,
    world=BEGIN,
    env=True,
    flag_file="file",
    example="inv launch --phase sft --gpu H100 --num-gpus 8 --spend-limit 100",
    rents=True,
)
def launch(spec: LaunchFlags) -> None:
    """Train phases or run a job, including all missing steps.

    Existing artifacts are reused. After Ctrl-C the run continues; the same launch follows the run again.
    """
    work = work_kinds.work_of_command(spec, spec.file)
    spec = work.with_provider(spec)
    if spec.no_deploy:
        spec = use_case.on_held(spec)
    settings = context.settings_of(spec)
    context.set_environment([f"{name}={value}" for name, value in work.variables(settings).items()])
    spec = work.with_flags(spec, settings, render.tell)
    settings = context.settings_of(spec)
    resolved = work.resolve(spec, settings)
    if spec.deploy_only:
        is_rented = registry.candidates(settings)[0].is_rented
        limits = with_most(resolved.limits, is_rented, render.tell)
        narrow = use_case.narrow_held(resolved, settings)
        from scripts.runs import deploy

        deploy.deploy((resolved.request, *resolved.others), resolved.is_ordered, limits, spec, settings, narrow)
        return
    with open_journal(settings) as journal:
        with terminal.show_while("comparing the plan with the store, and estimating cost"):
            if _has_accounts(journal, settings):
                from infra.runs.journal_upkeep import settle

                settle(journal, settings, render.tell, own=[settings.provider] if spec.dry_run else None)
            found = use_case.prepare(resolved, journal, settings, render.tell)
        if found.needs_decision:
            from scripts.cli import prompts

            assert isinstance(resolved.work, PlannedWork)
            resolved = replace(
                resolved, work=replace(resolved.work, remake_policy=prompts.ask_about_made(found.plan, spec.yes))
            )
            found = use_case.prepare(resolved, journal, settings, render.tell)
        plan, at_work = found.plan, found.active_run
        if not spec.json:
            render.say(f"provider {settings.provider} ({settings.sources['provider']})")
            plan_text.show_plan(plan)
            if found.offers:
                show_offers(found, settings)
        found = use_case.check(found, settings, context.rerun_command("--with-missing"), render.tell)
        if spec.dry_run and at_work and not spec.json:
            render.say(f"{at_work.run} already does this work; a launch would follow {at_work.run}")
        if spec.dry_run or plan.job is None:
            if not spec.dry_run:
                run_leases.move_names(plan)
            report_plan(plan, journal, spec, offers_json(found, settings) if found.offers and spec.json else {})
            return
        from scripts.cli import prompts  # a dry run neither asks nor contacts machines
        from scripts.runs import deploy, following

        if found.mounts_to_approve:
            prompts.ask_to_send(found.mounts_to_approve, use_case.refusal(found.mounts_to_approve), spec.yes)
            found = replace(found, may_send=True)
        if found.offers:
            found = deploy.ask_which_offer(found, spec, spec.yes, settings)
            if not found.offers:
                render.say("nothing was rented")
                return
            for warning in found.warnings:
                render.say(warning)
                prompts.confirm(spec.yes)
        following.begin(found, journal, settings, spec.detach, spec.json)


def _has_accounts(journal: Journal, settings: Settings) -> bool:
    """Return whether a live row, a key of a vendor or an extension may have a machine that the journal must follow."""
    keys = any(getattr(settings, key) for key in VENDORS.values())
    return bool(keys or settings.extensions or journal.ops(live=True))


def report_plan(plan: Plan, journal: Journal, spec: Any, of_offers: Mapping[str, Any] = MappingProxyType({})) -> None:
    """Print a plan that is not executed.

    spec: flags of a command with `--dry-run` and `--json`; of_offers: the result of `offers_json`.
    """
    last, dry_run = use_case.last_on(plan, journal), spec.dry_run
    if spec.json:
        state = "planned" if plan.job else "succeeded"
        said = {"run": last.run if last else None, "state": state, "ran": [], **plan_text.plan_json(plan), **of_offers}
        print_json({**said, "commands": node_commands(plan), "flags": masked_flags(spec, plan_text.NOT_OF_THE_PLAN)})
    elif plan.job is None:
        moved = (
            "".join(f"; {one.name} now points to the existing artifact" for one in plan.pointers) if not dry_run else ""
        )
        render.say(
            f"every artifact exists{moved}; nothing to do. {plan_text.chat_hint(plan.artifacts[-1].name, plan.store)}"
        )
    elif dry_run:
        for line in node_commands(plan):
            render.say(line)
        render.say("dry run: nothing was started")


def show_offers(found: use_case.Launch, settings: Settings) -> None:
    """Print the offers, the limits of the run, and the events that end the pod."""
    from scripts.market import offers_table  # a run on this machine has no offers

    spec = found.resolved.spec
    offers_table.show(found.plan, found.offers, settings, spec.on_failure or "end", spec.self_end, spec.dry_run)


def offers_json(found: use_case.Launch, settings: Settings) -> dict[str, Any]:
    """Return the content of `show_offers` for a JSON document."""
    from scripts.market import offers_table

    spec = found.resolved.spec
    return offers_table.plan_json(found.plan, found.offers, settings, spec.on_failure or "end", spec.self_end)
