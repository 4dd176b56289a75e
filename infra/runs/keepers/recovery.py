"""The recovery policy: one decision for what died, is gone or was lost, of a run, a replica and a pod of a set.

In: a spec, what is seen of the pod of each node, by rank, and when it was begun again before. Out: a `Course`. Pure:
`infra.runs.keepers` and `serve.replicas` look, and do what is decided. Silence alone decides nothing. A silent node
counts as lost by the word of its fellows, who have not heard it for so long that it has ended its own work
(`infra.agent.execution.nodes`); or when node 0, without which no node can work, is gone.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum

from infra.agent.state import NODE_LOST
from infra.ledger.op import Op
from infra.runs.sight import Kind, Sight
from store.backoff import Backoff, Retries

HOUR_S = 3600.0


@dataclass(frozen=True)
class RecoverySpec:
    """The properties of a run or pod that decide how it is recovered."""

    resumes: bool
    """True if dead processes are started again on the same pods; False if other pods take their place."""
    is_endless: bool
    """True if it has no end of its own, so that any verdict is a failure."""
    retries: Retries


RUN = RecoverySpec(True, False, Retries(5, 6 * HOUR_S, Backoff(first_s=1.0, longest_s=300.0, certain=1.0)))
REPLICA = RecoverySpec(False, True, Retries(3, math.inf, Backoff(first_s=0.5, longest_s=60.0, certain=1.0)))
POD = RecoverySpec(True, False, Retries(3, HOUR_S, Backoff(first_s=1.0, longest_s=300.0, certain=1.0)))  # of a set


class Do(Enum):
    LEAVE = "it is at work, or over"
    WAIT = "its state is not known"
    RESUME = "start it again on the pods that it has"
    BEGIN_ANEW = "end what is left of it; continue on other pods from the copies here"
    GIVE_UP = "it was restarted too often"


@dataclass(frozen=True)
class Course:
    do: Do
    silent: tuple[int, ...] = ()  # ranks that nobody can tell of
    gone: tuple[int, ...] = ()  # ranks whose pods are proven gone
    lost: str = ""  # the reason of a verdict by which a node was lost
    wait_s: float = 0.0  # before it is done


def recovers(op: Op) -> bool:
    """Return whether it is a pod without work in whose place another one is to be rented when it is taken away."""
    return bool(op.pod_set) and not op.target and op.read_request().recovers


def decide(
    nodes: Sequence[Sight], spec: RecoverySpec = RUN, begun_at: Sequence[float] = (), now: float = 0.0
) -> Course:
    """Return the next action for these sights, node 0 first.

    `begun_at`: when it was begun again before, by the clock of `now`, in seconds.
    """
    course = _needed(nodes, spec)
    if course.do not in (Do.RESUME, Do.BEGIN_ANEW):
        return course
    wait_s = spec.retries.wait_s(begun_at, now)
    return replace(course, do=Do.GIVE_UP) if wait_s is None else replace(course, wait_s=wait_s)


def _needed(nodes: Sequence[Sight], spec: RecoverySpec) -> Course:
    """Return the action that they need, however often it was needed before."""
    first, others = nodes[0], nodes[1:]
    silent = tuple(rank for rank, node in enumerate(nodes) if node.kind is Kind.SILENT)
    gone = tuple(rank for rank, node in enumerate(nodes) if node.kind is Kind.GONE)
    # Node 0 speaks for all. The others count when it says nothing, and then only what they say of it.
    verdict = first.verdict if first.is_there else next((one.verdict for one in others if one.verdict), {})
    lost = (verdict["reason"] or "a node was lost") if verdict.get("state") == NODE_LOST else ""
    if verdict and not lost and not spec.is_endless and first.kind is not Kind.GONE:
        return Course(Do.LEAVE)
    if first.kind is not Kind.GONE and not lost and not (verdict and spec.is_endless):
        if first.kind is Kind.SILENT or (silent and not first.is_alive):
            return Course(Do.WAIT, silent, gone)
        if first.is_alive:
            return Course(Do.LEAVE)
    return Course(Do.BEGIN_ANEW if silent or gone or not spec.resumes else Do.RESUME, silent, gone, lost)
