"""Money: whole micro-dollars inside, decimal text outside, binary fractions nowhere."""

from decimal import ROUND_CEILING, Decimal, InvalidOperation

MOST_USD = 10_000_000


def micro_usd(usd: Decimal | int | str) -> int:
    """Micro-dollars, rounded up. Raises ValueError for what is no amount: negative, infinite, absurdly large."""
    try:
        amount = Decimal(usd)
    except InvalidOperation:
        raise ValueError(f"{usd!r} is no amount of dollars") from None
    if not (amount.is_finite() and 0 <= amount <= MOST_USD):
        raise ValueError(f"{usd} USD is no credible amount")
    return int((amount * 1_000_000).to_integral_value(ROUND_CEILING))


def dollars(micro: int) -> str:
    """The exact amount, cents at least: 33600000 -> `33.60`."""
    whole, rest = divmod(micro, 1_000_000)
    digits = f"{rest:06d}".rstrip("0")
    return f"{whole}.{digits:0<2}"
