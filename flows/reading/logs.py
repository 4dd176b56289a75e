"""The logs of a run: brought to this machine from wherever they are, and which of them are meant."""

from pathlib import Path

from infra.agent.job import earlier_part, is_earlier_part
from infra.errors import SlipwayError, UsageError
from infra.ledger.journal import Journal
from infra.ledger.op import Op
from infra.runs import sight
from infra.runs.run_home import RunHome
from infra.runs.sync import mirror
from infra.runs.timing import Say
from infra.selection import registry
from infra.settings import Settings
from infra.transport.protocol import Lost, TimedOut, Unreachable
from store.manifest import StoreError


def is_gone(op: Op, settings: Settings) -> bool:
    """Return whether it cannot be asked any more, so that its logs are here or in the store only.

    So it is where its inventory, or the key of its vendor, is on another machine.
    """
    if op.is_live:
        return False
    try:
        return registry.provider(settings, op.vendor).fleeting
    except UsageError:
        return True


def bring(op: Op, journal: Journal, settings: Settings, tell: Say) -> bool:
    """Bring the logs home; tell whether what is there, and in the store, has to do: the pod is deaf or gone."""
    if not op.address or is_gone(op, settings):
        return True
    try:
        transport = registry.provider(settings, op.vendor).reach(sight.pod_of(op))
        mirror.bring_logs(op, transport, RunHome.of(op.run, settings.homes))
        return False
    except SlipwayError as error:
        if is_gone(journal.op(op.token), settings):  # meanwhile
            return True
        is_nowhere = isinstance(error, UsageError)  # its machine has left the inventory, or cannot be used as it stands
        if is_nowhere and not op.is_live:
            return True
        if not (is_nowhere or isinstance(error, (Lost, TimedOut, Unreachable))):
            raise
        tell(f"{op.run}: {error}")
        return True


def bring_from_store(op: Op, settings: Settings, tell: Say) -> None:
    """Bring what the pod itself has brought to the store: it may be gone."""
    if not op.store:
        return
    try:
        mirror.bring_logs_from_store(op, RunHome.of(op.run, settings.homes))
    except StoreError as error:  # then the copies on this machine are used
        tell(f"{op.run}: {error}")


def choose(folder: Path, op: Op, file: str, follow: bool) -> list[Path]:
    """Return the logs that there are, in the order of the steps; before one that was rotated its earlier part."""
    if file:
        path = folder / f"{file}.log"
        if not path.exists() and not follow:
            known = sorted(one.stem for one in folder.glob("*.log"))
            raise UsageError(f"{op.run} has no log {file!r}; available: {', '.join(known) or 'none yet'}")
        return _with_earlier(path)
    try:
        names = ["environment", *(step.name for step in op.read_job().steps)]
    except UsageError:  # the order of the steps is not known
        names = sorted(one.stem for one in folder.glob("*.log") if not is_earlier_part(one))
    return [part for name in names if (path := folder / f"{name}.log").exists() for part in _with_earlier(path)]


def _with_earlier(path: Path) -> list[Path]:
    part = earlier_part(path)
    return [part, path] if part.exists() else [path]


def choose_errors(folder: Path, step: str) -> list[Path]:
    """Return the error logs, oldest first; of one step, when it is named: their first line says whose they are."""
    found = sorted(folder.glob("error-*.log"))
    return [path for path in found if not step or f", step {step}: " in path.read_text(errors="replace").split("\n")[0]]
