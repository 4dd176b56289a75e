"""Durations as text for people, in the same format on the pod and on the control machine."""

from typing import Optional

YEAR_HOURS = 8766


def duration(seconds: Optional[float]) -> str:
    """Return `0.4 s`, `48 s`, `3 min 05 s`, `2 h 10 min`, `12 d 4 h` or `2,004 years`, or `?` for None."""
    if seconds is None:
        return "?"
    if seconds < 10:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes == 0:
        return f"{rest} s"
    hours, minutes = divmod(minutes, 60)
    if hours >= 20 * YEAR_HOURS:
        return f"{hours // YEAR_HOURS:,} years"
    if hours >= 100:
        return f"{hours // 24:,} d {hours % 24} h"
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min {rest:02d} s"
