"""Default spend limit of a launch without limits: a multiple of the plan's high cost estimate.

    forecast of the plan -> default_limit -> amount and reason

Pure functions. The multiple leaves room for a wrong forecast, and still ends a hanging pod before high costs.
"""

from dataclasses import dataclass

from infra.money import in_usd, micro_usd, whole_usd

MEASURED, OF_TABLE = 3, 10  # factors on the high estimate
LEAST_MICRO_USD = 5_000_000
MOST_USD = "150"  # also the limit without a forecast: pods without work, sweeps, services
MOST_MICRO_USD = micro_usd(MOST_USD)
CENT = 10_000  # micro-USD
OTHER = "to change the limit: --spend-limit, --ttl"


@dataclass(frozen=True, kw_only=True)
class DefaultLimit:
    """A spend limit for all pods of a run, with the reason."""

    micro_usd: int
    reason: str

    @property
    def words(self) -> str:
        """Return the limit as a sentence, with the flags that set a different limit."""
        given = "neither --ttl nor --spend-limit is given"
        return f"{given}: the limit is {in_usd(self.micro_usd)}, {self.reason}; {OTHER}"


def default_limit(high_micro_usd: int | None, is_measured: bool) -> DefaultLimit:
    """Return the limit for a plan with the given high cost estimate in micro-USD; None = unknown cost.

    `is_measured`: the forecast is based on measurements of this kind of GPU, else on a table.
    """
    if high_micro_usd is None:
        return DefaultLimit(micro_usd=MOST_MICRO_USD, reason="because the cost of the work is unknown")
    times, basis = (MEASURED, "measurements of this kind of machine") if is_measured else (OF_TABLE, "a table")
    wanted = -(-times * high_micro_usd // CENT) * CENT
    found = max(LEAST_MICRO_USD, min(wanted, MOST_MICRO_USD))
    factor = f"{times} times the high estimate of {in_usd(high_micro_usd)}, based on {basis}"
    if found > wanted:
        return DefaultLimit(micro_usd=found, reason=f"the smallest default ({factor}, is less)")
    if found < wanted:
        short = high_micro_usd > found
        more = f"; the work may need more: --spend-limit {whole_usd(high_micro_usd)}" if short else ""
        return DefaultLimit(micro_usd=found, reason=f"the largest default ({factor}, is more){more}")
    return DefaultLimit(micro_usd=found, reason=factor)
