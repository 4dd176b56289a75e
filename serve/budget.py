"""The spend limit of a service, shared among its rented replicas. Pure; micro-dollars.

In: the limit of all, what was spent, the limits of the living replicas. Out: how many more may come, and what the next
one may cost. The sum of what was spent and of all limits of replicas never passes the limit, whatever replicas do.
"""

from dataclasses import dataclass

from infra.money import micro_usd

LEAST_OF_A_SHARE = 20  # a replica is not worth beginning with less than this part of its share


@dataclass(frozen=True, kw_only=True)
class ServiceBudget:
    limit: int
    most: int
    """Largest number of replicas at the same time."""
    spent: int
    """Cost of the replicas that are gone."""
    armed: int
    """The most that the living replicas may cost together."""

    @property
    def share(self) -> int:
        return max(1, self.limit // self.most)

    @property
    def left(self) -> int:
        return max(0, self.limit - self.spent - self.armed)

    @property
    def affordable(self) -> int:
        """Return the number of further replicas that can be paid."""
        return self.left // max(1, self.share // LEAST_OF_A_SHARE)

    def cap(self, alive: int) -> int:
        """Return the limit for one more beside so many: its share, or an equal part of what is left."""
        return min(self.share, self.left // max(1, self.most - alive))


def limit_of(said: str | float) -> int:
    """Return the micro-dollars of `40`, 40 or `$40`. Raises BadAmount, which is a ValueError."""
    return micro_usd(str(said).lstrip("$"))
