"""The logs of a run: download to this machine, and selection of the log files to show."""

from pathlib import Path

from infra.agent.job import earlier_part, is_earlier_part
from infra.errors import SlipwayError, UsageError
from infra.ledger.journal import Journal
from infra.ledger.op import Op
from infra.runs import observation
from infra.runs.run_home import RunHome
from infra.runs.sync import mirror
from infra.runs.timing import Say
from infra.selection import registry
from infra.settings import Settings
from infra.transport.protocol import ConnectionLost, TimedOut, Unreachable
from store.manifest import StoreError


def is_gone(op: Op, settings: Settings) -> bool:
    """Return whether the pod can no longer be queried, so that only local and stored logs exist.

    A provider without its inventory or vendor key on this machine also counts as gone.
    """
    if op.is_live:
        return False
    try:
        return registry.provider(settings, op.vendor).is_ephemeral
    except UsageError:
        return True


def fetch(op: Op, journal: Journal, settings: Settings, tell: Say) -> bool:
    """Copy the logs of the pod to this machine; return True if the pod is unreachable or gone.

    In this case only the logs on this machine and in the store are available.
    """
    if not op.address or is_gone(op, settings):
        return True
    try:
        transport = registry.provider(settings, op.vendor).reach(observation.pod_of(op))
        mirror.bring_logs(op, transport, RunHome.for_run(op.run, settings.homes))
        return False
    except SlipwayError as error:
        if is_gone(journal.op(op.token), settings):  # ended meanwhile
            return True
        is_nowhere = isinstance(error, UsageError)  # removed from the inventory, or unusable
        if is_nowhere and not op.is_live:
            return True
        if not (is_nowhere or isinstance(error, (ConnectionLost, TimedOut, Unreachable))):
            raise
        tell(f"{op.run}: {error}")
        return True


def fetch_from_store(op: Op, settings: Settings, tell: Say) -> None:
    """Copy the logs uploaded to the store by the uploader of the pod; the pod may be gone."""
    if not op.store:
        return
    try:
        mirror.bring_logs_from_store(op, RunHome.for_run(op.run, settings.homes))
    except StoreError as error:  # fall back to the copies on this machine
        tell(f"{op.run}: {error}")


def choose(folder: Path, op: Op, file: str, follow: bool) -> list[Path]:
    """Return the existing logs in the order of the steps, each after the earlier part of a rotated log."""
    if file:
        path = folder / f"{file}.log"
        if not path.exists() and not follow:
            known = sorted(one.stem for one in folder.glob("*.log"))
            raise UsageError(f"{op.run} has no log {file!r}; available: {', '.join(known) or 'none yet'}")
        return _with_earlier(path)
    try:
        names = ["environment", *(step.name for step in op.read_job().steps)]
    except UsageError:  # the order of the steps is unknown
        names = sorted(one.stem for one in folder.glob("*.log") if not is_earlier_part(one))
    return [part for name in names if (path := folder / f"{name}.log").exists() for part in _with_earlier(path)]


def _with_earlier(path: Path) -> list[Path]:
    part = earlier_part(path)
    return [part, path] if part.exists() else [path]


def choose_errors(folder: Path, step: str) -> list[Path]:
    """Return the error logs, oldest first; with `step`, only logs that name the step in the first line."""
    found = sorted(folder.glob("error-*.log"))
    return [path for path in found if not step or f", step {step}: " in path.read_text(errors="replace").split("\n")[0]]
