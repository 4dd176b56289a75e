"""The flags of the commands of this room, each declared once."""

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
        False, "the control host is gone for good: rebuild its journal from the last copy and from vendors' listings"
    )


@dataclass(frozen=True, kw_only=True)
class ControlStartFlags(Output):
    leases: tuple[str, ...] = flag((), "also what looked after these until now: keep:RUN", word=True)


@dataclass(frozen=True, kw_only=True)
class ControlPullFlags(Output):
    path: str = flag("", "a file or folder there, from the checkout on", word=True)
    to: str = flag("", "where it is put here (default: the same place in this checkout)", unit="PATH")
