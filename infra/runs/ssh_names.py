"""SSH host names for the pods of the journal, in the include file of `infra.transport.ssh_include`.

`inv ssh --config` creates the file. From then on, a hand-over adds a pod and a proven end removes the pod. This module
opens no connection.
"""

import contextlib
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from infra.errors import SlipwayError
from infra.ledger.journal import Journal
from infra.ledger.op import Op
from infra.providers import Provider, Vendors
from infra.runs.observation import pod_of
from infra.transport import ssh_include
from infra.transport.ssh import Ssh
from infra.transport.ssh_include import PodNames, block

CONFIG = Path(".ssh", "config")  # Relative to the home folder.


@dataclass(frozen=True)
class WrittenNames:
    """The names written to the SSH file, and the names left out."""

    names: tuple[str, ...]
    left_out: tuple[str, ...]
    """Names left out, each with a reason."""


def config_file() -> Path:
    """Return the path of the user's SSH configuration."""
    return Path.home() / CONFIG


def write(journal: Journal, vendors: Vendors) -> WrittenNames:
    """Write the file again with all live pods."""
    file = PodNames.for_journal(journal.path)
    with file.hold_lock():
        taken = _taken(file)
        blocks: dict[str, str] = {}
        names, left_out = [], []
        for op in journal.ops(live=True):
            if op.detached:  # A newer pod has the name.
                continue
            try:
                blocks[op.token] = _block(op, vendors(op.vendor), taken)
                names.append(op.run)
            except SlipwayError as error:
                left_out.append(f"{op.run}: {error}")
        file.write(blocks)
    return WrittenNames(tuple(names), tuple(left_out))


def add(op: Op, provider: Provider, journal: Journal) -> None:
    """Add a pod just reached, in place of an earlier pod with the same name; no-op without the file."""
    file = PodNames.for_journal(journal.path)
    if not file.exists:
        return
    with contextlib.suppress(SlipwayError, OSError), file.hold_lock():  # Names never fail a run; --config shows errors.
        if not file.exists:
            return
        blocks = {token: said for token, said in file.read().items() if f"\nHost {op.run}\n" not in said}
        file.write({**blocks, op.token: _block(op, provider, _taken(file))})


def take_away(op: Op, journal: Journal) -> None:
    """Remove the name of a gone pod."""
    file = PodNames.for_journal(journal.path)
    if not file.exists:
        return
    with contextlib.suppress(OSError), file.hold_lock():  # The host key check refuses a stale entry.
        blocks = file.read()
        if blocks.pop(op.token, None):
            file.write(blocks)


def _taken(file: PodNames) -> Collection[str]:
    """Return the names of other machines in the user's own configuration."""
    return set(ssh_include.aliases(config_file(), but=file.path))


def _block(op: Op, provider: Provider, taken: Collection[str]) -> str:
    if op.run in taken:
        raise SlipwayError(f"~/.ssh/config has a different machine of this name; connect with: inv ssh {op.run}")
    if provider.is_here:
        raise SlipwayError("the run works on this machine, without ssh")
    if not op.address:
        raise SlipwayError("the pod has no address yet")
    way = provider.reach(pod_of(op))
    if not isinstance(way, Ssh):
        raise SlipwayError(f"{op.vendor} is not reached by ssh")
    return block(op.run, op.token, way)
