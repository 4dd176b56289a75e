"""The command `logs`: all logs of a run in order, the last lines only, or a live view until the run ends."""

import codecs
import contextlib
import io
import re
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from invoke import Exit

from flows.reading.logs import choose, choose_errors, fetch, fetch_from_store, is_gone
from infra.agent.job import earlier_part, is_earlier_part
from infra.agent.state import NODE_LOST
from infra.errors import SlipwayError, UsageError
from infra.flags import flag
from infra.ledger.journal import Journal
from infra.ledger.leases import keeper_lease
from infra.ledger.op import Op
from infra.runs import pods
from infra.runs.journal_upkeep import save_final_verdict
from infra.runs.lookup import find_run, scale_of, waits
from infra.runs.observation import RETRY_S, Seen, read_progress_and_verdict
from infra.runs.observation import follow as follow_run
from infra.runs.run_home import RunHome
from infra.runs.sync.fetched_files import held_bytes, read_cuts
from infra.selection import registry
from infra.settings import Settings
from infra.transport.protocol import Transport
from scripts.cli import context, render
from scripts.cli.command import command
from scripts.cli.render import clean, say
from scripts.cli.session import open_journal
from scripts.cli.steps_text import step_line

TELL_EVERY_S = 15.0  # interval between reports of a step's progress
FETCH_S = 1.0  # interval between copies of the output of a followed run
LAST_S = 60.0  # retry time for a silent pod after the end of the run


@dataclass(frozen=True, kw_only=True)
class LogsFlags:
    run: str = flag("", "name of the run, or the first letters of the name (default: the last run)", word=True)
    follow: bool = flag(False, "keep printing until the run ends, and exit with the run's exit code")
    tail: int | None = flag(None, "print only the last N lines of all logs together")
    since: str = flag("", "print only lines written within this time: 90s, 10m, 2h", unit="DURATION")
    file: str = flag("", "print only this log: the name of a step, or guard, agent, environment, gpus", also=("step",))
    errors: bool = flag(False, "print only error logs; with --file, only the error logs of this step")


@command(record=LogsFlags, example="inv logs brave-otter-3 --follow")
def logs(spec: LogsFlags) -> None:
    """Print the logs of a run, step by step."""
    if spec.tail is not None and spec.tail < 0:
        raise UsageError(f"--tail is {spec.tail}; it cannot be negative")
    settings = context.settings()
    with open_journal(settings) as journal:
        show(find_run(journal, spec.run), journal, settings, spec)


def show(op: Op, journal: Journal, settings: Settings, spec: LogsFlags) -> None:
    """Print logs to stdout. Raises UsageError for an unknown log, Exit with the run's exit code after `--follow`."""
    home = RunHome.for_run(op.run, settings.homes)
    folder = home.pod.logs
    wanted_s = context.seconds(spec.since)
    after = 0.0 if wanted_s is None else time.time() - wanted_s
    if fetch(op, journal, settings, say) or not op.is_live:
        fetch_from_store(op, settings, say)
    for one in read_cuts(home):
        say(f"{op.run}: the copy of the pod's logs on this machine is incomplete: {one}")

    def paths() -> list[Path]:
        return choose_errors(folder, spec.file) if spec.errors else choose(folder, op, spec.file, spec.follow)

    if not paths() and not spec.follow:
        registry.provider(settings, op.vendor)  # raises an error with the missing requirement for access to the machine
        which, yet = ("error log", "") if spec.errors else ("log", " yet")
        print(f"{op.run} has written no {which}{yet}", file=sys.stderr)
    begins = {path: start(path, after) for path in paths()}
    most = shares(begins, spec.tail)
    offsets = {path: write(path, at, most.get(path), is_last=not spec.follow) for path, at in begins.items()}
    if not spec.follow:
        return
    verdict: Mapping[str, Any] = {}
    told: dict[str, tuple[str, float]] | None = None
    for op, (progress, verdict) in follow_pods(op, journal, settings):  # noqa: B020 (the run may move to another pod)
        deadline = time.monotonic() + LAST_S
        while fetch(op, journal, settings, say) and verdict and time.monotonic() < deadline:
            if is_gone(op := journal.op(op.token), settings):
                fetch_from_store(op, settings, say)
                break
            time.sleep(RETRY_S)
        for path in paths():
            if not is_earlier_part(path):  # already printed before the rotation
                offsets[path] = catch_up(path, offsets.get(path, 0), is_last=bool(verdict))
        if told is None:  # on the first observation: the printed logs cover earlier steps
            told = {one["name"]: (one["state"], 0.0) for one in progress.get("steps", ())}
        tell_steps(progress, told, scale_of(op, settings))
    state = verdict.get("state", "stopped")
    print(f"{op.run} {state} {verdict.get('reason', '')}".rstrip(), file=sys.stderr)
    raise Exit(code={"succeeded": 0, "limit": 5}.get(state, 1))


