"""The recovery policy of a run: one decision for a step that died, a pod that is gone and a node that was lost.

In: what is known of the pod of each node, by rank. Out: a `Course`. Pure: `infra.runs.keeper` looks, and does what
is decided.
Silence alone decides nothing. A silent node counts as lost by the word of its fellows, who have not heard it for so
long that it has ended its own work (`infra.agent.nodes`); or when node 0, without which no node can work, is gone.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from infra.agent.state import NODE_LOST


@dataclass(frozen=True)
class Sight:
    """The observation of one node's pod just now."""

    is_there: bool | None  # its machine, or its provider, has it; False = proven gone, None = nobody can tell
    is_alive: bool = False  # its guard or its agent, where it is there
    verdict: Mapping[str, Any] = field(default_factory=dict)  # {} while it has none
    why: str = ""  # why nobody can tell


class Do(Enum):
    LEAVE = "it is at work, or over"
    WAIT = "nobody can tell how it is"
    RESUME = "start it again on the pods that it has"
    BEGIN_ANEW = "end what there is of it; other pods, from what is at home"


@dataclass(frozen=True)
class Course:
    do: Do
    silent: tuple[int, ...] = ()  # ranks that nobody can tell of
    gone: tuple[int, ...] = ()  # ranks whose pods are proven gone
    lost: str = ""  # the reason of a verdict by which a node was lost


def decide(nodes: Sequence[Sight]) -> Course:
    """Return what is to be done about a run whose nodes look like this, node 0 first."""
    first, others = nodes[0], nodes[1:]
    silent = tuple(rank for rank, node in enumerate(nodes) if node.is_there is None)
    gone = tuple(rank for rank, node in enumerate(nodes) if node.is_there is False)
    # Node 0 speaks for all. The others count when it says nothing, and then only what they say of it.
    verdict = first.verdict if first.is_there else next((one.verdict for one in others if one.verdict), {})
    lost = (verdict["reason"] or "a node was lost") if verdict.get("state") == NODE_LOST else ""
    if verdict and not lost and first.is_there is not False:
        return Course(Do.LEAVE)
    if first.is_there is not False and not lost:
        if first.is_there is None or (silent and not first.is_alive):
            return Course(Do.WAIT, silent, gone)
        if first.is_alive:
            return Course(Do.LEAVE)
    return Course(Do.BEGIN_ANEW if silent or gone else Do.RESUME, silent, gone, lost)
