"""The remaining time of an active run.

The input is the rows and progress of the run and the forecast at launch (`infra.ledger.timings`); the result is the
low, expected and high estimate.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from infra.ledger.op import Op
from infra.ledger.timings import Timings
from infra.market.expected import left, words
from infra.settings import Settings


def left_of(
    rows: Sequence[Op], progress: Mapping[str, Any], settings: Settings
) -> tuple[tuple[float, float, float], str] | None:
    """Return low, expected and high seconds left and their basis, or None without a forecast or progress.

    `rows`: journal rows of the run, oldest first.
    """
    steps, now = progress.get("steps") or (), progress.get("updated_at")
    if not steps or not now:
        return None
    timings = Timings.beside(settings.state_file)
    # A restarted step takes as long as the original forecast.
    pods = [op for op in rows if not op.detached]
    told = next((one for op in reversed(pods) if (one := timings.of(op.token)) and one.expected), None)
    if told is None:
        return None
    since_s = max(0.0, now - told.asked_at) if told.token == pods[-1].token else 0.0
    return left(told.expected, steps, now, since_s), words(told.expected)
