"""Choice of an offer for a launch, and rental of a machine held without work, for `inv pod.create`."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from flows.limits import shared_resources
from flows.pods import held_pods
from flows.runs import launch as use_case
from flows.specs.launch import LaunchSpec
from flows.supervisor import supervisor_client
from infra.agent.job import Limits
from infra.agent.limits import read_clocks
from infra.errors import UsageError
from infra.flags import masked_flags
from infra.ledger import spend
from infra.ledger.op import Op
from infra.records import Request
from infra.runs.journal_upkeep import settle
from infra.runs.lookup import scale_of
from infra.selection import choose, registry
from infra.settings import Settings
from scripts.cli import context, plan_text, prompts, render, session
from scripts.cli.render import print_json
from scripts.cli.session import open_journal
from scripts.market import offers_table
from store import packs


def deploy(
    requests: Sequence[Request],
    is_ordered: bool,
    limits: Limits,
    spec: Any,
    settings: Settings,
    narrow: choose.Narrow = choose.as_found,
) -> None:
    """Rent and hold a machine. `spec`: flags of `pod.create`, or of a launch.

    `requests`, `is_ordered`, `narrow`: acceptable machines, as in `choose.choose_request`.
    """
    candidates = registry.candidates(settings)
    with open_journal(settings) as journal:
        settle(journal, settings, render.tell, own=[settings.provider] if spec.dry_run else None)
        name = partial(held_pods.name_of, requests[0], journal) if spec.wait else None
        had = shared_resources.find_launch_offers(
            candidates, requests, is_ordered, name, journal, settings, render.tell, narrow
        )
        request, offers = had.request, had.offers
        if had.reason:
            render.say(render.clean(had.reason))
        if offers[0].micro_usd_per_hour and not spec.json:
            offers_table.show_offers(request, offers)
            offers_table.show_ends(limits, offers[0], settings, "end", stays=True)
        payable = choose.payable(offers, 1, settings, render.tell)
        if spec.dry_run:
            if spec.json:
                print_json(
                    {
                        "run": None,
                        "state": "planned",
                        "usd_per_hour": render.usd(payable[0].micro_usd_per_hour),
                        "flags": masked_flags(spec, plan_text.NOT_OF_THE_PLAN),
                    }
                )
            render.say("dry run: nothing was rented")
            return
        if candidates[0].is_rented:
            is_named = bool(spec.cloud and spec.region and spec.instance_type)
            payable = prompts.pick(payable, is_named, spec.yes, offers_table.show_table)
            if not payable:
                render.say("nothing was rented")
                return
        with supervisor_client.hand_over_on_error(settings):
            op = held_pods.rent(
                replace(had, offers=tuple(payable)),
                limits,
                journal,
                settings,
                render.tell,
                unchecked=spec.no_accept,
                budget=spec.budget,
            )
        session.use(op)
    if spec.json:
        print_json(about(op, settings))
    beside = (
        f"; run several trainings on the pod: inv launch --no-deploy --host {op.run} --phase sft" if op.rate else ""
    )
    render.say(
        f"{op.run} is ready: {session.cost_of(op, scale_of(op, settings))}. Next: inv pod.run {op.run} "
        f"--phase sft{beside}; end the pod: inv pod.down {op.run}"
    )


def about(op: Op, settings: Settings) -> dict[str, Any]:
    """Return the journal's record of a live pod for JSON."""
    return {
        "run": op.run,
        "provider": op.vendor,
        "id": op.remote_id,
        "state": op.state.lower(),
        "usd_per_hour": render.usd(op.rate),
        "age_s": round(spend.age_s(op, read_clocks(), scale_of(op, settings)), 1),
        "ttl_s": op.ttl_s,
        "limit_usd": None if op.cap is None else render.usd(op.cap),
        "stays": op.outlives_run,
        "set": op.pod_set or None,
        "for": held_pods.purpose(op),
    }


def ask_which_offer(found: use_case.Launch, spec: LaunchSpec, yes: bool, settings: Settings) -> use_case.Launch:
    """Return the launch on the picked offer, or without offers if the user declines.

    If no mechanism would end a finished pod while the laptop is off, the question also offers self-deletion by the pod
    and the always-on machines of packs.
    """
    is_named = bool(spec.cloud and spec.region and spec.instance_type)
    while True:
        takes_self_end = use_case.takes_self_end(found, settings)
        is_followed_here = takes_self_end and not offers_table.always_on_here(settings)
        machines = {one.letter: one for one in packs.always_on_machines()} if is_followed_here else {}
        others = (
            {"s": "let the pod delete itself when its work is done, also with the laptop off"} if takes_self_end else {}
        )
        others |= {letter: one.answer for letter, one in machines.items()}
        picked = prompts.pick_or(list(found.offers), is_named, yes, offers_table.show_table, others)
        if picked == "s":
            try:
                found = use_case.with_self_end(found, settings)
                render.say("--self-end: the pod deletes itself when its work is done")
            except UsageError as error:
                render.say(f"{error}; nothing was rented")
        elif isinstance(picked, str):
            render.say(machines[picked].setup_hint(context.rerun_command))
            return use_case.with_picked_offers(found, [], settings)
        else:
            return use_case.with_picked_offers(found, picked, settings)
