"""What pod.create, pod.setup, pod.run, pod.down and pod.list do: the stages of a launch, one by one.

Each deals with the pod that is named, else with the one of its line, else with the only one there is.
"""

import json as json_text
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from infra import job_environment
from infra.agent.job import Job, Limits
from infra.agent.limits import read_clocks
from infra.errors import SlipwayError, UsageError
from infra.ledger import spend
from infra.ledger.journal import Journal, Op
from infra.names import check_name, run_name
from infra.providers import Provider, registry
from infra.records import Offer, Plan, Request
from infra.runs import launch as street
from infra.runs import snapshot
from infra.runs.acceptance_policy import terms_for
from infra.runs.lookup import find_run
from infra.runs.settle import settle
from infra.selection import choose, preflight
from infra.settings import VENDORS, Settings
from scripts.cli import context, prompts, render, session
from scripts.cli.context import ROOT
from scripts.cli.invoke_patch import print_json
from scripts.cli.render import columns
from scripts.cli.session import open_journal
from scripts.market import select
from scripts.runs import launch
from scripts.runs.follow_up import leave
from scripts.runs.planning import ask_about_made, environments_of, hold_for, made_by_words, move_names, plan_for


def create(
    *, provider, pool, host, ttl, spend_limit, idle_stop, run_name, no_accept, wait, dry_run, yes, json, **machine
):  # fmt: skip
    settings = context.settings(provider=provider)
    name = check_name(run_name) if run_name else ""
    candidates = registry.candidates(settings)
    limits = preflight.limits_for(settings, candidates[0].is_rented, ttl, spend_limit, render.say, idle_stop)
    request = select.request_for(machine, name or "new", candidates, 1, pool, host)
    with open_journal(settings) as journal:
        settle(journal, settings, render.tell)
        offers: Sequence[Offer] = select.find(candidates, request, settings, wait)
        if offers[0].micro_usd_per_hour and not json:
            select.show_offers(request, offers)
            select.show_ends(limits, offers[0], settings, "end", stays=True)
        offers = choose.payable(offers, 1, settings, render.tell)
        if dry_run:
            if json:
                print_json({"run": None, "state": "planned", "usd_per_hour": render.usd(offers[0].micro_usd_per_hour)})
            render.say("dry run: nothing was rented")
            return
        if candidates[0].is_rented:
            is_named = all(machine[flag] for flag in ("cloud", "region", "instance_type"))
            offers = prompts.pick(list(offers), is_named, yes)
            if not offers:
                render.say("nothing was rented")
                return
        op = make(request, limits, offers, candidates[0], journal, settings, no_accept)
    if json:
        print_json(about(op, settings))
    render.say(f"{op.run} is there: {session.cost_of(op, scale_of(op, settings))}. "
               f"Next: inv pod.run {op.run} --phase sft; end it: inv pod.down {op.run}")  # fmt: skip


def make(
    request: Request, limits: Limits, offers: Sequence[Offer], vendor: Provider, journal: Journal, settings: Settings,
    unchecked: bool = False, role: str = "pod", spec_hash: str = "",
) -> Op:  # fmt: skip
    """A pod that stays, under the request's name or a new one; the rest of the line deals with it."""
    if request.run == "new":
        request = replace(request, run=run_name([op.run for op in journal.ops()]))
    terms = replace(terms_for(settings, vendor, unchecked), role=role, spec_hash=spec_hash)
    scale = settings.clock_scale if settings.rehearsal else 1.0
    op = street.hold(request, limits, offers, registry.vendors(settings), journal, render.say, terms, scale)
    session.use(op)
    return op


def setup(*, run, json):
    settings = context.settings()
    with open_journal(settings) as journal:
        settle(journal, settings, render.tell)
        op = find_pod(journal, run)
        vendor, request = registry.provider(settings, op.vendor), request_of(op)
        torch, environments = environments_of(settings, request, vendor)
        job = Job(run=op.run, token=op.token, steps=(), setup=("train",), torch=torch, environments=environments,
                  clock_scale=settings.clock_scale if settings.rehearsal else 1.0)  # fmt: skip
        plan = Plan(target="", store=op.store or settings.store, artifacts=(), job=job, request=request)
        op = street.give(op, plan, vendor, journal, ROOT, job_environment.secrets(settings), render.say)
        launch.conclude(op, journal, settings, json)


