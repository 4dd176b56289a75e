"""Money: whole micro-dollars inside, decimal text outside, binary fractions nowhere."""

from decimal import ROUND_CEILING, Decimal, InvalidOperation

from infra.errors import SlipwayError

MOST_USD = 10_000_000


class BadAmount(SlipwayError, ValueError):
    """The amount is negative, infinite, absurdly large, or no number at all."""


def micro_usd(usd: Decimal | int | str) -> int:
    """Return micro-dollars, rounded up. Raises BadAmount."""
    try:
        amount = Decimal(usd)
    except InvalidOperation:
        raise BadAmount(f"{usd!r} is not an amount of dollars") from None
    if not (amount.is_finite() and 0 <= amount <= MOST_USD):
        raise BadAmount(f"{usd} USD is out of range")
    return int((amount * 1_000_000).to_integral_value(ROUND_CEILING))


def told_micro_usd(amount: object, unit_usd: Decimal = Decimal(1)) -> int | None:
    """Return a vendor's amount, None when it is none: it must not spoil a listing."""
    try:
        return micro_usd(Decimal(str(amount)) * unit_usd)
    except (BadAmount, ArithmeticError, RecursionError):
        return None


def dollars(micro: int) -> str:
    """Return the exact amount, cents at least: 33600000 -> `33.60`."""
    whole, rest = divmod(micro, 1_000_000)
    digits = f"{rest:06d}".rstrip("0")
    return f"{whole}.{digits:0<2}"


def cents(micro: int) -> str:
    """Return the amount rounded up to a cent."""
    return dollars(-(-micro // 10_000) * 10_000)


def in_usd(micro: int) -> str:
    """Return an amount for people, rounded up to a cent: `34.21 USD`."""
    return f"{cents(micro)} USD"


def per_hour(micro: int) -> str:
    """Return a price per hour for people, exact, cents at least: `2.39 USD/h`."""
    return f"{dollars(micro)} USD/h"


def whole_usd(amount: int) -> str:
    """Return an amount as a flag takes it, rounded up to whole US dollars: `12`."""
    return str(-(-amount // 1_000_000))
