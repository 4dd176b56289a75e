"""The metrics of a run from any source: the pod, artifacts, the store, or the local copy of a finished pod."""

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from infra.errors import SlipwayError
from infra.ledger.op import TERMINATING, Op
from infra.runs.lookup import transport_to
from infra.runs.observation import folder_of
from infra.runs.run_home import RunHome
from infra.runs.sync import fetched_files, reports
from infra.runs.timing import Say
from infra.settings import VENDORS, Settings
from store import credentials, untrusted_input
from store.artifacts.artifacts import Store
from store.manifest import StoreError, kept_name
from store.run_sync.run_folder import RunFolder

Place = Callable[[str, str], bytes | None]
"""Reader of metrics: (phase, file) -> content, or None for a missing file; the phase "" selects a log."""
GPUS = "gpus.log"


def metric_readers(op: Op, settings: Settings, tell: Say) -> Iterator[Place]:
    """Yield readers for all sources of metrics of a run, the most likely source first.

    An unreachable source is skipped and reported to `tell`.
    """
    with _told(op, "its pod", tell):
        # A pod that is gone or ending is not queried; the local copies are used.
        is_gone = op.vendor in VENDORS and (not op.is_live or op.state == TERMINATING)
        if op.address and not is_gone and reports.read_remote(op, reach := transport_to(settings, op)):
            root = folder_of(op).root

            def pod(phase: str, file: str) -> bytes | None:
                with contextlib.suppress(FileNotFoundError):
                    return reach.get(root / _inside(phase, file))
                return None

            yield pod
    makings = {step.name: step.config["making"] for step in op.read_job().steps if "making" in step.config}

    def artifact(phase: str, file: str) -> bytes | None:
        making = makings.get(phase)
        return of_artifact(settings.store, making["name"], making["fingerprint"], file) if making else None

    if credentials.kind(settings.store) == "":  # a remote store would download the whole model
        yield artifact
    if op.store:
        with _told(op, f"its store {op.store}", tell):
            left = RunFolder(op.store, op.run)
            names = left.file_sizes()

            def store(phase: str, file: str) -> bytes | None:
                name = _inside(phase, file)
                return b"".join(left.read_chunks(name)) if name in names else None

            yield store
    kept = RunHome.for_run(op.run, settings.homes).pod.root

    def home(phase: str, file: str) -> bytes | None:
        with contextlib.suppress(FileNotFoundError):
            return fetched_files.content(kept, _inside(phase, file))
        return None

    yield home


def gpu_memory(spoken: Sequence[Place], scale: float) -> list[tuple[float, float]]:
    """Return (minutes since the first sample, GB used on the fullest GPU) per sample; [] without GPUs.

    scale: speed of the clock for costs relative to the real clock.
    """
    content = next((found for place in spoken if (found := place("", GPUS))), b"")
    points: list[tuple[float, float]] = []
    first = None
    for line in content.splitlines():
        with contextlib.suppress(ValueError, KeyError, TypeError):
            said = untrusted_input.parse(line)
            at, used = float(said["at"]), [float(one) for one in said["used_bytes"] if one is not None]
            first = at if first is None else first
            if used and math.isfinite(at):
                points.append(((at - first) * scale / 60, max(used) / 1e9))
    return points


def _inside(phase: str, file: str) -> str:
    return f"work/runs/{phase}/{file}" if phase else f"logs/{file}"


def of_artifact(store: str, name: str, fingerprint: str, file: str) -> bytes | None:
    """Return a file of an artifact in a local store without verification, which would read the whole model."""
    for one in (kept_name(name, fingerprint), name):
        with contextlib.suppress(StoreError):  # not published yet
            if Store(store).manifest(one).fingerprint == fingerprint:
                return read(Path(store) / one / file)
    return None


@contextlib.contextmanager
def _told(op: Op, what: str, tell: Say) -> Iterator[None]:
    try:
        yield
    except (SlipwayError, StoreError) as error:
        tell(f"{op.run}: {what} cannot be read: {error}")


def read(path: Path) -> bytes | None:
    """Return the content of a file, or None for a missing file."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None
