"""Reading a run's logs: all steps in order, the last lines of one, or on and on until the run ends."""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from invoke import Exit

from infra import home, pods
from infra.agent.job import Job
from infra.errors import UsageError
from infra.follow import follow as follow_run
from infra.follow import look
from infra.journal import Journal, Op
from infra.settings import Settings
from infra.transport import Lost, TimedOut, Transport, Unreachable
from scripts import words
from scripts.render import clean


def show(op: Op, journal: Journal, settings: Settings, *, follow: bool, tail: int, file: str, errors: bool) -> None:
    """Print to stdout. Raises UsageError for a log that does not exist, Exit with the run's code after following."""
    folder = words.homes(settings) / op.run
    transport = words.provider(settings, op.vendor).reach(pods.pod_of(op))
    if op.address:
        _bring(op, transport, folder)
    if errors:
        paths = sorted(folder.glob("error-*.log"))
        if not paths:
            print(f"{op.run} has written no error log", file=sys.stderr)
    else:
        paths = choose(folder, op, file, follow)
        if not paths and not follow:
            print(f"{op.run} has written no log yet", file=sys.stderr)
    offsets = {path: write(path, 0, tail) for path in paths}
    if not follow:
        return
    verdict: Mapping[str, Any] = {}
    for seen in follow_run(op, journal, transport) if op.is_live else [look(op, transport)]:
        verdict = seen[1]
        _bring(op, transport, folder)
        for path in choose(folder, op, file, follow):
            offsets[path] = write(path, offsets.get(path, 0))
    state = verdict.get("state", "stopped")
    print(f"{op.run} {state} {verdict.get('reason', '')}".rstrip(), file=sys.stderr)
    raise Exit(code={"succeeded": 0, "limit": 5}.get(state, 1))


def _bring(op: Op, transport: Transport, folder: Path) -> bool:
    """Whether the pod is deaf just now: then what is at home has to do, and it is asked again."""
    try:
        home.bring_logs(op, transport, folder)
        return False
    except (Lost, TimedOut, Unreachable) as error:
        print(f"{op.run}: {error}", file=sys.stderr)
        return True


def choose(folder: Path, op: Op, file: str, follow: bool) -> list[Path]:
    """The logs that there are, in the order of the steps."""
    if file:
        path = folder / f"{file}.log"
        if not path.exists() and not follow:
            known = sorted(one.stem for one in folder.glob("*.log"))
            raise UsageError(f"{op.run} has no log {file!r}; there is: {', '.join(known) or 'none yet'}")
        return [path]
    names = ["environment", *(step.name for step in Job.from_json(op.job).steps)]
    return [path for name in names if (path := folder / f"{name}.log").exists()]


def write(path: Path, offset: int, tail: int = 0) -> int:
    """Print what `path` holds after `offset`, or its last `tail` lines; returns where it ended."""
    if not path.exists():
        return offset
    with path.open("rb") as file:
        file.seek(offset)
        content = file.read()
    text = content.decode(errors="replace")
    if tail:
        text = "".join(text.splitlines(keepends=True)[-tail:])
    if text:
        sys.stdout.write(clean(text))
        sys.stdout.flush()
    return offset + len(content)
