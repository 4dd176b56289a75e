"""Machines selected by words: pods by run, set or service, and own machines by pool or host.

Typed words become machines and connections. The functions change no state.
"""

import difflib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from infra.checkout import ROOT
from infra.errors import UsageError
from infra.ledger.journal import Journal
from infra.ledger.op import Op
from infra.machines import inventory
from infra.providers.ssh import connections
from infra.runs import observation, run_rows
from infra.runs.lookup import transport_to
from infra.settings import Settings
from infra.transport.protocol import Transport
from infra.transport.ssh import Ssh

if TYPE_CHECKING:
    import fabric

MOST_NAMED = 10


@dataclass(frozen=True)
class TargetMachine:
    """A machine for running commands."""

    name: str
    folder: str
    """Working folder of commands: the pod's folder; "" = the home folder of an own machine."""
    open_transport: Callable[[], Transport] = field(compare=False, repr=False)


def find(words: Sequence[str], everything: bool, journal: Journal, settings: Settings) -> list[TargetMachine]:
    """Return the distinct machines named by the words, in order; with `everything`, start with all live pods.

    Each word is matched as the first possible of: a run with all nodes; a set of pods; a service; an own pool or
    machine; a prefix of pod names. Raises UsageError for a word without a match.
    """
    live = [op for op in journal.ops(live=True) if not op.detached]  # detached pods were given up
    found: dict[str, TargetMachine] = {}
    for op in live if everything else ():
        found[op.run] = _pod(op, settings)
    for word in words:
        found |= {one.name: one for one in _named(word, live, journal, settings)}
    if not found:
        raise UsageError("no pod exists; run: inv pod.create, or name own machines (see: inv pool.list)")
    return list(found.values())


def connection(machine: TargetMachine) -> Any:
    """Return an unopened `fabric.Connection` to a machine. Raises SlipwayError for a machine without an address."""
    transport = machine.open_transport()
    if isinstance(transport, Ssh):
        return transport.connection(machine.name, machine.folder)
    from infra.transport.fabric_connection import LocalConnection

    return LocalConnection(machine.name, machine.folder)


def connect(name: str) -> "fabric.Connection":
    """Return a connection to the machine with this name: see `infra.connect`."""
    found = _by_settings([name])
    if len(found) > 1:
        raise UsageError(
            f"{name!r} names several machines: {', '.join(one.name for one in found)}; use infra.connect_all"
        )
    return connection(found[0])


def connect_all(*names: str) -> "fabric.ThreadingGroup":
    """Return a group of connections: see `infra.connect_all`."""
    import fabric

    return fabric.ThreadingGroup.from_connections([connection(one) for one in _by_settings(names)])


def _by_settings(words: Sequence[str]) -> list[TargetMachine]:
    settings = Settings.load(ROOT)
    with Journal.open(settings.state_file) as journal:
        return find(words, not words, journal, settings)


def _own(settings: Settings, word: str = "") -> inventory.OwnMachines:
    return inventory.load(settings.pools, word=word) if settings.pools.exists() else inventory.OwnMachines()


def _named(word: str, live: Sequence[Op], journal: Journal, settings: Settings) -> list[TargetMachine]:
    ways: tuple[Callable[[Op], bool], ...] = (
        lambda op: word in (op.run, run_rows.run_of(op)),
        lambda op: word == op.pod_set,
        lambda op: word == op.service,
    )
    for is_meant in ways:
        if ops := [op for op in live if word and is_meant(op)]:
            return [_pod(op, settings) for op in ops]
    own = _own(settings, word)  # ssh is asked about these machines
    if hosts := [host for host in own.hosts if word in (host.pool, host.place, host.name)]:
        connect = connections(settings)
        inventory.tell_unusable(own.select_unusable(word))
        return [TargetMachine(host.place, "", lambda host=host: connect(host)) for host in hosts]  # type: ignore[misc]
    if ops := [op for op in live if word and op.run.startswith(word)]:
        return [_pod(op, settings) for op in ops]
    if word in journal.runs():
        raise UsageError(f"{word} has ended and has no machine")
    inventory.refuse_unusable(own.unusable, word)
    known = [*(op.run for op in live), *(op.pod_set for op in live), *(op.service for op in live)]
    own = _own(settings)
    known = sorted({*known, *(host.pool for host in own.hosts), *(host.place for host in own.hosts)} - {""})
    near = difflib.get_close_matches(word, known, 3) or known[:MOST_NAMED]
    raise UsageError(f"{word!r} not found; available: {', '.join(near) or 'none yet'}")


def _pod(op: Op, settings: Settings) -> TargetMachine:
    return TargetMachine(op.run, str(observation.folder_of(op).root), lambda: transport_to(settings, op))
