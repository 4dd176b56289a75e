"""The uploader, a sync sidecar: uploads the files of a run from its pod to the store and restores the run on a new pod.

    python -m store.uploader carry --config FILE   runs beside the steps until SIGTERM
    python -m store.uploader fetch --config FILE   runs as the first step: restores files of an earlier pod of the run

The uploader reads the folder of the pod (the parent of SLIPWAY_WORK) and a `Config`, and writes `<store>/runs/<run>/`,
see `run_folder`. On the pod the uploader writes `state/acknowledged.json` ({name: UTC epoch seconds} of files verified
in the store) and `state/waiting.json` ({"names": [...]} of pending uploads). Until the fetch step has its mark, only
error logs and the ending are uploaded, since other files would overwrite the logs and metrics of an earlier pod. Secret
values are masked in all uploads except checkpoints and mounted files, whose bytes must not change.
"""

import contextlib
import itertools
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from store import local_files
from store.backoff import Backoff
from store.manifest import StoreError
from store.masking import Mask
from store.run_sync.mounts import STILL, WORK, MountFolder
from store.run_sync.restore import Fetch, earlier_log_part, read_acknowledged
from store.run_sync.run_folder import ACKNOWLEDGED, ENDING, MANIFEST, DamagedCheckpoint, RunFolder, by_folder, step_of
from store.untrusted_input import CHECKPOINT

WAITING = "state/waiting.json"
LOOK_S = 0.5
BACKOFF = Backoff(first_s=1.0, longest_s=60.0)
LAST_WAIT_S = 5.0  # retry interval after the end of the run
LEAVE_S = 0.5  # time reserved for logging the files left behind
POLL_S = 0.1
PIECE_BYTES = 1 << 20
KEPT = 2  # checkpoints kept in each folder
SHARE = 10  # uploads of logs and metrics take at most 1/SHARE of the time
# Safe to upload at any time: an earlier pod has no such file, or the newest replaces it.
WORDS = (ENDING, "logs/error-*.log")
ONCE = ("state/marks/*.json",)
GROWING = (
    *("work/runs/*/metrics.jsonl", "work/runs/*/samples.jsonl", "work/tracking/tensorboard/*/events.out.tfevents.*"),
    *("logs/*.log", "logs/*.times"),
)
# Upload limit per log. The guard of a pod rotates logs at a much smaller size, unless a program writes a burst.
MOST_LOG_BYTES = 256 << 20
OOM_FIRST = "600"  # the OOM killer picks the uploader before the step, and long before the agent


@dataclass(frozen=True)
class Config:
    store: str
    run: str
    makings: Mapping[str, Mapping[str, str]]
    """Name and fingerprint of the artifact that each step makes, and the URI of its store."""
    every_s: float = 60.0
    """Shortest interval between uploads of grown logs and metrics; every checkpoint also triggers an upload."""
    after: str = "fetch"
    """Step whose mark starts the uploads."""
    secrets: Sequence[str] = ()
    """Names of the environment variables whose values are masked."""
    mounts: Sequence[Sequence[str]] = ()
    """Mounted folders: name, address in a bucket or "" for the folder of the store, and kind.

    The kind is "" for a copy with changes to upload, "still" for a copy whose changes stay here, and "mount" for a
    bucket that rclone mounts if the machine can."""

    def mount_folders(self, root: Path) -> list[MountFolder]:
        """Return all mounted folders."""
        return [MountFolder(self.store, name, root, place, kind) for name, place, kind in self.mounts]


