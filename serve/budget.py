"""Spend limit of a service, divided among the rented replicas. Pure; all amounts in micro-USD.

`ServiceBudget` computes the number of affordable replicas and the limit of the next replica from the service limit, the
cost of ended replicas and the limits of living replicas. Past cost plus all limits of living replicas never exceed the
service limit.
"""

from dataclasses import dataclass

from infra.units import micro_usd

LEAST_OF_A_SHARE = 20  # the smallest useful limit of a replica is 1/20 of a share


@dataclass(frozen=True, kw_only=True)
class ServiceBudget:
    limit: int
    most: int
    """Maximum number of replicas at the same time."""
    spent: int
    """Cost of the ended replicas."""
    armed: int
    """Sum of the spend limits of the living replicas."""

    @property
    def share(self) -> int:
        return max(1, self.limit // self.most)

    @property
    def left(self) -> int:
        return max(0, self.limit - self.spent - self.armed)

    @property
    def affordable(self) -> int:
        """Return the number of further replicas within the remaining budget."""
        return self.left // max(1, self.share // LEAST_OF_A_SHARE)

    def cap(self, alive: int) -> int:
        """Return the limit of the next replica beside `alive` replicas: a share, or an equal part of a smaller rest."""
        return min(self.share, self.left // max(1, self.most - alive))


def limit_of(said: str | float) -> int:
    """Return an amount such as `40`, 40 or `$40` in micro-USD. Raises BadAmount, a ValueError."""
    return micro_usd(str(said).lstrip("$"))
