"""The courier, a sync sidecar: it uploads what a run makes from its pod to the store, and restores it on a new pod.

    python -m store.courier carry --config FILE   beside the steps, until it is told to end (SIGTERM)
    python -m store.courier fetch --config FILE   the first step: begin where an earlier pod of the run ended

In: the pod's folder, whose `work/` SLIPWAY_WORK names, and a `Config`. Out: `<store>/runs/<run>/`, see `run_folder`; on
the pod `state/acknowledged.json` {name: UTC epoch seconds} of what was read back from the store, and
`state/waiting.json` {"names": [...]} of what is still to be uploaded. Before the fetch has its mark only the last words
of a run that failed are uploaded: other files would overwrite the logs and metrics of an earlier pod. Values of secrets
are masked in what is uploaded, but for checkpoints and files of mounts, whose bytes must stay as they are.
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
from store.run_sync.mounts import WORK, MountFolder
from store.run_sync.restore import Fetch, acknowledged_here, earlier_of
from store.run_sync.run_folder import ACKNOWLEDGED, ENDING, MANIFEST, Damaged, RunFolder, by_folder, step_of
from store.untrusted_names import CHECKPOINT

WAITING = "state/waiting.json"
LOOK_S = 0.5
BACKOFF = Backoff(first_s=1.0, longest_s=60.0)
LAST_WAIT_S = 5.0  # between two tries when the run is over
LEAVE_S = 0.5  # time to say what was left behind
POLL_S = 0.1
PIECE_BYTES = 1 << 20
KEPT = 2  # checkpoints of each folder
SHARE = 10  # at most one part in so many of the time goes into logs and figures
WORDS = (
    ENDING,
    "logs/error-*.log",
)  # these may always go: no earlier pod has them, or they take its place
ONCE = ("state/marks/*.json",)
GROWING = (
    *("work/runs/*/metrics.jsonl", "work/runs/*/samples.jsonl", "work/tracking/tensorboard/*/events.out.tfevents.*"),
    *("logs/*.log", "logs/*.times"),
)
# Of a log: the guard of a pod rotates it long before, unless a program makes it large at once.
MOST_LOG_BYTES = 256 << 20
OOM_FIRST = "600"  # when memory runs out, this process is killed before the step, and long before the agent


@dataclass(frozen=True)
class Config:
    store: str
    run: str
    makings: Mapping[str, Mapping[str, str]]
    """Name and fingerprint of the artifact that each step makes, and the store to which it goes."""
    every_s: float = 60.0
    """Shortest interval between uploads of logs and figures that have grown; they also go with every checkpoint."""
    after: str = "fetch"
    """The step whose mark lets the courier begin."""
    secrets: Sequence[str] = ()
    """Names of the variables whose values are struck out."""
    mounts: Sequence[str] = ()
    """Names of the folders that are kept beyond the run."""


class Courier:
    """The uploader of one run: it knows what has been uploaded, and what there is now."""

    def __init__(self, root: Path, config: Config, say: Callable[[str], None]) -> None:
        self.root, self.config, self.say = root, config, say
        self.folder = RunFolder(config.store, config.run)
        self.mounts = [MountFolder(config.store, name, root) for name in config.mounts]
        self.known = acknowledged_here(root)
        self.mask = Mask(os.environ.get(name, "") for name in config.secrets)
        self.carried: dict[str, tuple[int, int]] = {}  # size and time of the files that the store has
        self.begun = f"state/marks/{config.after}.json"
        self.damaged: dict[str, str] = {}
        self.tidy: set[str] = set()  # folders there of which nothing is to be removed just now
        self.waiting: list[str] = []
        self.problem = ""
        self.is_noted = False  # by this process: another one may have left its own note
        self.grown_at = 0.0

    def carry(self, last: bool = False) -> None:
        """Look once, and upload all that is new. Raises what the store raises; then what is left waits."""
        if not (self.root / self.begun).exists():
            words = self._changed(WORDS)
            self._wait_for(words)
            self._carry_files(words)
            return
        whole = self._whole()
        checkpoints = [names[0] for names in whole.values() if names and names[0] not in self.known]
        grown = last or bool(checkpoints) or time.monotonic() >= self.grown_at
        files = self._changed(WORDS + ONCE)  # after the checkpoints were seen: figures must reach as far as they do
        growing = [name for name in self._changed(GROWING) if name not in files] if grown else []
        mounted = [f"{WORK}/{one.name}/{file}" for one in self.mounts for file in one.pending()]
        self._wait_for([*checkpoints, *files, *(growing if last else ()), *self.damaged, *mounted])
        self._carry_files(files)
        mounted = [f"{WORK}/{one.name}/{file}" for one in self.mounts for file in one.carry(last)]
        began = time.monotonic()
        self._carry_files(growing)
        if growing:
            now = time.monotonic()
            self.grown_at = now + max(self.config.every_s, SHARE * (now - began))
        for above, names in whole.items():
            self._carry_newest(names)
            self._remove_older(above)
        self._wait_for([*self.damaged, *mounted])

    def _whole(self) -> dict[str, list[str]]:
        """Return the checkpoints that this machine has, newest first, but for damaged ones."""
        paths = self.root.glob(f"work/checkpoints/*/step-*/{MANIFEST}")
        found = by_folder(path.relative_to(self.root).as_posix() for path in paths)
        self.damaged = {name: why for name, why in self.damaged.items() if (self.root / name).exists()}
        return {folder: [one for one in names if one not in self.damaged] for folder, names in found.items()}

    def _changed(self, patterns: tuple[str, ...]) -> list[str]:
        names = []
        for pattern in patterns:
            for path in sorted(self.root.glob(pattern)):
                name = path.relative_to(self.root).as_posix()
                if path.suffix == ".times" and earlier_of(self.root, name):
                    continue  # it dates the bytes of this pod's log; those of the pod before stand in front of them
                is_ours = name == self.begun or path.name.startswith(".")
                if not is_ours and self.carried.get(name) != _stamp(path):
                    names.append(name)
        return names

    def _carry_files(self, names: list[str]) -> None:
        stamps, files = {}, {}
        for name in names:
            path, before = self.root / name, earlier_of(self.root, name)
            stamp = _stamp(path)
            if stamp is None:
                continue  # removed meanwhile
            earlier = _pieces(before, before.stat().st_size) if before else ()
            most = min(stamp[0], MOST_LOG_BYTES) if name.startswith("logs/") else stamp[0]
            stamps[name], files[name] = stamp, self.mask(itertools.chain(earlier, _pieces(path, most)))
        if not files:
            return
        self.folder.put(files)
        self.carried |= stamps
        self._acknowledge({**self.known, **dict.fromkeys(files, time.time())})
        self._wait_for([one for one in self.waiting if one not in files])

    def _carry_newest(self, names: list[str]) -> None:
        """Upload the newest of these checkpoints of a folder that is not damaged, unless the store has it."""
        for name in names:
            if name in self.known or self._carry_checkpoint(name):
                return

    def _carry_checkpoint(self, name: str) -> bool:
        """Upload one checkpoint; return False when it is damaged here."""
        try:
            self.folder.put_checkpoint(self.root / name, name)
        except (Damaged, FileNotFoundError) as error:
            if not (self.root / name / MANIFEST).exists():
                return True  # a newer one has taken its place
            if not isinstance(error, Damaged):
                raise
            self.damaged[name] = str(error)
            self.say(f"{name} is damaged here, and is not carried: {error}")
            return False
        above, known = name.rpartition("/")[0], {**self.known, name: time.time()}
        dropped = _newest_first(known, above)[KEPT:]
        known = {one: at for one, at in known.items() if one not in dropped}
        checkpoints = {one: at for one, at in known.items() if CHECKPOINT.fullmatch(one)}
        self.folder.put({ACKNOWLEDGED: [json.dumps(checkpoints, indent=1).encode()]})
        self._acknowledge(known)
        self.say(f"{name} is in the store")
        self._wait_for([one for one in self.waiting if one != name])
        self.tidy.discard(above)
        return True

    def _remove_older(self, above: str) -> None:
        """Remove what is older than the newest two checkpoints of a folder, once those were read back.

        That includes what an interrupted upload has left.
        """
        kept = _newest_first(self.known, above)[:KEPT]
        if above in self.tidy or len(kept) < KEPT:
            return
        there = {file.rpartition("/")[0] for file in self.folder.names()}
        for name in _newest_first(there, above):
            if step_of(name) < step_of(kept[0]) and name not in kept:
                self.folder.remove_checkpoint(name)
        self.tidy.add(above)

    def _acknowledge(self, known: dict[str, float]) -> None:
        self.known = known
        self._note(ACKNOWLEDGED, known)

    def _wait_for(self, names: list[str]) -> None:
        if names != self.waiting or not self.is_noted or not (self.root / WAITING).exists():
            self.waiting = names
            self._note_waiting()

    def tell_problem(self, problem: str) -> None:
        """Note why the store cannot be written just now; "" when it can."""
        if problem != self.problem:
            self.problem = problem
            self._note_waiting()

    def _note_waiting(self) -> None:
        self.is_noted = True
        more = {"problem": self.problem} if self.problem else {}
        self._note(WAITING, {"names": self.waiting, **more})

    def _note(self, name: str, value: Any) -> None:
        """Write a note for readers of the pod.

        On a full disk they go without: what can be uploaded is uploaded all the same.
        """
        with contextlib.suppress(OSError):
            local_files.replace(self.root / name, json.dumps(value, indent=1).encode())


def carry(root: Path, config: Config) -> int:
    """Upload until SIGTERM, or until the agent has written how the run ends; then upload the rest, while there is time.

    Return 0 when everything was read back from the store, else 1, with what was not in the log.
    """
    told: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, frame: told.append(number))
    ending = root / "state" / "ending.json"
    with local_files.held(root / "state" / "courier.lock", StoreError("another courier carries for this pod")):
        courier = Courier(root, config, _say)
        trial = _Trial(courier)
        while not told and not ending.exists():
            _rest(time.monotonic() + (trial.go() or LOOK_S), lambda: bool(told) or ending.exists())
        ends_at = _ends_at(ending)
        while (wait_s := trial.go(last=True)) and (left_s := ends_at - LEAVE_S - time.monotonic()) > 0:
            time.sleep(min(wait_s, left_s, LAST_WAIT_S))
    if wait_s or courier.waiting:
        _say(f"not in the store: {', '.join(courier.waiting) or 'what there was to look for'}")
        return 1
    _say("all is in the store")
    return 0


class _Trial:
    """The loop around one look: it backs off while the store fails, and logs each new failure once."""

    def __init__(self, courier: Courier) -> None:
        self.courier, self.failures, self.said = courier, 0, ""

    def go(self, last: bool = False) -> float:
        """Look once; return 0 when all went well, else the seconds to wait before the next look."""
        try:
            self.courier.carry(last)
        except Exception as error:  # whatever a store's client raises: the run must go on
            self.failures += 1
            words = f"{type(error).__name__}: {error}"
            if words != self.said:
                self.said = words
                self.courier.tell_problem(words)
                _say(f"not carried, trying again until it is: {words}")
            return BACKOFF.wait_s(self.failures)
        if self.said:
            _say("the store answers again")
        self.failures, self.said = 0, ""
        self.courier.tell_problem("")
        return 0.0


def _ends_at(ending: Path) -> float:
    """Return the end of its time, on the monotonic clock; 0 where nobody has set one: then there is one try."""
    try:
        return float(json.loads(ending.read_bytes())["ends_at_monotonic_s"])
    except (OSError, ValueError, KeyError, TypeError):
        return 0.0


def _rest(until: float, is_over: Callable[[], bool]) -> None:
    while not is_over() and (left_s := until - time.monotonic()) > 0:
        time.sleep(min(POLL_S, left_s))


def _newest_first(names: Iterable[str], above: str) -> list[str]:
    """Return the checkpoints of a folder, newest first."""
    ours = [name for name in names if CHECKPOINT.fullmatch(name) and name.rpartition("/")[0] == above]
    return sorted(ours, key=step_of, reverse=True)


def _stamp(path: Path) -> tuple[int, int] | None:
    try:
        stat = path.stat()
    except FileNotFoundError:
        return None
    return stat.st_size, stat.st_mtime_ns


def _pieces(path: Path, size: int) -> Iterator[bytes]:
    """Yield the bytes that a file had when its size was read: it may grow."""
    with path.open("rb") as file:
        while size > 0 and (piece := file.read(min(size, PIECE_BYTES))):
            size -= len(piece)
            yield piece


def _say(text: str) -> None:
    with contextlib.suppress(OSError):  # the disk of the log is full: what can be carried is carried all the same
        print(f"{time.strftime('%Y-%m-%dT%H:%M:%SZ', time.gmtime())} {text}", flush=True)


def emit(kind: str, **values: Any) -> None:
    """Write one record of a step for the agent: a line of JSON in the file that SLIPWAY_RECORDS names."""
    if path := os.environ.get("SLIPWAY_RECORDS"):
        with open(path, "a", encoding="utf-8") as records:
            records.write(json.dumps({"kind": kind, "at": time.time(), **values}) + "\n")


def step_back() -> None:
    """Lower this process's priority, for processors and for memory: the trainer goes first."""
    os.nice(10)
    with contextlib.suppress(OSError):  # no Linux
        Path("/proc/self/oom_score_adj").write_text(OOM_FIRST)


def main(words: list[str]) -> int:
    """Run a command line; return 0 when it succeeded, 1 when it failed, 2 when it was not understood."""
    if len(words) != 3 or words[0] not in ("carry", "fetch") or words[1] != "--config":
        print("usage: python -m store.courier carry|fetch --config FILE", file=sys.stderr)
        return 2
    config = Config(**json.loads(Path(words[2]).read_text(encoding="utf-8")))
    root = Path(os.environ["SLIPWAY_WORK"]).parent
    try:
        if words[0] == "carry":
            step_back()
            return carry(root, config)
        if os.environ.get("SLIPWAY_NODE_RANK", "0") != "0":
            emit("result", note="node 0 has what is in the store")
            return 0
        Fetch(root, RunFolder(config.store, config.run), config.makings, emit, _say, config.mounts).run()
        return 0
    except StoreError as error:
        print(f"courier: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
