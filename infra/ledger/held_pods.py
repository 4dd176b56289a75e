"""Held pods, which are rented and stay, as rows of the journal: the rows, the requests, and the runs on each pod."""

from collections.abc import Sequence
from typing import Any

from infra.ledger.op import Op
from infra.market import gpus
from infra.settings import HELD, is_rented
from store import untrusted_input


def is_held(op: Op) -> bool:
    """Return whether a row is the live row of a held, rented pod with an address."""
    return op.is_live and op.outlives_run and op.is_head and bool(op.address) and is_rented(op.vendor)


def place_of(op: Op) -> str:
    """Return the machine name of a held pod; a new pod with the same run name gets a new machine name."""
    return f"{op.run}/{op.token[-8:]}"


def gpus_of(op: Op) -> int:
    """Return the number of GPUs of a pod; the smallest number of the requested kinds if the row has no number."""
    asked = asked_of(op)
    kinds = gpus.read_set(asked.get("gpu", ""), asked.get("num_gpus", 0))
    return asked.get("num_gpus") or min((number for _, number in kinds), default=0)


def asked_of(op: Op) -> dict[str, Any]:
    """Return the request of a pod, or {} without a readable request."""
    try:
        return untrusted_input.mapping(op.request) if op.request else {}
    except ValueError:
        return {}


def runs_of_pod(op: Op, rows: Sequence[Op]) -> list[Op]:
    """Return the live rows of runs on this held pod."""
    return [one for one in rows if one.is_live and one.vendor == HELD and one.place == place_of(op)]
