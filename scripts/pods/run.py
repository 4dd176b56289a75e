"""The command `pod.run`: a training on an existing pod."""

from dataclasses import dataclass, replace

from flows.planning.training_plan import PlannedWork
from flows.pods import held_pods
from flows.runs import run_leases
from flows.specs import variables
from flows.specs.launch import RUN, LaunchSpec
from flows.specs.work import WorkSpec, prepare_command
from infra.flags import copy_flag, flag
from infra.runs.journal_upkeep import settle
from infra.selection import preflight, registry
from scripts.cli import context, plan_text, prompts, render
from scripts.cli.command import command
from scripts.cli.flags import Output
from scripts.cli.session import open_journal
from scripts.pods.held_pod import WHICH, find_pod
from scripts.runs import following, launch


@dataclass(frozen=True, kw_only=True)
class RunFlags(Output, WorkSpec):
    run: str = flag("", WHICH, word=True)
    detach: bool = flag(False, "hand the run to the supervisor and return", group=RUN)
    no_sync: bool = copy_flag(LaunchSpec, "no_sync")
    no_setup: bool = copy_flag(LaunchSpec, "no_setup")
    dry_run: bool = copy_flag(LaunchSpec, "dry_run")


@command(record=RunFlags, env=True, example="inv pod.run --phase sft")
def run(spec: RunFlags) -> None:
    """Train on an existing pod; the pod stays afterwards.

    The limits of the pod stay in force. For several runs at once, each on separate GPUs, see inv launch --no-deploy.
    """
    spec = variables.applied(spec, context.settings().given)
    settings = context.settings_of(spec)
    work = PlannedWork.from_spec(spec, settings)
    with open_journal(settings) as journal:
        settle(journal, settings, render.tell)
        op = find_pod(journal, spec.run)
        plan = held_pods.plan(op, work, settings)
        if not spec.dry_run and (made := prompts.ask_about_made(plan, yes=spec.json)):
            plan = held_pods.plan(op, replace(work, remake_policy=made), settings)
        if not spec.json:
            plan_text.show_plan(plan)
        if registry.provider(settings, op.vendor).is_rented and plan.job:
            again, prepare = context.rerun_command("--with-missing"), prepare_command(spec)
            preflight.check_work(plan, settings, spec.with_missing, again, prepare)
        if spec.dry_run or plan.job is None:
            if not spec.dry_run:
                run_leases.move_names(plan)
            launch.report_plan(plan, journal, spec)
            return
        if spec.no_setup and plan.job:
            plan = replace(plan, job=replace(plan.job, no_setup=True))
        op = held_pods.start_work(op, plan, journal, settings, render.tell, sync=not spec.no_sync)
        if spec.detach:
            following.detach_run(op, settings, spec.json)
            return
        following.follow_to_end(op, journal, settings, spec.json)
