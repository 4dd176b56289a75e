"""The restore of a run on a new pod, from the files that the previous pod saved in the store.

`Fetch` takes the folder of the run in the store and the outputs of the steps. On the pod, `Fetch` restores the newest
intact checkpoint of each folder, the marks of steps with an artifact in the store, the metrics up to these checkpoints,
and the logs, which continue at their last line. For the first start of a run there is no data and nothing to do. The
restore is idempotent.
"""

import json
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from store import local_files, untrusted_input
from store.artifacts.artifacts import Store
from store.backends.backend import FileTooLarge
from store.backoff import Backoff
from store.manifest import StoreError
from store.patience import StoreAway
from store.run_sync.mounts import MOUNT, MountFolder
from store.run_sync.run_folder import ACKNOWLEDGED, DamagedCheckpoint, ListedCheckpoint, RunFolder, by_folder, step_of
from store.untrusted_input import FIGURES, LOG

TRIES, BACKOFF = 6, Backoff(first_s=1.0, longest_s=32.0)
EARLIER = "state/earlier"  # earlier parts of logs that this pod had started before the restore

T = TypeVar("T")


def read_acknowledged(root: Path) -> dict[str, float]:
    """Return the names that the pod has recorded as stored, with times; {} if the record is unreadable."""
    try:
        known = untrusted_input.load(root / ACKNOWLEDGED)
        return {name: untrusted_input.typed(known, name, float) for name in known}
    except (OSError, ValueError):
        return {}


def earlier_log_part(root: Path, log: str) -> Path | None:
    """Return the file with the part of a log from an earlier pod (for a `.times` file: of the dated log).

    Return None without an earlier part.
    """
    path = root / EARLIER / Path(log).with_suffix(".log").name
    return path if log.startswith("logs/") and path.exists() else None