class Uploader:
    """The uploader of a run, with a record of all files in the store."""

    def __init__(self, root: Path, config: Config, say: Callable[[str], None]) -> None:
        self.root, self.config, self.say = root, config, say
        self.folder = RunFolder(config.store, config.run)
        self.mounts = [one for one in config.mount_folders(root) if one.kind != STILL]
        self.known = read_acknowledged(root)
        self.mask = Mask(os.environ.get(name, "") for name in config.secrets)
        self.carried: dict[str, tuple[int, int]] = {}  # size and mtime of uploaded files
        self.begun = f"state/marks/{config.after}.json"
        self.damaged: dict[str, str] = {}
        self.tidy: set[str] = set()  # checkpoint folders in the store with no checkpoint to remove
        self.waiting: list[str] = []
        self.problem = ""
        self.is_noted = False  # False until this process has written WAITING: a note of an earlier process may exist
        self.grown_at = 0.0

    def upload_changes(self, last: bool = False) -> None:
        """Scan the pod once and upload all changes. Errors of the store propagate; the remaining files stay pending."""
        if not (self.root / self.begun).exists():
            words = self._changed(WORDS)
            self._set_waiting(words)
            self._upload_files(words)
            return
        whole = self._intact_checkpoints()
        checkpoints = [names[0] for names in whole.values() if names and names[0] not in self.known]
        grown = last or bool(checkpoints) or time.monotonic() >= self.grown_at
        files = self._changed(WORDS + ONCE)  # list after the checkpoints: metrics must cover the uploaded checkpoints
        growing = [name for name in self._changed(GROWING) if name not in files] if grown else []
        mounted = [f"{WORK}/{one.name}/{file}" for one in self.mounts for file in one.pending()]
        self._set_waiting([*checkpoints, *files, *(growing if last else ()), *self.damaged, *mounted])
        self._upload_files(files)
        mounted = [f"{WORK}/{one.name}/{file}" for one in self.mounts for file in one.upload_changes(last)]
        began = time.monotonic()
        self._upload_files(growing)
        if growing:
            now = time.monotonic()
            self.grown_at = now + max(self.config.every_s, SHARE * (now - began))
        for above, names in whole.items():
            self._upload_newest(names)
            self._remove_older(above)
        self._set_waiting([*self.damaged, *mounted])

    def _intact_checkpoints(self) -> dict[str, list[str]]:
        """Return the intact local checkpoints by folder, newest first."""
        paths = self.root.glob(f"work/checkpoints/*/step-*/{MANIFEST}")
        found = by_folder(path.relative_to(self.root).as_posix() for path in paths)
        self.damaged = {name: why for name, why in self.damaged.items() if (self.root / name).exists()}
        return {folder: [one for one in names if one not in self.damaged] for folder, names in found.items()}

    def _changed(self, patterns: tuple[str, ...]) -> list[str]:
        names = []
        for pattern in patterns:
            for path in sorted(self.root.glob(pattern)):
                name = path.relative_to(self.root).as_posix()
                if path.suffix == ".times" and earlier_log_part(self.root, name):
                    # The .times file dates the bytes of the log of this pod, and the stored log starts with the log of
                    # the earlier pod.
                    continue
                is_ours = name == self.begun or path.name.startswith(".")
                if not is_ours and self.carried.get(name) != _stamp(path):
                    names.append(name)
        return names

    def _upload_files(self, names: list[str]) -> None:
        stamps, files = {}, {}
        for name in names:
            path, before = self.root / name, earlier_log_part(self.root, name)
            stamp = _stamp(path)
            if stamp is None:
                continue  # removed since the scan
            earlier = _pieces(before, before.stat().st_size) if before else ()
            most = min(stamp[0], MOST_LOG_BYTES) if name.startswith("logs/") else stamp[0]
            stamps[name], files[name] = stamp, self.mask(itertools.chain(earlier, _pieces(path, most)))
        if not files:
            return
        self.folder.put(files)
        self.carried |= stamps
        self._acknowledge({**self.known, **dict.fromkeys(files, time.time())})
        self._set_waiting([one for one in self.waiting if one not in files])

    def _upload_newest(self, names: list[str]) -> None:
        """Upload the newest intact checkpoint of a folder unless the store has the checkpoint already."""
        for name in names:
            if name in self.known or self._upload_checkpoint(name):
                return

    def _upload_checkpoint(self, name: str) -> bool:
        """Upload a checkpoint; return False if the local checkpoint is damaged."""
        try:
            self.folder.put_checkpoint(self.root / name, name)
        except (DamagedCheckpoint, FileNotFoundError) as error:
            if not (self.root / name / MANIFEST).exists():
                return True  # removed by the trainer in favor of a newer checkpoint
            if not isinstance(error, DamagedCheckpoint):
                raise
            self.damaged[name] = str(error)
            self.say(f"{name} is damaged on this machine, and is not uploaded: {error}")
            return False
        above, known = name.rpartition("/")[0], {**self.known, name: time.time()}
        dropped = _newest_first(known, above)[KEPT:]
        known = {one: at for one, at in known.items() if one not in dropped}
        checkpoints = {one: at for one, at in known.items() if CHECKPOINT.fullmatch(one)}
        self.folder.put({ACKNOWLEDGED: [json.dumps(checkpoints, indent=1).encode()]})
        self._acknowledge(known)
        self.say(f"{name} is in the store")
        self._set_waiting([one for one in self.waiting if one != name])
        self.tidy.discard(above)
        return True

    def _remove_older(self, above: str) -> None:
        """Keep the newest KEPT verified checkpoints of a folder and remove older checkpoints from the store.

        Remains of interrupted uploads are removed as well.
        """
        kept = _newest_first(self.known, above)[:KEPT]
        if above in self.tidy or len(kept) < KEPT:
            return
        there = {file.rpartition("/")[0] for file in self.folder.file_sizes()}
        for name in _newest_first(there, above):
            if step_of(name) < step_of(kept[0]) and name not in kept:
                self.folder.remove_checkpoint(name)
        self.tidy.add(above)

    def _acknowledge(self, known: dict[str, float]) -> None:
        self.known = known
        self._write_status(ACKNOWLEDGED, known)

    def _set_waiting(self, names: list[str]) -> None:
        if names != self.waiting or not self.is_noted or not (self.root / WAITING).exists():
            self.waiting = names
            self._note_waiting()

    def record_problem(self, problem: str) -> None:
        """Record in WAITING why the store is not writable; "" clears the record."""
        if problem != self.problem:
            self.problem = problem
            self._note_waiting()

    def _note_waiting(self) -> None:
        self.is_noted = True
        more = {"problem": self.problem} if self.problem else {}
        self._write_status(WAITING, {"names": self.waiting, **more})

    def _write_status(self, name: str, value: Any) -> None:
        """Write a status file for readers on the pod.

        On a full disk the file is skipped, and uploads continue.
        """
        with contextlib.suppress(OSError):
            local_files.replace(self.root / name, json.dumps(value, indent=1).encode())


