"""Rented pods that stay, as rows of the journal: which they are, what was asked for with them, and the runs on them."""

from collections.abc import Sequence
from typing import Any

from infra.ledger.op import Op
from infra.market import gpus
from infra.settings import HELD, is_rented
from store import outside


def is_held(op: Op) -> bool:
    """Return whether a live row is that of a rented pod which stays and has an address."""
    return op.is_live and op.stays and op.is_head and bool(op.address) and is_rented(op.vendor)


def place_of(op: Op) -> str:
    """Return the name of a held pod as a machine: another pod of the same name is another machine."""
    return f"{op.run}/{op.token[-8:]}"


def gpus_of(op: Op) -> int:
    """Return the number of GPUs requested with a pod, of several kinds the least."""
    asked = asked_of(op)
    kinds = gpus.read_set(asked.get("gpu", ""), asked.get("num_gpus", 0))
    return asked.get("num_gpus") or min((number for _, number in kinds), default=0)


def asked_of(op: Op) -> dict[str, Any]:
    """Return what was asked for with a pod; {} where that cannot be read."""
    try:
        return outside.mapping(op.request) if op.request else {}
    except ValueError:
        return {}


def guests_of(op: Op, rows: Sequence[Op]) -> list[Op]:
    """Return those of the rows that are runs on this held pod."""
    return [one for one in rows if one.is_live and one.vendor == HELD and one.place == place_of(op)]
