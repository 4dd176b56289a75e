"""Recovery policy for dead, gone and lost pods of runs, replicas and pod sets. Pure.

`decide` turns a spec, one observation per node (by rank) and the times of earlier restarts into a `RecoveryDecision`.
`infra.runs.keepers` and `serve.replicas` observe the pods and carry out the course. Silence alone triggers no restart.
A silent node counts as lost when the other nodes report the node lost (after their timeout the silent node has ended
all work, see `infra.agent.execution.nodes`), or when node 0, which all nodes need, is gone.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum

from infra.agent.state import NODE_LOST
from infra.ledger.op import Op
from infra.runs.observation import Observation, ObservationKind
from store.backoff import Backoff, Retries

HOUR_S = 3600.0


@dataclass(frozen=True)
class RecoverySpec:
    """The properties of a run or pod that select the recovery."""

    resumes: bool
    """True: restart dead processes on the same pods. False: replace the pods."""
    is_endless: bool
    """True if the work has no natural end, so that every verdict is a failure."""
    retries: Retries


RUN = RecoverySpec(True, False, Retries(5, 6 * HOUR_S, Backoff(first_s=1.0, longest_s=300.0, certain=1.0)))
REPLICA = RecoverySpec(False, True, Retries(3, math.inf, Backoff(first_s=0.5, longest_s=60.0, certain=1.0)))
POD = RecoverySpec(True, False, Retries(3, HOUR_S, Backoff(first_s=1.0, longest_s=300.0, certain=1.0)))  # Pod sets.


class RecoveryAction(Enum):
    LEAVE = "the run is at work, or over"
    WAIT = "the state is not known"
    RESUME = "restart the run on the same pods"
    BEGIN_ANEW = "end the remaining pods; continue on new pods from the local copies"
    GIVE_UP = "the run was restarted too often"


@dataclass(frozen=True)
class RecoveryDecision:
    action: RecoveryAction
    silent_ranks: tuple[int, ...] = ()  # Ranks of nodes in an unknown state.
    gone_ranks: tuple[int, ...] = ()  # Ranks of nodes with a pod proven gone.
    lost_reason: str = ""  # Reason in the verdict of a lost node.
    wait_s: float = 0.0  # Delay before the action, in seconds.


def recovers(op: Op) -> bool:
    """Return True for a pod of a set, without work, to be replaced when the provider takes the pod away."""
    return bool(op.pod_set) and not op.target and op.read_request().recovers


def decide(
    nodes: Sequence[Observation], spec: RecoverySpec = RUN, begun_at: Sequence[float] = (), now: float = 0.0
) -> RecoveryDecision:
    """Return the next action for the observations of all nodes, node 0 first.

    `begun_at` holds the times of earlier restarts, in seconds on the clock of `now`.
    """
    course = _needed(nodes, spec)
    if course.action not in (RecoveryAction.RESUME, RecoveryAction.BEGIN_ANEW):
        return course
    wait_s = spec.retries.wait_s(begun_at, now)
    return replace(course, action=RecoveryAction.GIVE_UP) if wait_s is None else replace(course, wait_s=wait_s)


def _needed(nodes: Sequence[Observation], spec: RecoverySpec) -> RecoveryDecision:
    """Return the required action without regard to the number of earlier restarts."""
    first, others = nodes[0], nodes[1:]
    silent = tuple(rank for rank, node in enumerate(nodes) if node.kind is ObservationKind.SILENT)
    gone = tuple(rank for rank, node in enumerate(nodes) if node.kind is ObservationKind.GONE)
    # Node 0 speaks for all nodes. Verdicts of other nodes count only while node 0 does not answer.
    verdict = first.verdict if first.exists else next((one.verdict for one in others if one.verdict), {})
    lost = (verdict["reason"] or "a node was lost") if verdict.get("state") == NODE_LOST else ""
    if verdict and not lost and not spec.is_endless and first.kind is not ObservationKind.GONE:
        return RecoveryDecision(RecoveryAction.LEAVE)
    if first.kind is not ObservationKind.GONE and not lost and not (verdict and spec.is_endless):
        if first.kind is ObservationKind.SILENT or (silent and not first.is_alive):
            return RecoveryDecision(RecoveryAction.WAIT, silent, gone)
        if first.is_alive:
            return RecoveryDecision(RecoveryAction.LEAVE)
    return RecoveryDecision(
        RecoveryAction.BEGIN_ANEW if silent or gone or not spec.resumes else RecoveryAction.RESUME, silent, gone, lost
    )
