"""The rows of a vendor's listing, read one by one: one of them must neither hide the others nor steer us.

    a row, whatever it is -> the record of it, and what of it is odd -> Pod

Text in a row may be a stranger's: an account has other users, and a host has an owner. A field that cannot be read
counts as not told.
"""

from collections.abc import Iterable
from typing import Any, TypeVar

import msgspec
from msgspec import Struct

from infra.errors import SlipwayError
from infra.providers.json_api import printable
from infra.records import Pod

S = TypeVar("S", bound=Struct)
SHOWN = 60  # letters of an odd value


def read(kind: type[S], row: Any) -> tuple[S, dict[str, str]]:
    """Return the record of a row, and by field in words what could not be read: that is empty in the record.

    A field without a default is one that every row has.
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
    """Return an untrusted value, for a message."""
    if isinstance(value, (dict, list)):
        return "an object" if isinstance(value, dict) else "a list"
    return printable(repr(value[:SHOWN]) if isinstance(value, str) else "null" if value is None else str(value), SHOWN)


def whole(name: str, pods: Iterable[Pod], gone: Iterable[str]) -> list[Pod]:
    """Return all that are not gone, oldest first. SlipwayError: the listing is not complete."""
    pods = list(pods)
    check_once(name, [pod.pod_id for pod in pods])
    return sorted((pod for pod in pods if pod.state not in gone), key=lambda pod: pod.created_at)


def check_once(name: str, ids: Iterable[str]) -> None:
    """Raise SlipwayError when one is named twice, so another one may be missing."""
    known = [one for one in ids if one]
    if len(set(known)) != len(known):
        raise SlipwayError(f"{name}: the listing names a machine twice, so it may lack another")


def offered(kind: type[S], row: Any) -> S | None:
    """Return the record of one kind of machine; None for a row that is not as all others are: it is no offer."""
    try:
        return msgspec.convert(row, kind, strict=False)
    except (ValueError, ArithmeticError, RecursionError):
        return None
