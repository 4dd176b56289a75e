"""The machines that words name: pods by their runs, sets and services, and own machines by their pools.

In: words as they were typed. Out: machines, and connections to them. Nothing is changed.
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
from infra.runs import run_rows, sight
from infra.runs.lookup import way
from infra.settings import Settings
from infra.transport.protocol import Transport
from infra.transport.ssh import Ssh

if TYPE_CHECKING:
    import fabric

MOST_NAMED = 10


@dataclass(frozen=True)
class TargetMachine:
    """A machine that commands can be run on."""

    name: str
    folder: str
    """Folder of the pod, where its commands start; "" = the home folder of an own machine."""
    reach: Callable[[], Transport] = field(compare=False, repr=False)


def find(words: Sequence[str], everything: bool, journal: Journal, settings: Settings) -> list[TargetMachine]:
    """Return the machines that the words name, each once, in their order; with `everything` those of all live pods.

    A word is the first of these that it can be: a run, with all its nodes; a set of pods; a service; a pool of own
    machines, or one of them; the beginning of the names of pods. Raises UsageError for one that is none of them.
    """
    live = [op for op in journal.ops(live=True) if not op.detached]  # others were given up: their machines are lost
    own = inventory.load(settings.pools) if settings.pools.exists() else inventory.OwnMachines()
    found: dict[str, TargetMachine] = {}
    for op in live if everything else ():
        found[op.run] = _pod(op, settings)
    for word in words:
        found |= {one.name: one for one in _named(word, live, own, journal, settings)}
    if not found:
        raise UsageError("there is no pod; run: inv pod.create, or name own machines, as inv pool.list shows them")
    return list(found.values())


def connection(machine: TargetMachine) -> Any:
    """Return a `fabric.Connection` to a machine, not open yet. Raises SlipwayError when it has no address."""
    transport = machine.reach()
    if isinstance(transport, Ssh):
        return transport.connection(machine.name, machine.folder)
    from infra.transport.fabric_connection import LocalConnection

    return LocalConnection(machine.name, machine.folder)


def connect(name: str) -> "fabric.Connection":
    """Return a connection to the one machine of that name: see `infra.connect`."""
    found = _by_settings([name])
    if len(found) > 1:
        raise UsageError(f"{name!r} names several machines: {', '.join(one.name for one in found)}; "
                         "infra.connect_all takes it")  # fmt: skip
    return connection(found[0])


def connect_all(*names: str) -> "fabric.ThreadingGroup":
    """Return a group of connections: see `infra.connect_all`."""
    import fabric

    return fabric.ThreadingGroup.from_connections([connection(one) for one in _by_settings(names)])


def _by_settings(words: Sequence[str]) -> list[TargetMachine]:
    settings = Settings.load(ROOT)
    with Journal.open(settings.state_file) as journal:
        return find(words, not words, journal, settings)


def _named(
    word: str, live: Sequence[Op], own: inventory.OwnMachines, journal: Journal, settings: Settings
) -> list[TargetMachine]:
    ways: tuple[Callable[[Op], bool], ...] = (
        lambda op: word in (op.run, run_rows.run_of(op)),
        lambda op: word == op.pod_set,
        lambda op: word == op.service,
    )
    for is_meant in ways:
        if ops := [op for op in live if word and is_meant(op)]:
            return [_pod(op, settings) for op in ops]
    if hosts := [host for host in own.hosts if word in (host.pool, host.place, host.name)]:
        connect = connections(settings)
        inventory.tell_unusable(own.unusable_in(word))
        return [TargetMachine(host.place, "", lambda host=host: connect(host)) for host in hosts]  # type: ignore[misc]
    if ops := [op for op in live if word and op.run.startswith(word)]:
        return [_pod(op, settings) for op in ops]
    if word in journal.runs():
        raise UsageError(f"{word} has ended: it has no machine any more")
    inventory.refuse_unusable(own.unusable, word)
    known = [*(op.run for op in live), *(op.pod_set for op in live), *(op.service for op in live)]
    known = sorted({*known, *(host.pool for host in own.hosts), *(host.place for host in own.hosts)} - {""})
    near = difflib.get_close_matches(word, known, 3) or known[:MOST_NAMED]
    raise UsageError(f"nothing is called {word!r}; available: {', '.join(near) or 'nothing yet'}")


def _pod(op: Op, settings: Settings) -> TargetMachine:
    return TargetMachine(op.run, str(sight.folder_of(op).root), lambda: way(settings, op))
