"""Selection of own machines by a word, and the exit of a command with unusable machines."""

from collections.abc import Sequence

from invoke import Exit

from infra.machines import inventory
from infra.settings import Settings


def select_machines(settings: Settings, word: str) -> tuple[Sequence[inventory.Host], Sequence[inventory.InvalidEntry]]:
    """Return the matching machines, and the unusable inventory entries. Raises UsageError."""
    own = inventory.load(settings.pools, word=word)  # ssh is asked about these machines
    if not own.hosts and not own.select_unusable(word):
        own = inventory.load(settings.pools)  # for the names in the error
    unusable = own.select_unusable(word)
    is_only = unusable and not any(word in ("", one.pool, one.place, one.name) for one in own.hosts)
    return (() if is_only else own.select(word)), unusable


def exit_for_problems(seen: Sequence[tuple[str, str]]) -> None:
    """Raise Exit with code 1 if any machine has a problem."""
    bad = [place for place, problem in seen if problem]
    if bad:
        raise Exit(f"{len(bad)} of {len(seen)} machines cannot be used: {', '.join(bad)}", code=1)