class Fetch:
    def __init__(
        self,
        root: Path,
        folder: RunFolder,
        makings: Mapping[str, Mapping[str, str]],
        emit: Callable[..., None],
        say: Callable[[str], None],
        mounts: Sequence[MountFolder] = (),
    ) -> None:
        """Prepare the restore of a run.

        makings: by step, the name and fingerprint of the output artifact and the URI of its store. mounts: the
        mounted folders.
        """
        self.mounts = mounts
        self.root, self.folder, self.makings, self.emit, self.say = root, folder, makings, emit, say
        self.checkpoints: dict[str, ListedCheckpoint] = {}  # restored checkpoints by name
        self.damaged: list[str] = []

    def run(self) -> None:
        """Restore all files of the run.

        Raise StoreError if a folder has no intact checkpoint, or if the store stays unreachable.
        """
        names = self._retry(self.folder.file_sizes)
        if names:
            self._restore_checkpoints(names)
        marks = [step for step in self.makings if f"state/marks/{step}.json" in names and self._restore_mark(step)]
        figures = [name for name in names if self._restore_metrics(name, marks)]
        logs = [name for name in names if LOG.fullmatch(name) and self._restore_log(name)]
        if self.checkpoints:
            acknowledged = {**read_acknowledged(self.root), **dict.fromkeys(self.checkpoints, time.time())}
            local_files.replace(self.root / ACKNOWLEDGED, json.dumps(acknowledged, indent=1).encode())
        self.bring_mounts()
        brought = sorted(self.checkpoints)
        said = ", ".join([*brought, *(f"the work of step {one}" for one in marks), *figures, f"{len(logs)} logs"])
        self._report(f"brought from the store: {said}" if names else "the store holds no files of this run yet")
        self.emit("result", checkpoints=brought, marks=marks, figures=figures, logs=len(logs), damaged=self.damaged)

    def bring_mounts(self) -> None:
        """Download the missing files of the mounted folders, but not of buckets that rclone mounts.

        Raise StoreError if a store stays unreachable.
        """
        for mount in self.mounts:
            why = self._retry(mount.leave_to_rclone)
            if not why:
                self._report(f"mount {mount.name}: rclone mounts {mount.uri} while a script runs")
                continue
            number = self._retry(lambda mount=mount: mount.download_missing(self._progress))  # type: ignore[misc]
            copied = f", as a copy, because {why}" if mount.kind == MOUNT else ""
            self._report(f"mount {mount.name}: {number} files brought from {mount.uri}{copied}")

    def _restore_checkpoints(self, names: Mapping[str, int]) -> None:
        there = by_folder(names)
        for name in self._retry(self.folder.verified_checkpoints):
            there.setdefault(name.rpartition("/")[0], [])
        lost = [above for above, checkpoints in there.items() if not self._restore_newest(above, checkpoints)]
        if lost:
            seen = "; ".join(self.damaged) or "the checkpoints were acknowledged, but are missing now"
            raise StoreError(
                f"no checkpoint of {', '.join(lost)} in {self.folder.uri} under runs/ is whole: {seen}. Put a good "
                f"copy back; or, to start again, remove the folder and the matching lines in {ACKNOWLEDGED}"
            )

    def _restore_newest(self, above: str, checkpoints: list[str]) -> bool:
        """Restore the newest intact checkpoint of a folder; return whether this machine has a checkpoint now."""
        here = [step_of(path.parent.name) for path in (self.root / above).glob("step-*/MANIFEST.json")]
        for name in checkpoints:
            if here and max(here) >= step_of(name):
                return True
            try:
                self.checkpoints[name] = self._retry(
                    lambda name=name: self.folder.get_checkpoint(name, self.root / name, self._progress)  # type: ignore[misc]
                )
                return True
            except DamagedCheckpoint as error:
                self.damaged.append(f"{name}: {error}")
                self._report(f"passed over {self.damaged[-1]}")
        return bool(here)

    def _restore_mark(self, step: str) -> bool:
        """Restore the mark of a step if the store has the artifact of the step; without a mark the step runs again."""
        name, making = f"state/marks/{step}.json", self.makings[step]
        if (self.root / name).exists():
            return False
        found = self._retry(lambda: Store(making["store"]).find(making["name"], making["fingerprint"]))
        if found.problem:
            self._report(f"{step} is done again: {making['name']}: {found.problem}")
            return False
        try:
            mark = self._retry(lambda: self.folder.read(name))
        except FileTooLarge:
            mark = b""
        if not _is_mark(mark):
            self._report(f"{step} runs again, because the mark of the step is damaged")
            return False
        local_files.replace(self.root / name, mark)
        return True

    def _restore_metrics(self, name: str, marks: list[str]) -> bool:
        """Restore metrics up to the checkpoint from which the phase resumes, or all metrics of a finished phase."""
        match = FIGURES.fullmatch(name)
        if not match or (self.root / name).exists():
            return False
        steps = [one.step for one in self.checkpoints.values() if one.phase == match[1]]
        if not steps and match[1] not in marks:
            return False
        content = self._retry(lambda: b"".join(self.folder.read_chunks(name)))
        local_files.replace(self.root / name, content if match[1] in marks else _up_to(content, max(steps)))
        return True

    def _restore_log(self, name: str) -> bool:
        """Restore a log; if this pod has started the log already, store the earlier part in a separate file."""
        path, there = self.root / name, self._retry(lambda: b"".join(self.folder.read_chunks(name)))
        if not path.exists():
            local_files.replace(path, there)
        elif path.suffix == ".log" and path.read_bytes()[: len(there)] != there:
            local_files.replace(self.root / EARLIER / path.name, there)
        return True

    def _progress(self, done: int, total: int) -> None:
        self.emit("progress", done=done, total=total, unit="bytes")

    def _report(self, text: str) -> None:
        self.say(text)
        self.emit("note", text=text)

    def _retry(self, action: Callable[[], T]) -> T:
        """Return the result of `action`, with retries while the store fails.

        Raise DamagedCheckpoint, and StoreError after the last retry.
        """
        for tries in range(1, TRIES + 1):
            try:
                return action()
            except (StoreAway, OSError) as error:
                if tries == TRIES:
                    raise StoreError(f"{self.folder.uri}: {type(error).__name__}: {error}") from error
                wait_s = BACKOFF.wait_s(tries)
                self._report(f"{self.folder.uri}: {type(error).__name__}: {error}; again in {wait_s:.1f} s")
            time.sleep(wait_s)
        raise AssertionError


def _is_mark(content: bytes) -> bool:
    try:
        mark = untrusted_input.mapping(content)
        return bool(untrusted_input.typed(mark, "digest", str)) and "result" in mark
    except ValueError:
        return False


def _up_to(content: bytes, step: int) -> bytes:
    """Return the complete lines of all steps up to `step`."""
    kept = []
    for line in content.splitlines(keepends=True):
        try:
            if not line.endswith(b"\n") or untrusted_input.typed(untrusted_input.mapping(line), "step", int) > step:
                break
        except ValueError:
            break
        kept.append(line)
    return b"".join(kept)
