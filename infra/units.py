"""Money, times, sizes and counts: formatting for people, and parsing of typed amounts and durations.

Money is integer micro-USD inside the program and decimal text outside; never a binary float.
"""

import math
import re
from datetime import datetime, timezone
from decimal import ROUND_CEILING, Decimal, InvalidOperation

from infra.agent.amounts import duration as duration
from infra.errors import SlipwayError, UsageError

MOST_S = 10 * 365 * 86400.0
_UNITS_S = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
MOST_USD = 10_000_000
_IN_GB = {"k": 2**-20, "m": 2**-10, "g": 1, "t": 1000, "p": 10**6}  # MB and KB as SkyPilot counts them


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


def amount(said: str | int | float, where: str) -> int:
    """Return an amount such as `16`, `16+`, `500GB`, `512Mi` or `1TB` as a whole number of GB or units, rounded up.

    Raise UsageError for other text or zero.
    """
    found = re.fullmatch(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)\s*([kmgtp]?)(?:i?b|i)?\+?", str(said).strip().lower())
    if not found or not float(found[1]):
        raise UsageError(f"{where} is {said!r}; expected a number above 0, such as 16, 16+, 500GB or 16384MB")
    return math.ceil(float(found[1]) * _IN_GB[found[2] or "g"])


class BadAmount(SlipwayError, ValueError):
    """The amount is negative, infinite, above MOST_USD, or no number."""


def micro_usd(usd: Decimal | int | str) -> int:
    """Convert US dollars to micro-USD, rounded up. Raises BadAmount."""
    try:
        amount = Decimal(usd)
    except InvalidOperation:
        raise BadAmount(f"{usd!r} is not an amount of dollars") from None
    if not (amount.is_finite() and 0 <= amount <= MOST_USD):
        raise BadAmount(f"{usd} USD is out of range")
    return int((amount * 1_000_000).to_integral_value(ROUND_CEILING))


def reported_micro_usd(amount: object, unit_usd: Decimal = Decimal(1)) -> int | None:
    """Convert a vendor's amount to micro-USD; return None for an invalid amount, which must not break a listing."""
    try:
        return micro_usd(Decimal(str(amount)) * unit_usd)
    except (BadAmount, ArithmeticError, RecursionError):
        return None


def dollars(micro: int) -> str:
    """Return the exact amount in dollars with at least two decimals: 33600000 -> `33.60`."""
    whole, rest = divmod(micro, 1_000_000)
    digits = f"{rest:06d}".rstrip("0")
    return f"{whole}.{digits:0<2}"


def cents(micro: int) -> str:
    """Return the amount in dollars, rounded up to a cent."""
    return dollars(-(-micro // 10_000) * 10_000)


def in_usd(micro: int) -> str:
    """Return an amount for display, rounded up to a cent: `34.21 USD`."""
    return f"{cents(micro)} USD"


def per_hour(micro: int) -> str:
    """Return a price per hour for display: `2.39 USD/h`, `0.173 USD/h`."""
    return f"{rate(micro)} USD/h"


def rate(micro: int) -> str:
    """Return a price per hour in dollars, rounded up to a tenth of a cent."""
    return dollars(-(-micro // 1000) * 1000)


def whole_usd(amount: int) -> str:
    """Return an amount as a flag value, rounded up to whole US dollars: `12`."""
    return str(-(-amount // 1_000_000))