class JobOutput:
    """The output of a user's own steps, printed to stdout while a command follows the run."""

    def __init__(self, op: Op, journal: Journal, settings: Settings) -> None:
        """Start at the end of the copies on this machine, so that a resumed run repeats no earlier output."""
        self.run, self.journal, self.settings = op.run, journal, settings
        self.folder = RunHome.for_run(op.run, settings.homes).pod.logs
        self.offsets = {one.name: held_bytes(self._log(one.name)) for one in op.read_job().steps if one.is_own_text}
        self.fetched_at = time.monotonic()

    def print_new(self, is_last: bool = False) -> None:
        """Fetch and print new output, at most every FETCH_S seconds unless `is_last`."""
        if not self.offsets or not (is_last or time.monotonic() - self.fetched_at >= FETCH_S):
            return
        self.fetched_at = time.monotonic()
        with contextlib.suppress(SlipwayError, OSError):  # a lost connection is reported by the look at the run
            fetch(self.journal.ops(run=self.run)[-1], self.journal, self.settings, lambda _: None)
        self.offsets = {step: catch_up(self._log(step), at, is_last) for step, at in self.offsets.items()}

    def ends_with(self, tail: str, step: str) -> bool:
        """Return whether the printed output of a step ends with the last line of `tail`."""
        last = tail.rstrip().rpartition("\n")[2]
        printed = read_from(self._log(step), max(0, self.offsets.get(step, 0) - 2 * len(last.encode()) - 2))
        return step in self.offsets and printed.decode(errors="replace").rstrip().endswith(last)

    def _log(self, step: str) -> Path:
        return self.folder / f"{step}.log"


def tell_steps(progress: Mapping[str, Any], told: dict[str, tuple[str, float]], scale: float = 1.0) -> None:
    """Print a line at the start and end of a step, and at intervals between, because logs lack the figures.

    `told`: last printed state and time (monotonic seconds) by step; updated in place. `scale`: clock speed for
    `step_line`.
    """
    for step in progress.get("steps", ()):
        state, at = told.get(step["name"], ("waiting", 0.0))
        due = step["state"] == "running" and time.monotonic() - at > TELL_EVERY_S
        if step["state"] != state or due:
            told[step["name"]] = (step["state"], time.monotonic())
            if step["state"] != "waiting":  # a step waits again after a move to a new pod
                say(step_line(step, time.time(), scale))


def follow_pods(op: Op, journal: Journal, settings: Settings) -> Iterator[tuple[Op, Seen]]:
    """Yield observations of a run, across all pods of the run.

    Errors are retried while a process keeps the run; without a keeper, a SlipwayError propagates.
    """
    told = ""
    while True:
        try:
            if waits(op, journal):
                if op.token != told:
                    told = op.token
                    say(f"{op.run} waits for a machine: {op.reason}; end the run: inv down {op.run}")
            elif is_gone(op, settings):
                yield op, ({}, save_final_verdict(op, settings, render.tell))
                return
            else:
                transport = registry.provider(settings, op.vendor).reach(pods.pod_of(op))
                for seen in (
                    follow_run(op, journal, transport) if op.is_live else [final_observation(op, transport, settings)]
                ):
                    if seen[1].get("state") == NODE_LOST and journal.leases.holder(keeper_lease(op.run)):
                        break  # the run continues on a new pod with a new log
                    yield op, seen
                else:
                    return
        except SlipwayError:
            if journal.leases.holder(keeper_lease(op.run)) is None and not is_gone(journal.op(op.token), settings):
                raise
        time.sleep(RETRY_S)
        op = journal.ops(run=op.run)[-1]


