"""Tracking sidecar: reads the files written by a training and sends the records to a tracker, until SIGTERM.

    python -m trainer.tracking --config FILE [--once]

FILE holds {"tracker": NAME, "configs": {PHASE: {...}}} and either "opened_by", the tracker class as "module:attribute",
or "code", the text of the user's tracker file. The sidecar reads `<work>/runs/<phase>/metrics.jsonl` and
`samples.jsonl`, with <work> from SLIPWAY_WORK, and writes the tracker's run and `state/tracking/<tracker>.json` next to
<work>: {"link", "figures": {PHASE: step}, "samples": {PHASE: step}, "problem"}, shown in the pod's progress. The
sidecar sends each step once: lines of steps repeated after a kill are skipped. Exit code: 0 after sending everything, 1
after a failure of the tracker. With --once the sidecar sends the present records and exits.
"""

import contextlib
import json
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from functools import partial
from itertools import groupby
from pathlib import Path
from types import FrameType
from typing import Any

from store import local_files, packs
from store.extensions import ExtensionError
from trainer.reporting.jsonl_log import FIGURES, SAID
from trainer.tracking.jsonl_tail import JsonlTail
from trainer.tracking.tracker import LastSent, TrackedRun, Tracker

LOOK_S = 1.0
POLL_S = 0.1
NO_ANSWER = "no answer yet"
ANSWER_S = 10.0  # a tracker that takes longer for a call is reported
CHECK_S = 60.0  # between two questions to a tracker that queues metrics


class Sidecar:
    """A tracker, and the last step sent to the tracker for each phase."""

    def __init__(self, run: TrackedRun, runs: Path, state: Path, opened: Callable[[TrackedRun], Tracker]) -> None:
        self.run, self.runs, self.state, self.opened = run, runs, state, opened
        self.files: dict[Path, JsonlTail] = {}
        self.tracker: Tracker | None = None
        self.last_sent = LastSent()
        self.problem = ""
        """Last answer of `Tracker.problem`."""
        self.check_at = time.monotonic() + CHECK_S

    def open(self) -> None:
        """Open the tracker's run, and load the last steps already sent: from the tracker, else from the state file."""
        self.run.folder.mkdir(parents=True, exist_ok=True)
        self.tracker = self.opened(self.run)
        kept = self._read_state()
        self.last_sent = self.tracker.last_sent or LastSent(
            dict(kept.get("figures", {})), dict(kept.get("samples", {}))
        )
        self._write_state()

    def send_new_records(self) -> bool:
        """Send new records; return True if any record was new."""
        assert self.tracker is not None
        was_new = False
        for folder in sorted(path.parent for path in self.runs.glob("*/metrics.jsonl")):
            phase = folder.name
            lines = [
                line
                for line in self._read_new_lines(folder / "metrics.jsonl", FIGURES)
                if line["step"] > self.last_sent.figures.get(phase, 0)
            ]
            if lines:
                with self._reported():
                    self.tracker.send_metrics(phase, lines)
                self.last_sent.figures[phase] = lines[-1]["step"]
            asked = self._read_new_lines(folder / "samples.jsonl", SAID)
            for step, said in groupby(asked, lambda line: line["step"]):
                if step > self.last_sent.samples.get(phase, 0):
                    with self._reported():
                        self.tracker.send_samples(phase, list(said))
                    self.last_sent.samples[phase] = step
                    was_new = True
            was_new |= bool(lines)
        if was_new:
            self._write_state(self.problem)
        return was_new

    def check_tracker(self) -> None:
        """Ask a tracker that queues metrics, once every CHECK_S seconds, whether the metrics arrive."""
        ask = getattr(self.tracker, "problem", None)
        if ask is None or time.monotonic() < self.check_at:
            return
        with self._reported():
            self.problem = str(ask())
        self.check_at = time.monotonic() + CHECK_S
        self._write_state(self.problem)

    @contextlib.contextmanager
    def _reported(self) -> Iterator[None]:
        """Report a call of the tracker that takes longer than ANSWER_S; the next state removes the report."""
        timer = threading.Timer(ANSWER_S, self.report, (NO_ANSWER,))
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()
            timer.join()  # so that the report is not written after the next state

    def _read_new_lines(self, path: Path, kinds: Mapping[str, type]) -> list[dict[str, Any]]:
        if path not in self.files:
            self.files[path] = JsonlTail(path, kinds)
        return self.files[path].read()

    def close(self) -> None:
        assert self.tracker is not None
        while self.send_new_records():
            continue
        with self._reported():
            self.tracker.close()
        self._write_state()

    def report(self, problem: str) -> None:
        """Write a problem into the state file: no message of an error, which may contain addresses or headers."""
        self._write_state(problem)

    def _read_state(self) -> dict[str, Any]:
        try:
            return dict(json.loads(self.state.read_bytes()))
        except (OSError, ValueError):
            return {}

    def _write_state(self, problem: str = "") -> None:
        link = self.tracker.link if self.tracker else self._read_state().get("link", "")
        told = (
            asdict(self.last_sent)
            if self.tracker
            else {key: self._read_state().get(key, {}) for key in asdict(LastSent())}
        )
        said = {"link": link, **told, "problem": problem, "at": time.time()}
        self.state.parent.mkdir(parents=True, exist_ok=True)
        local_files.replace(self.state, json.dumps(said).encode())


