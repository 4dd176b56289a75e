"""Validation of reports from pods. Pods are untrusted input, so each known field must have the expected type.

The functions take the bytes of a progress file, a verdict, a guard's report or an agent's answer, and return plain
mappings. A known field of a wrong type is dropped, as if missing; an unknown field passes unchanged.
"""

from collections.abc import Callable, Mapping
from typing import Any

from infra.errors import SlipwayError
from store import untrusted_input

SAID_BYTES = 8 * untrusted_input.MIB
MOST = 1e18  # A larger number of bytes, seconds or tokens cannot be right.
MANY = 1024  # Limit on nodes, GPUs and points of a curve.


def parse(raw: bytes | str, what: str) -> dict[str, Any]:
    """Return the valid fields of a pod's report; `what` names the report in errors. Raises SlipwayError."""
    try:
        return known(untrusted_input.mapping(raw, SAID_BYTES, nan_is_null=True))
    except untrusted_input.UnusableDocument as error:
        raise SlipwayError(f"{what} cannot be read: {error}") from None


def known(said: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a pod's document without known fields of a wrong type."""
    return _kept(said, DOCUMENT)


def _number(value: Any) -> Any:
    return value if type(value) in (int, float) and abs(value) < MOST else None


def _amount(value: Any) -> Any:
    """Return an elapsed or spent amount, None if negative: a pod gains no time or money from a negative amount."""
    return value if _number(value) is not None and value >= 0 else None


def _whole(value: Any) -> Any:
    return value if type(value) is int and abs(value) < MOST else None


def _text(value: Any) -> Any:
    return value if type(value) is str else None


def _truth(value: Any) -> Any:
    return value if type(value) is bool else None


def _numbers(value: Any) -> Any:
    """Return a mapping with only numbers as values; None for any other value."""
    is_known = type(value) is dict and all(_number(one) is not None for one in value.values())
    return value if is_known else None


def _known_numbers(value: Any) -> Any:
    """Return the numeric entries of a mapping; None for any other value."""
    return {key: one for key, one in value.items() if _number(one) is not None} if type(value) is dict else None


def _names(value: Any) -> Any:
    return [one for one in value[:MANY] if type(one) is str] if type(value) is list else None


def _points(value: Any) -> Any:
    is_known = type(value) is list and len(value) <= MANY and all(_number(one) is not None for one in value)
    return value if is_known else None


def _clocks(value: Any) -> Any:
    is_known = type(value) is dict and _text(value.get("boot_id")) is not None
    return value if is_known and all(_number(value.get(key)) is not None for key in ("boot_s", "wall_s")) else None


def _record(value: Any) -> Any:
    if type(value) is not dict:
        return None
    found = _kept(value, RECORD)
    if found.get("kind") == "progress" and _number(found.get("step", 0)) is None:
        del found["step"]  # A result may name the step of the run instead.
    return found


def _steps(value: Any) -> Any:
    rows = [_kept(one, STEP) for one in value if type(one) is dict] if type(value) is list else []
    return [one for one in rows if one.keys() >= {"name", "state"}]


def _marks(value: Any) -> Any:
    """Return the valid pairs of seconds and shares."""
    rows = value[:MANY] if type(value) is list else []
    return [
        one for one in rows if type(one) is list and len(one) == 2 and all(_amount(each) is not None for each in one)
    ]


def _gpus(value: Any) -> Any:
    rows = [one for one in value if type(one) is dict] if type(value) is list else []
    return [{**dict.fromkeys(GPU), **_kept(one, GPU)} for one in rows[:MANY]]


def _kept(said: Mapping[str, Any], kinds: Mapping[str, Callable[[Any], Any]]) -> dict[str, Any]:
    found = {}
    for key, value in said.items():
        kept = value if key not in kinds or (value is None and key in NULLABLE) else kinds[key](value)
        if kept is not None or key not in kinds or key in NULLABLE:
            found[key] = kept
    return found


NULLABLE = {  # Fields that are null while unknown or not applicable.
    *("started_at", "ended_at", "record", "result", "exit_code", "lost", "limit_s", "clocks"),
    *("percent", "used_bytes", "memory_bytes", "peak_bytes", "idle_s", "others_share", "awake_s"),
}
Kinds = dict[str, Callable[[Any], Any]]
GPU: Kinds = {"name": _text, **dict.fromkeys(("percent", "used_bytes", "memory_bytes", "peak_bytes"), _number)}
MACHINE: Kinds = {"gpus": _gpus, "gpus_at": _number, "disk_free_bytes": _number, "disk_at": _number}
RECORD: Kinds = {
    **dict.fromkeys(("kind", "unit", "text"), _text),
    **dict.fromkeys(("at", "done", "total", "share", "shards", "documents", "conversations", "tokens"), _number),
    **dict.fromkeys(("held_out", "documents_per_s", "mb_per_s", "eta_s", "loss", "mfu", "tokens_per_s"), _number),
    **dict.fromkeys(("bits_per_byte", "gzip", "xz", "train_loss", "params"), _number),
    **dict.fromkeys(("reward", "mismatch", "greedy", "problems", "margin", "accuracy"), _number),
    "counts": _numbers,
    "curve": _points,
}
STEP: Kinds = {
    **dict.fromkeys(("name", "state"), _text),
    **dict.fromkeys(("started_at", "ended_at", "elapsed_s"), _number),
    **dict.fromkeys(("record", "result"), _record),
    "attempts": _whole,
    "marks": _marks,
    "training": _known_numbers,
    **dict.fromkeys(("others_share", "awake_s"), _amount),
}


def _texts(value: Any) -> Any:
    """Return a mapping with only texts as values; None for any other value."""
    is_known = type(value) is dict and len(value) <= MANY and all(type(one) is str for one in value.values())
    return value if is_known else None


TIMER: Kinds = {"ends_at": _amount, "looked_s_ago": _amount}
UPLOADS: Kinds = {"pending": _names, "problem": _text}
DOCUMENT: Kinds = {
    **dict.fromkeys(("token", "run", "state", "step", "reason", "tail", "self_end"), _text),
    **dict.fromkeys(("at", "started_at", "updated_at", "limit_s"), _number),
    **dict.fromkeys(("elapsed_s", "spent_micro_usd", "idle_s", "age_s", "awake_s"), _amount),
    **dict.fromkeys(("exit_code", "lost", "agents"), _whole),
    **dict.fromkeys(("alive", "is_leaving"), _truth),
    "clocks": _clocks,
    "in_store": _numbers,
    "tracking": _texts,
    "limits": _known_numbers,
    "start_timer": lambda value: _kept(value, TIMER) if type(value) is dict else None,
    "uploads": lambda value: _kept(value, UPLOADS) if type(value) is dict else None,
    "machine": lambda value: _kept(value, MACHINE) if type(value) is dict else None,
    "steps": _steps,
}
