"""The store: what it holds, and what may go. What these do stands in `gc.py`."""

from scripts.cli.command import command


@command("scripts.store.gc", "scripts.store.flags:GcFlags", example="inv store.gc --dry-run")
def gc(c, spec):
    """Remove old artifacts that nothing refers to.

    Referring means by a name, a run or a service. Old means 14 days, or --older.
    """
