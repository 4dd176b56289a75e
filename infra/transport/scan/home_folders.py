"""Hidden folders of the home such as `~/.ssh` and `~/.aws`, which often contain keys."""

import os
import pwd
from collections.abc import Iterator, Sequence
from pathlib import Path

from infra.checkout import ROOT


def hidden_in(path: Path) -> str:
    """Return the hidden file or folder of the home that contains a path, such as `~/.aws`; "" for none.

    Paths in the running checkout never count as hidden, since the checkout is always sent.
    """
    real = path.resolve()
    if real.is_relative_to(ROOT):
        return ""
    inside = (real.relative_to(home).parts for home in _homes() if real.is_relative_to(home))
    return next((f"~/{parts[0]}" for parts in inside if parts and parts[0].startswith(".")), "")


def is_named(path: Path, typed: Sequence[str]) -> bool:
    """Return whether the user named the path, or a hidden folder above the path."""
    named = [Path(os.path.expanduser(one)) for one in typed]
    real = [one.resolve() for one in named if one.is_absolute()]
    return any(path.resolve().is_relative_to(one) and hidden_in(one) for one in real)


def shown(path: Path) -> str:
    """Return a path for display, with `~` for the home."""
    home = Path.home()
    return f"~/{path.relative_to(home)}" if path != home and path.is_relative_to(home) else str(path)


def _homes() -> Iterator[Path]:
    yield Path.home().resolve()
    try:
        yield Path(pwd.getpwuid(os.getuid()).pw_dir).resolve()
    except KeyError:  # a container's user may have no passwd entry
        return
