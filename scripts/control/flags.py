"""The flags of the commands about control hosts, each declared once."""

from dataclasses import dataclass

from infra.flags import flag
from scripts.cli.flags import Output, Questions


@dataclass(frozen=True, kw_only=True)
class ControlUpFlags(Output):
    host: str = flag(
        "", "an always-on machine of your own: an alias of ~/.ssh/config, a machine of the inventory, or "
        "[user@]host[:port]",
        word=True,
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class ControlDownFlags(Output, Questions):
    lost: bool = flag(
        False, "the control host is lost: rebuild its journal from the last copy and the vendors' listings"
    )


@dataclass(frozen=True, kw_only=True)
class ControlStartFlags(Output):
    leases: tuple[str, ...] = flag((), "also restart the processes that held these leases: keep:RUN", word=True)


@dataclass(frozen=True, kw_only=True)
class ControlPullFlags(Output):
    path: str = flag("", "file or folder on the control host, relative to the checkout", word=True)
    to: str = flag("", "where to put it here (default: the same path in this checkout)", unit="PATH")
