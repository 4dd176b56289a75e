"""The rows of a run in the journal: its nodes, the run that a pod is a node of, and whether the run is over.

In: rows and the journal. Out: rows, names, answers. Nobody is asked, and nothing is changed.
"""

import itertools
import json

from infra.agent.job import NodeGroup
from infra.agent.state import NODE_LOST
from infra.errors import UsageError
from infra.ledger.journal import Journal
from infra.ledger.life_cycle import BOOTING, CREATING, PLANNED, TERMINATING, UNKNOWN
from infra.ledger.op import Op
from infra.records import Address

GOES_ON = ("", NODE_LOST)  # outcomes after which another pod may continue the run


def name_of(run: str, rank: int) -> str:
    """Return the name of the pod of a node: node 0 is called as the run itself."""
    return f"{run}.{rank}" if rank else run


def rows_of(run: str, nodes: int, journal: Journal) -> list[Op]:
    """Return every pod that there has been under the names of a run's nodes."""
    return [op for rank in range(nodes) for op in journal.ops(run=name_of(run, rank))]


def nodes_of(op: Op, journal: Journal) -> list[Op]:
    """Return the newest rows of all nodes of a run, by rank; `op` is that of node 0.

    A run on one node has that one.
    """
    size = len(_group_of(op).addresses)
    found = [op]
    for rank in itertools.count(1):
        rows = [row for row in journal.ops(run=name_of(op.run, rank)) if row.rank == rank and not row.detached]
        # A launch that was cut off has not told them of each other yet: what is live then is of that one.
        if rank >= size and not (rows and rows[-1].is_live):
            break
        found += rows[-1:]  # none where that node was given up, and no other one has taken its place yet
    return found


def size_of(op: Op) -> int:
    """Return the number of nodes of the run of this row."""
    asked = json.loads(op.request).get("nodes", 1) if op.request else 1
    return max(asked, len(_group_of(op).addresses))


def run_of(op: Op) -> str:
    """Return the run that the pod of this row is a node of."""
    return _group_of(op).run or op.run


def detached_of(run: str, journal: Journal) -> list[Op]:
    """Return the pods that were detached from a run, on any of its nodes, and are not proven gone."""
    return [op for op in journal.ops(live=True) if op.detached and run_of(op) == run]


def is_in_pieces(op: Op, journal: Journal) -> bool:
    """Return whether a node of the run was given up and not replaced: it can restart, but not resume where it was."""
    if op.state in (PLANNED, CREATING, UNKNOWN, BOOTING):
        return False  # a launch is still active
    are_introduced = size_of(op) == max(1, len(_group_of(op).addresses))
    return op.detached or op.rank == 0 and not (are_introduced and len(nodes_of(op, journal)) >= size_of(op))


def is_over(op: Op) -> bool:
    """Return whether the run of this newest row has ended for good; any other may continue on another pod."""
    return (not op.is_live or op.state == TERMINATING) and op.outcome not in GOES_ON


def lease(token: str) -> str:
    """Return the name of the lease held by whoever rents that pod, until it dies."""
    return f"rent:{token}"


def where(op: Op) -> str:
    """Return the place of a pod, for people: a folder of this machine, or of another one, with user, host and port."""
    if not (op.address or "").startswith("ssh://"):
        return op.address or "no address yet"
    to = Address.parse(op.address or "")
    return f"{to.folder} at {to.place.removesuffix(':22')} ({op.vendor})"


def _group_of(op: Op) -> NodeGroup:
    """Return the group of nodes of a row; a row whose job cannot be read stands for itself."""
    try:
        return op.read_job().group if op.job else NodeGroup()
    except UsageError:
        return NodeGroup()
