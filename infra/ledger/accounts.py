"""The vendor account that rented each pod, compared with the account of the current API key.

A pod of a different account may still bill although the current account does not list the pod. The owner identifies an
account, or the API key if the vendor reports no owner: two keys of one owner belong to the same account, and a row
rented with the current key belongs to the current account.
"""

import hashlib

from infra.agent.limits import Clocks
from infra.errors import SlipwayError
from infra.ledger import spend
from infra.ledger.op import Op
from infra.providers import Provider, clock_scale, market
from infra.units import per_hour


def fingerprint(provider: Provider) -> str:
    """Return the fingerprint of the account behind `provider.list`: of the owner if known, else of the API key.

    Raise SlipwayError when the provider cannot report the account.
    """
    return _hash(provider, provider.account().display_owner)


def is_another(provider: Provider, op: Op, now: Clocks) -> bool:
    """Return whether a different account rented the pod; absence from this account's listing then proves nothing.

    Return False for a row without a fingerprint, and for a pod beyond a limit if the vendor enforces time or spend
    limits: the vendor has ended such a pod in any account. Raise SlipwayError when the vendor does not report the
    owner of the current key and the row has the fingerprint of a different key.
    """
    rented = market(provider)
    ends_by_itself = rented is not None and (rented.can.time_limit or rented.can.spend_limit)
    if not op.account_fp or ends_by_itself and spend.due(op, now, clock_scale(provider)):
        return False
    mine = provider.account()
    if op.account_fp in {_hash(provider, mine.owner), _hash(provider, mine.key)}:
        return False
    if not mine.owner:
        raise SlipwayError(f"{provider.name} does not name the account of the key")
    return True


def _hash(provider: Provider, word: str) -> str:
    return hashlib.sha256(f"{provider.name}\0{word}".encode()).hexdigest()[:16] if word else ""


def account_advice(op: Op) -> str:
    """Return advice for the user about a pod rented by a different account."""
    cost = f"; the machine may still cost {per_hour(op.rate)}" if op.rate else ""
    return (
        f"another account of {op.vendor} rented {op.remote_id or op.token}, and the current key cannot see the "
        f"machine: restore the key of that account, or end the machine in the vendor's console{cost}"
    )