def carry(root: Path, config: Config) -> int:
    """Upload until SIGTERM or until the agent has written the ending of the run; then upload the rest in time.

    The deadline is in `state/ending.json`. Return 0 if all files were verified in the store, else 1 with the missing
    files in the log.
    """
    told: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, frame: told.append(number))
    ending = root / "state" / "ending.json"
    with local_files.holding_lock(
        root / "state" / "uploader.lock", StoreError("a second uploader is already uploading for this pod")
    ):
        uploader = Uploader(root, config, _say)
        trial = _UploadLoop(uploader)
        while not told and not ending.exists():
            _rest(time.monotonic() + (trial.run_scan() or LOOK_S), lambda: bool(told) or ending.exists())
        ends_at = _ends_at(ending)
        while (wait_s := trial.run_scan(last=True)) and (left_s := ends_at - LEAVE_S - time.monotonic()) > 0:
            time.sleep(min(wait_s, left_s, LAST_WAIT_S))
    if wait_s or uploader.waiting:
        _say(f"not in the store: {', '.join(uploader.waiting) or 'unknown files, because the last look failed'}")
        return 1
    _say("all files are in the store")
    return 0


class _UploadLoop:
    """The upload loop: back off while the store fails, and log each new failure once."""

    def __init__(self, uploader: Uploader) -> None:
        self.uploader, self.failures, self.last_failure = uploader, 0, ""

    def run_scan(self, last: bool = False) -> float:
        """Run a scan; return 0 on success, else the seconds to wait before the next scan."""
        try:
            self.uploader.upload_changes(last)
        except Exception as error:  # any error of a client library: the run must go on
            self.failures += 1
            words = f"{type(error).__name__}: {error}"
            if words != self.last_failure:
                self.last_failure = words
                self.uploader.record_problem(words)
                _say(f"not carried, retrying until the upload succeeds: {words}")
            return BACKOFF.wait_s(self.failures)
        if self.last_failure:
            _say("the store answers again")
        self.failures, self.last_failure = 0, ""
        self.uploader.record_problem("")
        return 0.0