def run(
    *, run, phase, profile, source, packages, persona, seed, steps, tag, store, with_missing, detach, dry_run, json,
    remake, keep_made,
):  # fmt: skip
    settings = context.settings(profile=profile, source=source, store=store)
    work = {"phase": phase, "packages": packages, "persona": persona, "seed": seed, "steps": steps, "tag": tag,
            "made": made_by_words(remake, keep_made), "with_missing": with_missing}  # fmt: skip
    with open_journal(settings) as journal:
        settle(journal, settings, render.tell)
        op = find_pod(journal, run)
        vendor, request = registry.provider(settings, op.vendor), request_of(op)
        rate = None
        if vendor.is_rented:
            machine = Offer(provider=op.vendor, offer_id="", gpu=request.gpu, num_gpus=request.num_gpus)
            rate = select.work_rate(settings, machine)
        limits = Job.from_json(op.job).limits
        plan = plan_for(settings, request, vendor, limits, **work, flops_per_s=rate)
        if not dry_run and (made := ask_about_made(plan, yes=json)):
            plan = plan_for(settings, request, vendor, limits, **{**work, "made": made}, flops_per_s=rate)
        if not json:
            render.show_plan(plan)
        if vendor.is_rented and plan.job:
            preflight.check_work(plan, settings, with_missing, select.again("--with-missing"))
        if dry_run or plan.job is None:
            if not dry_run:
                move_names(plan)
            launch.report_plan(plan, journal, json, dry_run)
            return
        hold_for(plan, op.run, journal.installation)
        move_names(plan)
        op = street.give(op, plan, vendor, journal, ROOT, job_environment.secrets(settings), render.say)
        if not vendor.is_here:
            snapshot.keep_code(op, ROOT, settings.homes / op.run)
        if detach:
            leave(op, settings, json)
            return
        launch.conclude(op, journal, settings, json)


def down(*, run, json):
    settings = context.settings()
    with open_journal(settings) as journal:
        name = find_run(journal, run).run if run else find_pod(journal).run
    launch.down(run=name, all=False, json=json)
    session.forget(name)


def list_(*, json):
    settings = context.settings()
    with open_journal(settings) as journal:
        settle(journal, settings, render.tell)
        ops = journal.ops(live=True)
    rows = [about(op, settings) for op in ops]
    if json:
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


def about(op: Op, settings: Settings) -> dict[str, Any]:
    """A live pod as the journal knows it."""
    return {
        "run": op.run,
        "provider": op.vendor,
        "id": op.remote_id,
        "state": op.state.lower(),
        "usd_per_hour": render.usd(op.rate),
        "age_s": round(spend.age_s(op, read_clocks(), scale_of(op, settings)), 1),
        "ttl_s": op.ttl_s,
        "limit_usd": None if op.cap is None else render.usd(op.cap),
        "stays": op.stays,
        "set": op.pod_set or None,
        "for": purpose(op),
    }


def purpose(op: Op) -> str:
    """What it does, or is there for."""
    if op.service:
        return f"a replica of {op.service}"
    job = Job.from_json(op.job) if op.job else None
    making = [step.config["making"]["name"] for step in job.steps if "making" in step.config] if job else []
    work = making[-1] if making and (op.target or not op.stays) else "nothing yet" if op.stays else "?"
    return f"{work} (set {op.pod_set})" if op.pod_set else work


def scale_of(op: Op, settings: Settings) -> float:
    return settings.clock_scale if op.vendor in VENDORS else 1.0


def find_pod(journal: Journal, name: str = "") -> Op:
    """A live pod that takes work: by a prefix of its name, else that of this line, else the only one.

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
        raise UsageError(f"which pod? there is: {', '.join(op.run for op in there)}")
    else:
        raise SlipwayError("there is no pod; run: inv pod.create")
    session.use(op)
    return op


def request_of(op: Op) -> Request:
    """What was asked for when it was made."""
    return replace(Request(**json_text.loads(op.request)), run=op.run, provider=op.vendor)
