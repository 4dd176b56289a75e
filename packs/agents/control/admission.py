"""Admission of a plan: machine, time and money against the allowance, at the plan and again at the start.

Arguments, `Account` -> UsageError in words, or nothing
"""

from collections.abc import Mapping, Sequence
from typing import Any

from infra.errors import UsageError
from infra.market import gpus
from infra.settings import MARKET, VENDORS
from infra.units import dollars
from packs.agents.control.account import Account
from packs.agents.records.allowance import Allowance

LEAST_S = 120.0  # of the allowance, and of a run: no machine boots in less


def check_machine(one: Allowance, provider: str, gpu: str) -> None:
    """Raise UsageError for a provider or GPU outside of the allowance."""
    if provider and provider not in VENDORS:
        raise UsageError(f"the provider must be one of {', '.join(VENDORS)}")
    if provider and (why := one.refuse_provider(provider)):
        raise UsageError(why)
    for kind, _ in gpus.read_set(gpu):
        if not covers(one, kind):
            raise UsageError(f"the GPU {kind} is outside the allowance; inside: {', '.join(one.gpus)}")


def covers(one: Allowance, gpu: str) -> bool:
    """Return whether a GPU, and each kind of the GPU, is inside the allowance: H100 covers H100-SXM."""
    return not one.gpus or any(gpus.is_asked(kind, gpus.canonical_name(gpu)) for kind in one.gpus)


def provider_of(one: Allowance, typed: str) -> str:
    """Return the provider of a line: `market` asks all vendors; a plan then keeps to the vendor of its offer."""
    inside = [name for name in VENDORS if not one.providers or name in one.providers]
    return typed or (inside[0] if len(inside) == 1 else MARKET)


def is_inside(one: Allowance, offer: Mapping[str, Any]) -> bool:
    return not one.refuse_provider(str(offer["provider"])) and covers(one, str(offer.get("gpu") or ""))


def first_inside(one: Allowance, offers: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """Return the first offer inside the allowance. Raises UsageError."""
    found = next((offer for offer in offers if is_inside(one, offer)), None)
    if found is None:
        raise UsageError("none of the cheapest machines is inside the allowance; name provider and gpu; call: offers")
    return found


def check_time(left: float) -> None:
    """Raise UsageError if the allowance ends before a machine boots. left: seconds of the allowance."""
    if left < LEAST_S:
        raise UsageError(f"the allowance ends in {left:.0f} s, which is too short for a machine")


def check_money(account: Account, micro_usd: int, machines: int = 0) -> None:
    """Raise UsageError if the money, or the machines, are not free now."""
    seen, most = account.state(), account.allowance.machines
    if machines and seen.machines + machines > most:
        raise UsageError(
            f"{seen.machines} machines are live or about to be, the plan needs {machines} more, and the allowance has "
            f"{most}; end a run: down"
        )
    if micro_usd > seen.free:
        raise UsageError(f"{dollars(micro_usd)} USD are asked, and {dollars(seen.free)} USD are free; call: status")
