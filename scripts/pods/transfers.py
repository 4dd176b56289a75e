"""Parser for transfer rates, and the transfer summary of `pod.sync` and `pull`."""

import re
from typing import Any

from infra.errors import UsageError
from infra.transport.protocol import Meter
from scripts.cli import render

SLOWEST_RATE = 10_000.0  # bytes per second; below this rate each side would consider the other dead


def rate(text: str) -> float | None:
    """Parse `10MB`, `1.5GB` or `800kB` to bytes per second; None for an empty text. Raises UsageError."""
    if not text:
        return None
    found = re.fullmatch(r"([0-9]{1,6}(?:\.[0-9]{1,6})?) ?(kB|MB|GB)(/s)?", text)
    bytes_per_s = float(found[1]) * {"kB": 1e3, "MB": 1e6, "GB": 1e9}[found[2]] if found else 0.0
    if bytes_per_s < SLOWEST_RATE:
        raise UsageError(f"{text[:40]!r} is not a rate. Expected bytes per second, at least 10kB: 800kB, 10MB, 1.5GB")
    return bytes_per_s


def about(meter: Meter) -> dict[str, Any]:
    return {"bytes_moved": meter.num_bytes, "cuts": meter.interruptions, "by": sorted(meter.ways)}


def moved(meter: Meter) -> str:
    """Return a summary of the transferred bytes, methods and lost connections."""
    ways = {"rsync": "large files by rsync", "pieces": "large files in parts"}
    more = [ways[one] for one in sorted(meter.ways)]
    more += (
        [f"the connection was interrupted {render.count(meter.interruptions, 'time')}"] if meter.interruptions else []
    )
    return ", ".join([f"{render.size(meter.num_bytes)} sent over the connection", *more])
