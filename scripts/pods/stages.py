"""The commands pod.create, pod.setup, pod.run, pod.down and pod.list: the stages of a launch, one by one.

Each deals with the pod that is named, else with the one of its line, else with the only one there is.
"""

from dataclasses import replace

from flows.planning.training_plan import Work
from flows.pods import held_pods
from flows.runs import run_leases
from flows.specs import variables
from infra.errors import SlipwayError, UsageError
from infra.ledger.journal import Journal
from infra.ledger.op import Op
from infra.names import check_name
from infra.runs.lookup import find_run
from infra.runs.settle import settle
from infra.selection import preflight, registry
from infra.selection.request import refuse_open, request_on
from scripts.cli import context, plan_text, prompts, render, session
from scripts.cli.flags import Output
from scripts.cli.invoke_patch import print_json
from scripts.cli.render import columns
from scripts.cli.session import open_journal
from scripts.pods.flags import CreateFlags, OnPodFlags, RunFlags
from scripts.runs import down as ending
from scripts.runs import following, launch
from scripts.runs.deploy import about, deploy
from scripts.runs.flags import DownFlags


def create(spec: CreateFlags) -> None:
    settings = context.settings_of(spec)
    name = check_name(spec.run_name) if spec.run_name else ""
    candidates = registry.candidates(settings)
    is_rented = candidates[0].is_rented
    limits = preflight.with_most(preflight.limits_for(settings, is_rented, spec), is_rented, render.say)
    request = request_on(candidates, spec, name or "new", pool=spec.pool, host=spec.host)
    if is_rented:
        refuse_open(request)
    deploy((request,), False, limits, spec, settings)


def setup(spec: OnPodFlags) -> None:
    settings = context.settings()
    with open_journal(settings) as journal:
        settle(journal, settings, render.tell)
        op = find_pod(journal, spec.run)
        op = held_pods.set_up(op, journal, settings, render.tell)
        following.conclude(op, journal, settings, spec.json)


def run(spec: RunFlags) -> None:
    spec = variables.applied(spec, context.settings().given)
    settings = context.settings_of(spec)
    work = Work.of(spec, settings)
    with open_journal(settings) as journal:
        settle(journal, settings, render.tell)
        op = find_pod(journal, spec.run)
        plan = held_pods.plan(op, work, settings)
        if not spec.dry_run and (made := prompts.ask_about_made(plan, yes=spec.json)):
            plan = held_pods.plan(op, replace(work, made=made), settings)
        if not spec.json:
            plan_text.show_plan(plan)
        if registry.provider(settings, op.vendor).is_rented and plan.job:
            preflight.check_work(plan, settings, spec.with_missing, context.again("--with-missing"))
        if spec.dry_run or plan.job is None:
            if not spec.dry_run:
                run_leases.move_names(plan)
            launch.report_plan(plan, journal, spec)
            return
        if spec.no_setup and plan.job:
            plan = replace(plan, job=replace(plan.job, no_setup=True))
        op = held_pods.give(op, plan, journal, settings, render.tell, sync=not spec.no_sync)
        if spec.detach:
            following.leave(op, settings, spec.json)
            return
        following.conclude(op, journal, settings, spec.json)


def down(spec: OnPodFlags) -> None:
    settings = context.settings()
    with open_journal(settings) as journal:
        name = find_run(journal, spec.run).run if spec.run else find_pod(journal).run
    ending.down(DownFlags(run=name, json=spec.json))
    session.forget(name)


def list_(spec: Output) -> None:
    settings = context.settings()
    with open_journal(settings) as journal:
        settle(journal, settings, render.tell)
        ops = journal.ops(live=True)
    rows = [about(op, settings) for op in ops]
    if spec.json:
        print_json(rows)
    elif rows:
        table = [("pod", "provider", "id", "state", "USD/h", "age", "what for")]
        for row in rows:
            about_it = (row["state"], row["usd_per_hour"], render.duration(row["age_s"]), row["for"])
            table.append((row["run"], row["provider"], row["id"] or "?", *about_it))
        print(render.clean(columns(table)))
        total = render.usd(sum(op.rate for op in ops))
        render.say(f"{render.count(len(ops), 'pod')}, {total} USD/h together")
    else:
        render.say("there is no pod; make one: inv pod.create")


def find_pod(journal: Journal, name: str = "") -> Op:
    """Return a live pod that takes work: by a prefix of its name, else that of this line, else the only one.

    The rest of the line deals with it. Raises UsageError; SlipwayError: there is none.
    """
    there = [op for op in journal.ops(live=True) if op.stays]
    name = name or session.current()
    if name:
        op = find_run(journal, name)
        if not op.is_live:
            raise UsageError(f"{op.run} has ended; run: inv pod.create --run-name {op.run}")
        if not op.stays:
            raise UsageError(f"{op.run} is the pod of a launch, and ends with it; run: inv pod.create")
    elif len(there) == 1:
        op = there[0]
    elif there:
        raise UsageError(f"several pods are there; name one of: {', '.join(op.run for op in there)}")
    else:
        raise SlipwayError("there is no pod; run: inv pod.create")
    session.use(op)
    return op