def _ends_at(ending: Path) -> float:
    """Return the deadline on the monotonic clock, or 0 without a deadline, which allows a single final attempt."""
    try:
        return float(json.loads(ending.read_bytes())["ends_at_monotonic_s"])
    except (OSError, ValueError, KeyError, TypeError):
        return 0.0


def _rest(until: float, is_over: Callable[[], bool]) -> None:
    while not is_over() and (left_s := until - time.monotonic()) > 0:
        time.sleep(min(POLL_S, left_s))


def _newest_first(names: Iterable[str], above: str) -> list[str]:
    """Return the checkpoints in the folder `above`, newest first."""
    ours = [name for name in names if CHECKPOINT.fullmatch(name) and name.rpartition("/")[0] == above]
    return sorted(ours, key=step_of, reverse=True)


def _stamp(path: Path) -> tuple[int, int] | None:
    try:
        stat = path.stat()
    except FileNotFoundError:
        return None
    return stat.st_size, stat.st_mtime_ns


def _pieces(path: Path, size: int) -> Iterator[bytes]:
    """Yield the first `size` bytes of a file, which may grow meanwhile."""
    with path.open("rb") as file:
        while size > 0 and (piece := file.read(min(size, PIECE_BYTES))):
            size -= len(piece)
            yield piece


def _say(text: str) -> None:
    with contextlib.suppress(OSError):  # the disk of the log is full: go on uploading
        print(f"{time.strftime('%Y-%m-%dT%H:%M:%SZ', time.gmtime())} {text}", flush=True)


def emit(kind: str, **values: Any) -> None:
    """Append a JSON record of a step to the file in SLIPWAY_RECORDS, for the agent."""
    if path := os.environ.get("SLIPWAY_RECORDS"):
        with open(path, "a", encoding="utf-8") as records:
            records.write(json.dumps({"kind": kind, "at": time.time(), **values}) + "\n")


def lower_priority() -> None:
    """Lower the CPU priority of this process and raise its OOM score, in favor of the trainer."""
    os.nice(10)
    with contextlib.suppress(OSError):  # not Linux
        Path("/proc/self/oom_score_adj").write_text(OOM_FIRST)


def main(words: list[str]) -> int:
    """Run a command line; return 0 on success, 1 on failure, 2 on a usage error."""
    if len(words) != 3 or words[0] not in ("carry", "fetch") or words[1] != "--config":
        print("usage: python -m store.uploader carry|fetch --config FILE", file=sys.stderr)
        return 2
    config = Config(**json.loads(Path(words[2]).read_text(encoding="utf-8")))
    root = Path(os.environ["SLIPWAY_WORK"]).parent
    try:
        if words[0] == "carry":
            lower_priority()
            return carry(root, config)
        if os.environ.get("SLIPWAY_NODE_RANK", "0") != "0":
            own = [one for one in config.mount_folders(root) if not one.under]
            Fetch(root, RunFolder(config.store, config.run), {}, emit, _say, own).bring_mounts()
            emit("result", note="node 0 has the files of the store")
            return 0
        Fetch(root, RunFolder(config.store, config.run), config.makings, emit, _say, config.mount_folders(root)).run()
        return 0
    except StoreError as error:
        print(f"uploader: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
