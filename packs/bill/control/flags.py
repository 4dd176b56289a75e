"""Flags of `inv cost` about the parts of the time."""

from dataclasses import dataclass

from infra.flags import flag

COMPARISONS = ("runs", "vendors", "hosts")


@dataclass(frozen=True, kw_only=True)
class BillFlags:
    """Flags that compare the time of past runs."""

    compare: str = flag("", f"compare the parts of the time of past runs by {', '.join(COMPARISONS)}", unit="BY")
