"""The own machines that a word means, and the exit of a command that found some unusable."""

from collections.abc import Sequence

from invoke import Exit

from infra.machines import inventory
from infra.settings import Settings


def meant(settings: Settings, word: str) -> tuple[Sequence[inventory.Host], Sequence[inventory.Unusable]]:
    """Return the machines that a word means, and the entries that cannot be used. Raises UsageError."""
    own = inventory.load(settings.pools)
    unusable = own.unusable_in(word)
    is_only = unusable and not any(word in ("", one.pool, one.place, one.name) for one in own.hosts)
    return (() if is_only else own.select(word)), unusable


def leave(seen: Sequence[tuple[str, str]]) -> None:
    """Exit with an error where a machine has a problem."""
    bad = [place for place, problem in seen if problem]
    if bad:
        raise Exit(f"{len(bad)} of {len(seen)} machines cannot be used: {', '.join(bad)}", code=1)
