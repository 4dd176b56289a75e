"""Journal rows of a run: the nodes of a run, the run of a pod, and the check for the end of a run. Read-only."""

import contextlib
import itertools
import json
import sqlite3
from pathlib import Path

from infra import journal_file
from infra.agent.job import NodeGroup
from infra.agent.state import NODE_LOST
from infra.errors import UsageError
from infra.ledger.journal import Journal
from infra.ledger.op import BOOTING, CREATING, ENDED, PLANNED, TERMINATING, UNKNOWN, Op
from infra.records import Address

GOES_ON = ("", NODE_LOST)  # Outcomes after which a new pod may continue the run.


def name_of(run: str, rank: int) -> str:
    """Return the name of the pod of a node; node 0 has the name of the run."""
    return f"{run}.{rank}" if rank else run


def rows_of(run: str, nodes: int, journal: Journal) -> list[Op]:
    """Return the rows of all pods, past and present, of the run's nodes."""
    return [op for rank in range(nodes) for op in journal.ops(run=name_of(run, rank))]


def nodes_of(op: Op, journal: Journal) -> list[Op]:
    """Return the newest row of every node of a run, by rank; `op` is the row of node 0.

    For a run on one node, return only `op`.
    """
    size = len(_group_of(op).addresses)
    found = [op]
    for rank in itertools.count(1):
        rows = [row for row in journal.ops(run=name_of(op.run, rank)) if row.rank == rank and not row.detached]
        # After an interrupted launch the nodes have no group yet, but may have live rows.
        if rank >= size and not (rows and rows[-1].is_live):
            break
        found += rows[-1:]  # A node given up and not yet replaced has no row.
    return found


def size_of(op: Op) -> int:
    """Return the number of nodes of the run of this row."""
    asked = json.loads(op.request).get("nodes", 1) if op.request else 1
    return max(asked, len(_group_of(op).addresses))


def run_of(op: Op) -> str:
    """Return the name of the run that includes the pod of this row."""
    return _group_of(op).run or op.run_of_nodes  # A pod has no group until the nodes know each other.


def detached_of(run: str, journal: Journal) -> list[Op]:
    """Return the rows of pods detached from any node of a run and not proven gone."""
    return [op for op in journal.ops(live=True) if op.detached and run_of(op) == run]


def is_in_pieces(op: Op, journal: Journal) -> bool:
    """Return True if a node was given up and not replaced: the run can restart, but not resume in place."""
    if op.state in (PLANNED, CREATING, UNKNOWN, BOOTING):
        return False  # A launch is still active.
    are_introduced = size_of(op) == max(1, len(_group_of(op).addresses))
    return op.detached or op.rank == 0 and not (are_introduced and len(nodes_of(op, journal)) >= size_of(op))


def is_over(op: Op) -> bool:
    """Return True if the run of this newest row has ended for good; any other run may continue on a new pod."""
    return (not op.is_live or op.state == TERMINATING) and op.outcome not in GOES_ON


def lease(token: str) -> str:
    """Return the name of the lease held on a pod by the renting process until the process dies."""
    return f"rent:{token}"


def where(op: Op) -> str:
    """Return the location of a pod for display: a local folder, or folder, user, host and port of a remote machine."""
    if not (op.address or "").startswith("ssh://"):
        return op.address or "no address yet"
    to = Address.parse(op.address or "")
    return f"{to.folder} at {to.place.removesuffix(':22')} ({op.vendor})"


def _group_of(op: Op) -> NodeGroup:
    """Return the node group of a row; a row with an unreadable job forms a group alone."""
    try:
        return op.read_job().group if op.job else NodeGroup()
    except UsageError:
        return NodeGroup()


def live_by_run(path: Path) -> dict[str, bool]:
    """Return for each run of a journal whether a pod of the run is live; {} for a missing or unreadable journal.

    Reads without a lock or check, and without creating the journal.
    """
    found: dict[str, bool] = {}
    with contextlib.suppress(sqlite3.Error), contextlib.closing(journal_file.read_only(path)) as db:
        for run, state in db.execute("SELECT run, state FROM ops WHERE owner_kind != 'service' AND rank = 0"):
            found[run] = found.get(run, False) or state not in ENDED
    return found
