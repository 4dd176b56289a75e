"""Amounts for people: durations, sizes and counts as text, and durations as they are typed."""

import re

from infra.errors import UsageError

MOST_S = 10 * 365 * 86400.0
_UNITS_S = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def count(number: int, thing: str) -> str:
    """Return `1 step`, `2 steps`."""
    return f"{number:,} {thing}{'' if number == 1 else 's'}"


def duration(seconds: float | None) -> str:
    """Return `0.4 s`, `48 s`, `3 min 05 s`, `2 h 10 min`, `12 d 4 h`, or `?`."""
    if seconds is None:
        return "?"
    if seconds < 10:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes == 0:
        return f"{rest} s"
    hours, minutes = divmod(minutes, 60)
    if hours >= 100:
        return f"{hours // 24:,} d {hours % 24} h"
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min {rest:02d} s"


def size(num_bytes: float) -> str:
    """Return `812 B`, `3.4 kB`, `30.0 MB`."""
    for unit in ("B", "kB", "MB", "GB"):
        if num_bytes < 1000 or unit == "GB":
            break
        num_bytes /= 1000
    return f"{num_bytes:.0f} {unit}" if unit == "B" else f"{num_bytes:.1f} {unit}"


def seconds(text: str) -> float | None:
    """Return the seconds of `90s`, `30m`, `2h`, `1.5d` or bare seconds, up to ten years; None for an empty text.

    Raises UsageError.
    """
    if not text:
        return None
    found = re.fullmatch(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)([smhd]?)", text.strip())
    read = float(found[1]) * _UNITS_S[found[2]] if found else 0.0
    if not 0 < read <= MOST_S:
        raise UsageError(f"{text[:40]!r} is no duration; write 90s, 30m, 2h or 1d")
    return read
