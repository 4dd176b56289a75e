"""The flags of `inv ui`."""

from dataclasses import dataclass

from infra.flags import flag


@dataclass(frozen=True, kw_only=True)
class UiFlags:
    port: int = flag(7331, "of this machine; where it is taken, one of the next; 0: any")
    allow_acts: bool = flag(False, "let the page end and resume runs, and scale services; it asks first")
    open: bool = flag(False, "open it in the browser")
