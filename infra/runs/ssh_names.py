"""The names of the journal's pods for the system's `ssh`: kept as pods come and go, once somebody has asked for them.

In: rows and their providers. Out: the file of `infra.transport.ssh_include`. `inv ssh --config` writes it whole; a
hand-over adds a pod, and the proof that one is gone takes it away. Nobody is connected to.
"""

import contextlib
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from infra.errors import SlipwayError
from infra.ledger.journal import Journal
from infra.ledger.op import Op
from infra.providers import Provider, Vendors
from infra.runs.sight import pod_of
from infra.transport import ssh_config
from infra.transport.ssh import Ssh
from infra.transport.ssh_include import PodNames, block

CONFIG = Path(".ssh", "config")  # below the home folder


@dataclass(frozen=True)
class WrittenNames:
    """The names that a file of SSH names holds, and those it leaves out."""

    names: tuple[str, ...]
    left_out: tuple[str, ...]
    """Names left out, each with the reason in words."""


def config_file() -> Path:
    """Return the user's own file."""
    return Path.home() / CONFIG


def write(journal: Journal, vendors: Vendors) -> WrittenNames:
    """Write the file anew, of all pods that are there."""
    file = PodNames.beside(journal.path)
    with file.changing():
        taken = _taken(file)
        blocks: dict[str, str] = {}
        names, left_out = [], []
        for op in journal.ops(live=True):
            if op.detached:  # another pod has its name
                continue
            try:
                blocks[op.token] = _block(op, vendors(op.vendor), taken)
                names.append(op.run)
            except SlipwayError as error:
                left_out.append(f"{op.run}: {error}")
        file.write(blocks)
    return WrittenNames(tuple(names), tuple(left_out))


def add(op: Op, provider: Provider, journal: Journal) -> None:
    """Add a pod that was reached just now, in the place of an earlier one of its name."""
    file = PodNames.beside(journal.path)
    if not file.is_wanted:
        return
    with contextlib.suppress(SlipwayError, OSError), file.changing():  # no run fails for its name; --config tells why
        if not file.is_wanted:
            return
        blocks = {token: said for token, said in file.read().items() if f"\nHost {op.run}\n" not in said}
        file.write({**blocks, op.token: _block(op, provider, _taken(file))})


def take_away(op: Op, journal: Journal) -> None:
    """Remove the name of a pod that is gone."""
    file = PodNames.beside(journal.path)
    if not file.is_wanted:
        return
    with contextlib.suppress(OSError), file.changing():  # the rest is refused by its host key
        blocks = file.read()
        if blocks.pop(op.token, None):
            file.write(blocks)


def _taken(file: PodNames) -> Collection[str]:
    """Return the names that the user's own file has for other machines."""
    return set(ssh_config.aliases(config_file(), but=file.path))


def _block(op: Op, provider: Provider, taken: Collection[str]) -> str:
    if op.run in taken:
        raise SlipwayError(f"~/.ssh/config has another machine of that name; reach this one by: inv ssh {op.run}")
    if provider.is_here:
        raise SlipwayError("it works on this machine, without ssh")
    if not op.address:
        raise SlipwayError("it has no address yet")
    way = provider.reach(pod_of(op))
    if not isinstance(way, Ssh):
        raise SlipwayError(f"{op.vendor} is not reached by ssh")
    return block(op.run, op.token, way)
