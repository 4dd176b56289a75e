"""The store: what it holds, and what may go. What these do stands in `gc.py`."""

from scripts.cli.invoke_patch import command


@command(
    "scripts.store.gc",
    help={
        "store": "where artifacts are (default: that of the settings)",
        "older": "only what was published longer ago than this (14d)",
        "dry-run": "show what would go, and remove nothing",
        "json": "one JSON document on stdout",
    },
)
def gc(c, store="", older="", dry_run=False, json=False):
    """Remove old artifacts that nothing refers to.

    Nothing: no name, no run and no service. Old: 14 days, or --older.
    """