def final_observation(op: Op, transport: Transport, settings: Settings) -> Seen:
    """Return the final progress and verdict of a finished run, from the pod or else from the copied logs."""
    seen = read_progress_and_verdict(op, transport)
    return seen if seen[1] else (seen[0], save_final_verdict(op, settings, render.tell))


def start(path: Path, after: float) -> int:
    """Return the offset of the first line after `after` (UTC epoch seconds), by the clock of the log's machine.

    The agent records the growth of step logs with a resolution of about a second; agent and guard lines carry
    timestamps; the name of an error log contains the time. For a log without times, return 0 and print a note.
    """
    if not after or not path.exists():
        return 0
    content, times = path.read_bytes(), path.with_suffix(".times")
    if path.name.startswith("error-"):
        return 0 if (stamp(path.stem.removeprefix("error-")) or after) >= after else len(content)
    if times.exists():
        notes = [line.split() for line in times.read_text().splitlines(keepends=True) if line.endswith("\n")]
        before = [int(size) for at, size in notes if float(at) <= after]
        offset = min(before[-1] if before else 0, len(content))
        return content.rfind(b"\n", 0, offset) + 1  # start at the beginning of a line
    offset, is_stamped = 0, False
    for line in content.splitlines(keepends=True):
        at = stamp(line.split(b" ", 1)[0].decode(errors="replace"))
        is_stamped |= at is not None
        if at is not None and at >= after:
            return offset
        offset += len(line)
    if not is_stamped:
        print(f"{path.name} has no timestamps, so --since cannot be applied; the whole log follows", file=sys.stderr)
        return 0
    return offset


def stamp(word: str) -> float | None:
    """Parse `2026-11-20T22:51:07Z`, with or without dashes and colons, to UTC epoch seconds.

    Return None for any other text.
    """
    try:
        found = datetime.strptime(word.replace("-", "").replace(":", ""), "%Y%m%dT%H%M%SZ")
    except ValueError:
        return None
    return found.replace(tzinfo=timezone.utc).timestamp()


def shares(begins: Mapping[Path, int], tail: int | None) -> dict[Path, int]:
    """Return the line count to print per log, for the last `tail` lines of all logs together; {} = all lines."""
    if tail is None:
        return {}
    found, left = dict[Path, int](), tail
    for path in reversed(list(begins)):
        found[path] = min(left, len([*io.BytesIO(read_from(path, begins[path]))]))
        left -= found[path]
    return found


def read_from(path: Path, offset: int) -> bytes:
    """Return the content of a log after `offset`, or b"" if the file does not exist."""
    if not path.exists():
        return b""
    with path.open("rb") as file:
        file.seek(offset)
        return file.read()


def catch_up(path: Path, offset: int, is_last: bool) -> int:
    """Print the content after `offset` and return the new offset; for a rotated log, first print the old rest."""
    if held_bytes(path) < offset:
        write(earlier_part(path), offset)
        offset = 0
    return write(path, offset, is_last=is_last)


def write(path: Path, offset: int, tail: int | None = None, is_last: bool = True) -> int:
    """Print the content after `offset`, or only the last `tail` lines, and return the new offset.

    Unless `is_last`, the bytes of an incomplete UTF-8 character stay for the next call.
    """
    content = read_from(path, offset)
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    text = decoder.decode(content, final=is_last)
    if tail is not None:
        lines = [*io.StringIO(text)]
        text = "".join(lines[len(lines) - tail :])
    if text:
        sys.stdout.write(clean(re.sub("\r+(?!\n)", "\n", text)))  # each state of a progress bar is a line
        sys.stdout.flush()
    return offset + len(content) - len(decoder.getstate()[0])
