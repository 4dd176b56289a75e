"""The submission of a run as one managed job: its code in a folder, its intent in the journal, then SkyPilot.

    Plan -> bundle of code and job.json -> Op (journal: renting, rented, ready)

In: a plan with offers. Out: the journal's row. SkyPilot's controller looks after the job from then on.
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from infra.agent import meet
from infra.agent.job import Job, Limits, NodeGroup, PodFolder, write_durably
from infra.ledger.journal import Journal
from infra.ledger.op import Op, send_anyway_of
from infra.market.filters import in_words
from infra.names import random_word
from infra.records import Offer, Plan
from infra.runs import pods
from infra.runs.launch import Terms
from infra.runs.sync.sync_step import with_courier
from infra.runs.timing import Say, stage
from infra.skypilot import task
from infra.skypilot.managed_jobs import ManagedJobs
from infra.transport.protocol import ThisMachine
from infra.transport.push import push

IGNORE = ".skyignore"  # without it SkyPilot would leave out what a .gitignore names


def submit(
    plan: Plan, offers: "list[Offer]", provider: ManagedJobs, journal: Journal, root: Path, secrets: Mapping[str, str],
    say: Say, terms: Terms,
) -> Op:  # fmt: skip
    """Return the row of the run, which is SkyPilot's job then. Raises as `pods.rent`."""
    assert plan.job is not None
    nodes = plan.request.nodes
    group = NodeGroup()
    if nodes > 1:
        port, words_port = meet.free_ports(2)  # ports below those that systems give away; node 0 listens there
        group = NodeGroup(run=plan.request.run, port=port, words_port=words_port, key=random_word(32))
    each = plan.job.limits
    whole = replace(each, spend_micro_usd=each.spend_micro_usd and each.spend_micro_usd * nodes)
    offer = replace(offers[0], micro_usd_per_hour=offers[0].micro_usd_per_hour * nodes)
    job = with_courier(replace(plan.job, limits=whole, group=group, farewell=()), plan.store, plan.request.run)

    def task_for(token: str, limits: Limits) -> dict[str, Any]:
        limits = replace(limits, micro_usd_per_hour=offer.micro_usd_per_hour)
        own = replace(job, run=plan.request.run, token=token, limits=limits)
        bundle = provider.bundles / token
        with stage("bundle", say) as told:
            told += pack(own, plan, root, bundle, terms.asked)
        return task.task_of(own, nodes=nodes, keys=keys_of(plan), bundle=bundle, secrets=secrets, now=provider.now())

    row = pods.RowDraft(target=plan.target, store=plan.store, recoveries=terms.recoveries, admit=terms.admit,
                        role=terms.role, spec_hash=terms.spec_hash, budget=whole.spend_micro_usd,
                        asked=terms.asked)  # fmt: skip
    with stage("submit", say):
        op = pods.rent(replace(provider, submission=task_for), replace(plan.request, nodes=1), offer, job, journal, row)
    op = journal.note(op, last_seen_at=int(provider.now()))
    return journal.advance(op, "armed")


def pack(job: Job, plan: Plan, root: Path, bundle: Path, asked: str = "") -> list[str]:
    """Lay out what goes along in the folder that SkyPilot copies; return what is told of it.

    `asked`: the words of the launch, as the journal keeps them.
    """
    pod, here = PodFolder(bundle), ThisMachine()
    write_durably(pod.marker, f'{{"token": "{job.token}", "run": "{job.run}"}}\n')
    pushed = [push(here, root, pod.code, job.token, anyway=send_anyway_of(asked))]
    pushed += [
        push(here, Path(one.source), bundle / one.name, job.token, one.file, anyway=one.anyway) for one in plan.carried
    ]
    write_durably(pod.job, job.to_json(), 0o600)
    write_durably(bundle / IGNORE, "# nothing: what lies here was chosen already\n")
    refused = [f"not sent: {refusal}" for one in pushed for refusal in one.refused]
    return [f"{sum(one.sent for one in pushed)} files", *refused]


def keys_of(plan: Plan) -> dict[str, Any]:
    """Return the keys for SkyPilot: those of the job file, else those of the request."""
    return dict(plan.engine_keys) if plan.engine_keys else {"resources": task.resources_of(plan.request)}


def price(plan: Plan, provider: ManagedJobs, tell: Say) -> "list[Offer]":
    """Return the offer that SkyPilot would choose for the plan now. Raises NoOffer; UsageError for missing features."""
    keys = keys_of(plan)
    task.check(keys, plan.request.nodes, False, "skypilot")
    found = provider.priced(keys, plan.request.nodes)
    for one in found.others:
        tell(f"SkyPilot also considered {in_words(one)}")
    return [found.chosen]
