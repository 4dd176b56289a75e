"""The flags of `inv ui`."""

from dataclasses import dataclass

from infra.flags import flag


@dataclass(frozen=True, kw_only=True)
class UiFlags:
    port: int | None = flag(None, "of this machine; 0: any (default: 7331, or where that is taken one of the next)")
    allow_acts: bool = flag(False, "let the page end and resume runs, and scale services; it asks first")
    export: str = flag("", "write the page as it is now into this folder, as one file that needs no server", unit="DIR")
    open: bool = flag(False, "open it in the browser")
