"""The addresses by which the nodes of a run reach each other: tried, not assumed.

    transports -> Meeting: an address of every node that all others have reached, and two free ports on node 0

Every node lists its addresses, then all listen and call each other at once for a few seconds. Who answers must say the
word of this meeting: the same private address may well exist on several machines.
"""

import json
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from infra.agent.job import NodeGroup
from infra.errors import SlipwayError
from infra.machines.host_memory import ASK_S, at_once, run_script
from infra.transport.protocol import ThisMachine, Transport

SCRIPT = Path(__file__).parents[1] / "agent" / "meet.py"
CALL_S = 8.0  # time for which the nodes try to reach each other


def meet(run: str, transports: Sequence[Transport], names: Sequence[str]) -> list[NodeGroup]:
    """Return the group of every node, by rank; `names` is what errors call them.

    Raises SlipwayError that says who cannot reach whom.
    """
    is_here = all(isinstance(transport, ThisMachine) for transport in transports)
    listed = _all(transports, names, [("look", "here" if is_here else "there")] * len(transports))
    word = secrets.token_hex(16)  # not the key of the group: it stands on a command line
    if is_here:
        chosen = [next(iter(one["addresses"].items())) for one in listed]
    else:
        plan = [{"addresses": list(one["addresses"]), "port": one["ports"][0]} for one in listed]
        words = [
            ("call", json.dumps({"rank": r, "key": word, "within_s": CALL_S, "nodes": plan})) for r in range(len(plan))
        ]
        heard = _all(transports, names, words)
        chosen = choose([one["addresses"] for one in listed], [one["reached"] for one in heard], names)
    addresses = tuple(address for address, _ in chosen)
    port, words_port = listed[0]["ports"]
    key = secrets.token_hex(16)
    return [
        NodeGroup(run, rank, addresses, interface, port, words_port, key) for rank, (_, interface) in enumerate(chosen)
    ]


def choose(
    listed: Sequence[Mapping[str, str]], reached: Sequence[Mapping[str, Sequence[str]]], names: Sequence[str]
) -> list[tuple[str, str]]:
    """Return (address, interface) of every node, one that all others have reached.

    listed: interface by address, of each node; reached: by the rank of another as text, which of its addresses have
    answered. Raises SlipwayError.
    """
    chosen = []
    for rank, addresses in enumerate(listed):
        others = [other for other in range(len(listed)) if other != rank]
        common = [one for one in addresses if all(one in reached[other].get(str(rank), ()) for other in others)]
        if not common:
            tried = [
                f"\n  from {names[other]}: {', '.join(reached[other].get(str(rank), ())) or 'none answers'}"
                for other in others
            ]
            raise SlipwayError(
                f"{names[rank]} ({', '.join(addresses) or 'it has no address'}) cannot be reached by all other nodes:"
                f"{''.join(tried)}\nopen the ports between them, or choose machines of one network"
            )
        chosen.append((common[0], addresses[common[0]]))
    return chosen


def _all(
    transports: Sequence[Transport], names: Sequence[str], words: Sequence[tuple[str, ...]]
) -> list[dict[str, Any]]:
    """Return each node's answer to its words. Raises the first error, with the name of its node."""

    def ask(rank: int) -> dict[str, Any]:
        return run_script(transports[rank], transports[rank].python, SCRIPT.read_bytes(), *words[rank])

    found = at_once(ask, range(len(transports)), ASK_S)
    for name, one in zip(names, found, strict=True):
        if isinstance(one, SlipwayError):
            raise SlipwayError(f"{name}: {one}")
    return [dict(one) for one in found if not isinstance(one, SlipwayError)]
