"""The flags of the commands about the store, each declared once."""

from dataclasses import dataclass

from infra.flags import flag
from scripts.cli.flags import Output


@dataclass(frozen=True, kw_only=True)
class GcFlags(Output):
    store: str = flag("", "where artifacts are (default: that of the settings)")
    older: str = flag("", "only what was published longer ago than this (14d)", unit="DURATION")
    dry_run: bool = flag(False, "show what would go, and remove nothing")
