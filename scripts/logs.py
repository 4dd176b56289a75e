"""Reading a run's logs: all steps in order, the last lines of one, or on and on until the run ends."""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from invoke import Exit

from infra.agent.job import Job, PodFolder
from infra.errors import UsageError
from infra.follow import follow as follow_run
from infra.follow import look
from infra.journal import Journal, Op
from infra.transport import reach
from scripts.render import clean


def show(op: Op, journal: Journal, *, follow: bool, tail: int, file: str, errors: bool) -> None:
    """Print to stdout. Raises UsageError for a log that does not exist, Exit with the run's code after following."""
    pod = PodFolder(Path(op.address or ""))
    if errors:
        paths = sorted(pod.logs.glob("error-*.log"))
        if not paths:
            print(f"{op.run} has written no error log", file=sys.stderr)
    else:
        paths = choose(pod, op, file, follow)
        if not paths and not follow:
            print(f"{op.run} has written no log yet", file=sys.stderr)
    offsets = {path: write(path, 0, tail) for path in paths}
    if not follow:
        return
    verdict: Mapping[str, Any] = {}
    transport = reach(op.vendor)
    for seen in follow_run(op, journal, transport) if op.is_live else [look(op, transport)]:
        verdict = seen[1]
        for path in choose(pod, op, file, follow):
            offsets[path] = write(path, offsets.get(path, 0))
    state = verdict.get("state", "stopped")
    print(f"{op.run} {state} {verdict.get('reason', '')}".rstrip(), file=sys.stderr)
    raise Exit(code={"succeeded": 0, "limit": 5}.get(state, 1))


def choose(pod: PodFolder, op: Op, file: str, follow: bool) -> list[Path]:
    """The logs that there are, in the order of the steps."""
    if file:
        path = pod.log(file)
        if not path.exists() and not follow:
            known = sorted(one.stem for one in pod.logs.glob("*.log"))
            raise UsageError(f"{op.run} has no log {file!r}; there is: {', '.join(known) or 'none yet'}")
        return [path]
    names = ["environment", *(step.name for step in Job.from_json(op.job).steps)]
    return [pod.log(name) for name in names if pod.log(name).exists()]


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
