"""The rows of a vendor's listing, read separately: a bad row must neither hide other rows nor steer Slipway.

Text in a row is untrusted input: an account has other users, and a host has an owner. An unreadable field counts as not
reported.

    any row -> record, and descriptions of unreadable fields -> Pod
"""

from collections.abc import Iterable
from typing import Any, TypeVar

import msgspec
from msgspec import Struct

from infra.errors import SlipwayError
from infra.providers.json_api import printable
from infra.records import Pod

S = TypeVar("S", bound=Struct)
SHOWN = 60  # characters of an unreadable value


def read(kind: type[S], row: Any) -> tuple[S, dict[str, str]]:
    """Return the record of a row, and descriptions of unreadable fields by name; such fields are empty in the record.

    A field without a default counts as unreadable if missing.
    """
    is_row = isinstance(row, dict)
    odd = {} if is_row else {"row": f"{shown(row)} instead of a machine"}
    told: dict[str, Any] = {}
    for field in msgspec.structs.fields(kind):
        value = row.get(field.encode_name) if is_row else None
        if isinstance(value, int) and field.type is str and not isinstance(value, bool):
            value = str(value)
        if field.required:
            told[field.name] = field.type()
        if value is None and not field.required:
            continue
        try:
            told[field.name] = msgspec.convert(value, field.type, strict=False)
        except (ValueError, ArithmeticError, RecursionError):
            if is_row:
                odd[field.name] = f"{field.name} is {shown(value)}"
    return kind(**told), odd


def shown(value: Any) -> str:
    """Return an untrusted value for a message."""
    if isinstance(value, (dict, list)):
        return "an object" if isinstance(value, dict) else "a list"
    return printable(repr(value[:SHOWN]) if isinstance(value, str) else "null" if value is None else str(value), SHOWN)


def complete_listing(name: str, pods: Iterable[Pod], gone: Iterable[str]) -> list[Pod]:
    """Return all pods not in a `gone` state, oldest first. Raise SlipwayError for an incomplete listing."""
    pods = list(pods)
    check_once(name, [pod.pod_id for pod in pods])
    return sorted((pod for pod in pods if pod.state not in gone), key=lambda pod: pod.created_at)


def check_once(name: str, ids: Iterable[str]) -> None:
    """Raise SlipwayError for a repeated id: a different machine may be missing."""
    known = [one for one in ids if one]
    if len(set(known)) != len(known):
        raise SlipwayError(f"{name}: the listing has a machine twice, so other machines may be missing")


def offered(kind: type[S], row: Any) -> S | None:
    """Return the record of one kind of machine; None for a malformed row, which is no offer."""
    try:
        return msgspec.convert(row, kind, strict=False)
    except (ValueError, ArithmeticError, RecursionError):
        return None
