"""The vendor account that each pod was rented with: a pod missing in the listing of another account may still bill.

In: a provider as its key opens it now, and a row. Out: whether that key could see the pod. A key that was replaced by
another one of the same account is no other account. Where a vendor does not tell whose a key is, the key counts: a row
that was rented by the same key is of the same account.
"""

import hashlib

from infra.agent.limits import Clocks
from infra.errors import SlipwayError
from infra.ledger import spend
from infra.ledger.op import Op
from infra.money import per_hour
from infra.providers import Provider, clock_scale, market


def fingerprint(provider: Provider) -> str:
    """Return a fingerprint of whose pods `provider.list` shows: of the owner, else of the key. Raises SlipwayError."""
    return _hash(provider, provider.account().whose)


def is_another(provider: Provider, op: Op, now: Clocks) -> bool:
    """Return whether another account rented the pod, so that its absence from this one proves nothing.

    A pod whose limit has passed was ended by its vendor, where that has a timer, whichever account that is. Raises
    SlipwayError.
    """
    rented = market(provider)
    ends_by_itself = rented is not None and (rented.can.time_limit or rented.can.spend_limit)
    if not op.account_fp or ends_by_itself and spend.due(op, now, clock_scale(provider)):
        return False
    mine = provider.account()
    if op.account_fp in {_hash(provider, mine.owner), _hash(provider, mine.key)}:
        return False
    if not mine.owner:
        raise SlipwayError(f"{provider.name} does not say whose account the key opens")
    return True


def _hash(provider: Provider, word: str) -> str:
    return hashlib.sha256(f"{provider.name}\0{word}".encode()).hexdigest()[:16] if word else ""


def in_words(op: Op) -> str:
    """Return advice about a pod that another account rented."""
    cost = f"; it may still cost {per_hour(op.rate)}" if op.rate else ""
    return (f"another account of {op.vendor} rented {op.remote_id or op.token}, and this key does not see it: put that "
            f"account's key back, or end it in the vendor's console{cost}")  # fmt: skip
