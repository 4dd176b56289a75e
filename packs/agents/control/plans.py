"""Plans of an allowance: typed arguments -> the checks -> a dry run of the `inv` command -> a plan with an id.

A plan is valid for PLAN_S in the broker that made the plan, and starts once: `Plans.take` removes the plan.
"""

import contextlib
import math
import secrets
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from data.errors import ConfigError
from infra.agent.limits import boottime_s
from infra.errors import UsageError
from infra.ledger import budgets
from infra.ledger.journal import Journal
from infra.runs import lookup, run_rows
from infra.settings import Settings
from infra.units import count, dollars, micro_usd
from packs.agents.control import answers, money
from packs.agents.control.account import Account
from packs.agents.control.admission import (
    LEAST_S,
    check_machine,
    check_money,
    check_time,
    first_inside,
    provider_of,
)
from packs.agents.control.time_left import left_s
from packs.agents.records.allowance import RENT, SERVE, Allowance
from packs.agents.records.arguments import PlanArguments
from trainer.plan import profile_named

PLAN_S = 900.0
DEFAULT_SOURCE = "pydocs"
MOST_PLANS = 100
TRAIN, SERVICE = "train", "serve"
STARTS = {TRAIN: "launch", SERVICE: "serve_up"}


@dataclass(frozen=True, kw_only=True)
class StartPlan:
    """A plan that was shown."""

    plan_id: str
    at: float
    """Seconds of the boot clock, which counts sleep, and which no change of the time of day moves."""
    kind: str
    flags: Mapping[str, Any]
    machines: int
    micro_usd: int
    """Money of the run or service, with the money held back for the end of the machines."""
    held_back: int
    """Part of `micro_usd` that is not in the limit of the run or service."""
    machine: str
    """Number, kind and provider, such as `1 x H100-SXM at lium`."""
    max_price: str
    """Highest price per hour of a machine in US dollars."""
    target: str = ""
    """Fingerprint of the models of a training; "" for a service."""


class Plans:
    """The plans of a broker."""

    def __init__(self, account: Account) -> None:
        self.account = account
        self.by_id: dict[str, StartPlan] = {}
        self.lock = threading.Lock()

    def plan(self, asked: PlanArguments) -> dict[str, Any]:
        """Plan a training or a service with a dry run. Starts nothing."""
        one, at = self.account.allowance, boottime_s()
        if why := one.refuse_kind(SERVE if asked.kind == SERVICE else RENT):
            raise UsageError(why)
        check_machine(one, asked.provider, asked.gpu)
        left = left_s(one)
        check_time(left)
        limit = round(asked.spend_usd * 1e6)
        check_money(self.account, limit)
        name = self.account.free_name()  # without a name, a dry run updates a service, or continues an interrupted run
        if asked.kind == SERVICE:
            flags = service_flags(one, asked, bool(self.account.settings.rehearsal))
            shown = self.account.inv.json("serve.up", {**flags, "dry-run": True}, [name])
            found, offers, machines = answers.service_facts(shown), shown.get("placement"), asked.replicas
        else:
            flags = training_flags(one, asked, left, self.account.settings)
            shown = self.account.inv.json("launch", {**flags, "run-name": name, "dry-run": True})
            found, offers, machines = answers.training_facts(shown), shown.get("offers"), shown.get("nodes", 1)
            if same := same_work(self.account, shown.get("target", "")):
                return {**found, **same}
        if machines > one.machines:
            raise UsageError(f"the plan needs {count(machines, 'machine')}, and the allowance has {one.machines}")
        if not offers:
            return {**found, "next": "status" if not found.get("steps") else "offers"}
        offer = first_inside(one, offers)
        held = money.held_back(micro_usd(offer["usd_per_hour"]), machines)
        if held >= limit:
            raise UsageError(
                f"{dollars(held)} USD of spend_usd are held back for the end of {count(machines, 'machine')} at "
                f"{offer['usd_per_hour']} USD per hour; raise spend_usd, or name a cheaper gpu; call: offers"
            )
        made = StartPlan(
            plan_id=f"plan-{secrets.token_urlsafe(9)}",
            at=at,
            kind=asked.kind,
            # The start asks this vendor only: the next offer of another vendor may be outside the allowance.
            flags={**flags, "provider": offer["provider"], "spend-limit": dollars(limit - held)},
            machines=machines,
            micro_usd=limit,
            held_back=held,
            machine=f"{offer['num_gpus']} x {offer['gpu']} at {offer['provider']}",
            max_price=offer["usd_per_hour"],
            target=shown.get("target", ""),
        )
        with self.lock:
            self.by_id = dict([*self.by_id.items()][1 - MOST_PLANS :]) | {made.plan_id: made}
        shown_plan = {"plan_id": made.plan_id, **found, "machine": made.machine, "usd_per_hour": made.max_price}
        shown_plan |= {"limit_usd": dollars(limit), "held_back_for_the_end_usd": dollars(held)}
        return {**shown_plan, "expires_in_s": PLAN_S, "next": STARTS[asked.kind]}

    def find(self, plan_id: str, kind: str) -> StartPlan:
        """Return a plan that may start. Raises UsageError."""
        with self.lock:
            found = self.by_id.get(plan_id)
        if found is None or boottime_s() - found.at > PLAN_S:
            raise UsageError(f"{plan_id} has expired, was used, or belongs to a different allowance; call: plan")
        if found.kind != kind:
            raise UsageError(f"{plan_id} is a plan for {STARTS[found.kind]}")
        return found

    def remove(self, plan_id: str) -> None:
        """Remove a plan that starts: each plan starts once."""
        with self.lock:
            del self.by_id[plan_id]


