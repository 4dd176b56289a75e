"""Money as integer micro-USD inside the program and as decimal text outside; never as binary floats."""

from decimal import ROUND_CEILING, Decimal, InvalidOperation

from infra.errors import SlipwayError

MOST_USD = 10_000_000


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


def told_micro_usd(amount: object, unit_usd: Decimal = Decimal(1)) -> int | None:
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
    """Return an exact price per hour for display, with at least two decimals: `2.39 USD/h`."""
    return f"{dollars(micro)} USD/h"


def whole_usd(amount: int) -> str:
    """Return an amount as a flag value, rounded up to whole US dollars: `12`."""
    return str(-(-amount // 1_000_000))
