"""The command `inv store.gc`: removal of artifacts without references.

The input is the references by names, leases and runs of this installation; the output is the removed artifacts, or in a
dry run the artifacts to remove.
"""

import math
import time
from collections.abc import Collection
from dataclasses import dataclass

from invoke import Exit

from infra.flags import flag
from infra.ledger.journal import Journal
from scripts.cli import context, render
from scripts.cli.command import command
from scripts.cli.flags import Output
from scripts.cli.render import columns, print_json
from scripts.cli.session import open_journal
from store.artifacts import references
from store.artifacts.artifacts import Store
from store.artifacts.references import What
from store.manifest import Artifact, StoreError


@dataclass(frozen=True, kw_only=True)
class GcFlags(Output):
    store: str = flag("", "store to clean (default: the store of the settings)")
    older: str = flag("", "remove only artifacts older than this (14d)", unit="DURATION")
    dry_run: bool = flag(False, "show the artifacts that would be removed, and remove nothing")


@command(record=GcFlags, example="inv store.gc --dry-run")
def gc(spec: GcFlags) -> None:
    """Remove old artifacts without references.

    A name, a run or a service can refer to an artifact. Old means 14 days, or --older.
    """
    settings = context.settings(store=spec.store)
    older_s = context.seconds(spec.older) if spec.older else references.KEPT_S
    assert older_s is not None
    with open_journal(settings) as journal:
        work = artifacts_in_use(journal)
    space = Store(settings.store)
    named, kept = space.list_all()
    due = unread(settings.store, named, kept, work, time.time() - older_s)
    removed, failed = [], []
    for one in due if not spec.dry_run else ():
        # A launch writes a lease before checking the inputs. So either this check sees the lease, or the launch sees
        # the missing artifact.
        if one in unread(settings.store, named, kept, work, math.inf):
            try:
                space.remove(one.name)
                removed.append(one)
            except StoreError as error:
                failed.append(str(error))
    shown = due if spec.dry_run else removed
    if spec.json:
        rows = [{"artifact": one.name, "bytes": one.num_bytes, "published_at": one.published_at} for one in shown]
        print_json({"store": settings.store, "dry_run": spec.dry_run, "removed": rows, "failed": failed})
    else:
        tell(shown, settings.store, spec.dry_run, older_s)
    if failed:
        raise Exit(f"inv store.gc: {'; '.join(failed)}", code=1)


def tell(shown: list[Artifact], store: str, dry_run: bool, older_s: float) -> None:
    """Print the removed artifacts, or in a dry run the artifacts to remove, with sizes."""
    if shown:
        rows = [(one.name, render.size(one.num_bytes), (render.iso(one.published_at) or "?")[:10]) for one in shown]
        print(render.clean(columns([("artifact", "size", "published (UTC)"), *rows])))
    total = render.size(sum(one.num_bytes for one in shown))
    said = f"{render.count(len(shown), 'artifact')}, {total}"
    rest = f"without a reference by a name, run or service, and older than {render.duration(older_s)}"
    if not shown:
        render.say(f"{store}: nothing to remove; no artifact is {rest}")
    elif dry_run:
        render.say(f"{store}: would remove {said}, {rest}; nothing was removed")
    else:
        render.say(f"{store}: removed {said}, {rest}")


def artifacts_in_use(journal: Journal) -> set[What]:
    """Return the artifacts read and made by unfinished runs of this installation, including versions of older code."""
    found = set[What]()
    for op in journal.ops(live=True):
        for step in op.read_job().steps if op.job else ():
            making = step.config.get("making")
            if making:
                found |= references.of_making(making)
    return found


def unread(
    store: str, named: list[Artifact], kept: list[Artifact], work: Collection[What], before: float
) -> list[Artifact]:
    """Return the kept artifacts without a reference that were published before `before`; read the leases anew."""
    held = references.readers(references.live_leases(store, time.time()))
    return references.unread(named, kept, {*held, *work}, before)