def opened(said: Mapping[str, Any], run: TrackedRun) -> Tracker:
    """Return the tracker named in the configuration, opened for `run`."""
    if code := said.get("code"):
        from trainer.tracking.extension_tracker import ExtensionTracker

        return ExtensionTracker(run, code, said["tracker"])
    made: Tracker = packs.load(said["opened_by"])(run)
    return made


def problem_of(error: BaseException) -> str:
    """Return the name of an error, with the cause that users know if no server answers; never the message."""
    behind: BaseException | None = error
    while behind is not None:
        if isinstance(behind, (ConnectionError, TimeoutError, socket.gaierror)):
            return f"no answer from the server ({type(error).__name__})"
        behind = behind.__cause__ or behind.__context__
    return type(error).__name__


def main(words: list[str]) -> int:
    """Run the command line; return 0 after sending everything, 1 if the tracker failed, 2 for invalid arguments."""
    if words[:1] != ["--config"] or words[2:] not in ([], ["--once"]):
        print("usage: python -m trainer.tracking --config FILE [--once]", file=sys.stderr)
        return 2
    is_once = bool(words[2:])
    said = json.loads(Path(words[1]).read_text(encoding="utf-8"))
    work, name = Path(os.environ["SLIPWAY_WORK"]), said["tracker"]
    run = TrackedRun(os.environ.get("SLIPWAY_RUN_ID") or "foreground", work / "tracking" / name, said["configs"])
    state = work.parent / "state" / "tracking" / f"{name}.json"
    sidecar = Sidecar(run, work / "runs", state, partial(opened, said))
    told: list[int] = []

    def leave(number: int, _: FrameType | None) -> None:
        told.append(number)

    signal.signal(signal.SIGTERM, leave)
    try:
        sidecar.report(NO_ANSWER)
        sidecar.open()
        _say(f"sending {run.run} to {name}: {sidecar.tracker and sidecar.tracker.link}")
        while not told and not is_once:
            sidecar.send_new_records()
            sidecar.check_tracker()
            until = time.monotonic() + LOOK_S
            while not told and time.monotonic() < until:
                time.sleep(POLL_S)
        sidecar.close()
    except Exception as error:  # any error of the tracker's client: the agent restarts the sidecar later
        is_own = isinstance(error, ExtensionError)  # the message names the error
        sidecar.report(problem_of(error.__cause__ if is_own and error.__cause__ else error))
        _say(f"{name} failed: {error if is_own else f'{type(error).__name__}: {error}'}")
        return 1
    _say("all metrics are sent")
    return 0


def _say(text: str) -> None:
    print(f"{time.strftime('%Y-%m-%dT%H:%M:%SZ', time.gmtime())} {text}", flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