def same_work(account: Account, target: str) -> dict[str, Any]:
    """Return the answer for work that a run does already; {} if no run is at work on the target.

    An abandoned run without a pod, which no keeper will continue, is not at work.
    """
    wanted = (target, account.settings.store)
    with Journal.open(account.settings.state_file) as journal:
        waiting = [op for op in lookup.between_pods(journal) if budgets.is_recent(journal, op.run)]
        rows = [*journal.ops(live=True), *waiting]
    row = next((op for op in rows if target and (op.target, op.store) == wanted), None)
    if row is None:
        return {}
    run = money.run_of(row)
    if run not in account.own_names():
        return {"rented": False, "message": "a run of the owner does this work; no machine was rented", "next": "plan"}
    if run_rows.is_over(row):
        said = f"the run {run} of the same work is ending; call plan after the end"
        return {"rented": False, "message": said, "next": "status"}
    return {"rented": False, "message": "the same work is running", "same_as": run, "next": "status"}


def source_of(asked: PlanArguments, settings: Settings) -> str:
    """Return the named source, else the source of the recipe, else pydocs: never the source in the owner's settings."""
    if asked.source:
        return asked.source
    with contextlib.suppress(UsageError, ConfigError):  # the dry run gives the reason
        return profile_named(asked.profile or settings.profile, ()).source or DEFAULT_SOURCE
    return DEFAULT_SOURCE


def training_flags(one: Allowance, asked: PlanArguments, left: float, settings: Settings) -> dict[str, Any]:
    if asked.hours and asked.hours * 3600 < LEAST_S:
        least = math.ceil(LEAST_S / 3.6) / 1000
        raise UsageError(f"hours is {asked.hours:g}, which is too short for a machine; the least is {least}")
    return {
        **machine_flags(one, asked),
        "phase": asked.phase,
        "profile": asked.profile,
        "source": source_of(asked, settings),
        "init": asked.init,
        # All artifacts get the tag of the allowance, so that no training of an agent moves a name of the owner.
        "tag": one.budget,
        "data-tag": one.budget,
        "move-tag": True,
        "with-missing": True,  # the holder has no command that makes inputs on this machine
        "task": asked.task,
        "steps": asked.steps,
        "set": asked.options,
        "budget": one.budget,
        "ttl": seconds_word(min(left, asked.hours * 3600) if asked.hours else left),
    }


def service_flags(one: Allowance, asked: PlanArguments, is_rehearsed: bool) -> dict[str, Any]:
    """Return the flags of a service. Raises UsageError for an argument without meaning for a service."""
    if not asked.model:
        raise UsageError(
            "a service needs the argument model: hf://user/name; in a rehearsal also an artifact or a phase"
        )
    if not (is_rehearsed or asked.model.startswith("hf://")):
        raise UsageError(
            f"the model {asked.model} is in the owner's store, and the machines of a service read hf://user/name only; "
            "the owner can copy the model: inv ckpt.push --to hf://user/name"
        )
    if asked.hours:
        raise UsageError("a service ends at spend_usd, with down, or with the allowance; leave out hours")
    return {**machine_flags(one, asked), "model": asked.model, "replicas": asked.replicas}


def machine_flags(one: Allowance, asked: PlanArguments) -> dict[str, Any]:
    return {
        "gpu": asked.gpu or ",".join(one.gpus),
        "num-gpus": asked.num_gpus,
        "provider": provider_of(one, asked.provider),
        "use-spot": asked.use_spot,
        "spend-limit": dollars(round(asked.spend_usd * 1e6)),
    }


def seconds_word(seconds: float) -> str:
    return f"{int(seconds)}s"
