"""The flags `--finish-by` and `--finish-within`. Light: every launch imports this module."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

from flows.specs.launch import LaunchSpec
from flows.specs.work import PhaseFlags
from infra.flags import Typed, flag
from infra.records import Inventory, Offer, Plan
from infra.selection.machine_spec import LIMITS
from infra.settings import Settings

ENDING = "packs.deadline.control.finish:ending_at_limit"


@dataclass(frozen=True, kw_only=True)
class FinishFlags(PhaseFlags):
    change: ClassVar[Mapping[str, str]] = dict.fromkeys(("finish-by", "finish-within"), ENDING)
    of_launch: ClassVar[bool] = True
    finish_by: str = flag(
        "",
        "finish the training before this time: a limit like --ttl, and fewer steps with a complete schedule if the "
        "time gets short",
        group=LIMITS,
        unit="TIME",
    )
    finish_within: str = flag(
        "",
        "rented: finish the training for this many US dollars: a limit like --spend-limit, and fewer steps with a "
        "complete schedule if the money gets short",
        group=LIMITS,
        unit="USD",
    )

    @property
    def are_given(self) -> bool:
        return bool(self.finish_by or self.finish_within)


def with_limits(spec: LaunchSpec, is_rented: bool, settings: Settings) -> LaunchSpec:
    """Return the flags of a launch with the limits that the flags of this pack set. Raises UsageError."""
    asked = spec.added_record(FinishFlags)
    if not asked.are_given:
        return spec
    from packs.deadline.control import finish  # few launches have the flags

    if not is_rented:
        finish.refuse_money(spec, asked.finish_within, settings)
    spec = finish.with_limits(spec, asked.finish_by, asked.finish_within)
    if not asked.finish_by:
        return spec
    # From now on a date: after a wait, the next 16:00 would be tomorrow.
    _, by = spec.limits_from["ttl"]
    return replace(spec, added=tuple(replace(one, finish_by=by) if one is asked else one for one in spec.added))


def with_later_work(plan: Plan, spec: Typed, settings: Settings, there: Inventory, offer: Offer | None) -> Plan:
    """Return the plan with the work after each phase, and a note."""
    asked = spec.added_record(FinishFlags)
    if not asked.are_given:
        return plan
    from packs.deadline.control import finish

    return finish.with_later_work(plan, asked.finish_by, asked.finish_within, offer)
