"""Hidden folders of a home: `~/.ssh`, `~/.aws`, `~/.bash_history`. What lies there often holds keys."""

import os
import pwd
from collections.abc import Iterator, Sequence
from pathlib import Path

from infra.checkout import ROOT


def hidden_in(path: Path) -> str:
    """Return the hidden file or folder of the home that a path is or lies in, such as `~/.aws`; "" for none.

    The checkout whose code runs here may lie there: it is sent in any case.
    """
    real = path.resolve()
    if real.is_relative_to(ROOT):
        return ""
    inside = (real.relative_to(home).parts for home in _homes() if real.is_relative_to(home))
    return next((f"~/{parts[0]}" for parts in inside if parts and parts[0].startswith(".")), "")


def is_named(path: Path, typed: Sequence[str]) -> bool:
    """Return whether the user has named a path, or a hidden folder that it lies in."""
    named = [Path(one).expanduser() for one in typed]
    real = [one.resolve() for one in named if one.is_absolute()]
    return any(path.resolve().is_relative_to(one) and hidden_in(one) for one in real)


def shown(path: Path) -> str:
    """Return a path as people write it."""
    home = Path.home()
    return f"~/{path.relative_to(home)}" if path != home and path.is_relative_to(home) else str(path)


def _homes() -> Iterator[Path]:
    yield Path.home().resolve()
    try:
        yield Path(pwd.getpwuid(os.getuid()).pw_dir).resolve()
    except KeyError:  # a container's user without an entry
        return
