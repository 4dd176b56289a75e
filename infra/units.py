"""Formatting of times, sizes and counts for people, and parsing of typed durations."""

import re
from datetime import datetime, timezone

from infra.agent.amounts import duration as duration
from infra.errors import UsageError

MOST_S = 10 * 365 * 86400.0
_UNITS_S = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def count(number: int, thing: str) -> str:
    """Format a count with a noun: `1 step`, `2 steps`."""
    return f"{number:,} {thing}{'' if number == 1 else 's'}"


def estimated(seconds: float | None) -> str:
    """Format an estimated duration; values above ten years become `more than 10 years`."""
    return "more than 10 years" if seconds is not None and seconds > MOST_S else duration(seconds)


def about(seconds: float) -> str:
    """Format an estimated duration within a sentence: `about 3 min 05 s`."""
    return estimated(seconds) if seconds > MOST_S else f"about {duration(seconds)}"


def between(low: float, high: float) -> str:
    """Format the range of an estimated duration: `2 h 10 min to 4 h 00 min`."""
    return estimated(low) if low > MOST_S else f"{duration(low)} to {estimated(high)}"


def moment(at: float) -> str:
    """Format UTC epoch seconds as `2026-11-23 04:12 UTC`."""
    return f"{datetime.fromtimestamp(at, timezone.utc):%Y-%m-%d %H:%M} UTC"


def iso(at: float | None) -> str | None:
    """Format UTC epoch seconds in ISO 8601, to the second; None for None or 0."""
    return datetime.fromtimestamp(at, timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ") if at else None


def size(num_bytes: float) -> str:
    """Format a number of bytes: `812 B`, `3.4 kB`, `30.0 MB`."""
    for unit in ("B", "kB", "MB", "GB"):
        if num_bytes < 1000 or unit == "GB":
            break
        num_bytes /= 1000
    return f"{num_bytes:.0f} {unit}" if unit == "B" else f"{num_bytes:.1f} {unit}"


def seconds(text: str) -> float | None:
    """Parse `90s`, `30m`, `2h`, `1.5d` or bare seconds, up to ten years; None for an empty text.

    Raises UsageError.
    """
    if not text:
        return None
    found = re.fullmatch(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)([smhd]?)", text.strip())
    read = float(found[1]) * _UNITS_S[found[2]] if found else 0.0
    if not 0 < read <= MOST_S:
        raise UsageError(f"{text[:40]!r} is not a duration; write 90s, 30m, 2h or 1d")
    return read
