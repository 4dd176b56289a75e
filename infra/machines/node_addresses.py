"""Addresses by which the nodes of a run reach each other, verified by connection attempts.

    transports -> exchange_addresses -> for every node an address reached by all other nodes, and two free ports on node
    0

Every node lists local addresses; then all nodes listen and call each other for a few seconds. An answer counts only
with the shared key of this attempt, because several machines may have the same private address.
"""

import json
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from infra.agent.job import NodeGroup
from infra.errors import SlipwayError
from infra.machines.host_memory import ASK_S, map_parallel, run_script
from infra.transport.protocol import ThisMachine, Transport

SCRIPT = Path(__file__).parents[1] / "agent" / "peer_addresses.py"
CALL_S = 8.0  # seconds during which the nodes try to reach each other


def exchange_addresses(run: str, transports: Sequence[Transport], names: Sequence[str]) -> list[NodeGroup]:
    """Return the group of every node, by rank; errors refer to nodes by `names`.

    Raises SlipwayError with the unreachable pairs of nodes.
    """
    is_here = all(isinstance(transport, ThisMachine) for transport in transports)
    listed = _all(transports, names, [("look", "here" if is_here else "there")] * len(transports))
    word = secrets.token_hex(16)  # not the group's key: this word appears on a command line
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
    """Return (address, interface) of every node, each reached by all other nodes.

    `listed` holds each node's interfaces by address. `reached` holds, for each node, the answering addresses by the
    rank of the called node, as text. Raises SlipwayError.
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
                f"{names[rank]} ({', '.join(addresses) or 'no address'}) cannot be reached by all other nodes:"
                f"{''.join(tried)}\nopen the ports between the nodes, or choose machines in one network"
            )
        chosen.append((common[0], addresses[common[0]]))
    return chosen


def _all(
    transports: Sequence[Transport], names: Sequence[str], words: Sequence[tuple[str, ...]]
) -> list[dict[str, Any]]:
    """Run SCRIPT on every node and return the answers by rank. Raises the first error with the node's name."""

    def ask(rank: int) -> dict[str, Any]:
        return run_script(transports[rank], transports[rank].python, SCRIPT.read_bytes(), *words[rank])

    found = map_parallel(ask, range(len(transports)), ASK_S)
    for name, one in zip(names, found, strict=True):
        if isinstance(one, SlipwayError):
            raise SlipwayError(f"{name}: {one}")
    return [dict(one) for one in found if not isinstance(one, SlipwayError)]
