"""View of logs: the last lines of a run's steps or of a service, optionally filtered by a search text."""

import io
from pathlib import Path
from typing import Any

from flows.reading import logs
from infra.errors import UsageError
from infra.ledger import service_rows
from infra.ledger.journal import Journal
from infra.ledger.op import Op
from infra.runs.lookup import find_run, names_of_runs
from infra.runs.run_home import RunHome
from infra.runs.sync.fetched_files import read_cuts
from packs.page.views.page_context import ELSEWHERE_S, CachedValue, PageContext
from packs.page.views.sections.ask import View, ViewQuery
from serve.processes import controller_process

LINES, MOST_LINES = 400, 5000
MOST_BYTES = 32 << 20  # bytes at the end of a log that are read
HERE_S = 0.5


def shown(context: PageContext, asked: ViewQuery) -> dict[str, Any]:
    """Return the last log lines of a run or a service. Raise UsageError for an unknown run, service or file."""
    if asked.word("service"):
        return _of_service(context, asked)
    with context.journal() as journal:
        runs = names_of_runs(journal)[::-1]
        if not runs:
            return {"runs": [], "lines": [], "command": "inv logs"}
        op = find_run(journal, asked.word("run"))
        found = _brought(context, op, journal)
    home = RunHome.for_run(op.run, context.settings.homes)
    paths = {path.stem: path for path in [*found, *sorted(home.pod.logs.glob("*.log"))]}
    file = asked.word("file")
    if file and file not in paths:
        raise UsageError(f"{op.run} has no log {file!r}; available: {', '.join(paths)}")
    meant = [paths[file]] if file else found
    command = f"inv logs {op.run}" + (" --follow" if op.is_live else "") + (f" --file {file}" if file else "")
    about = {"run": op.run, "runs": runs, "files": list(paths), "is_live": op.is_live, "command": command}
    return {**about, "cuts": read_cuts(home), **searched(meant, asked)}


VIEW = View(shown)


def searched(paths: list[Path], asked: ViewQuery) -> dict[str, Any]:
    """Return the last lines over all files, only matches if a search text is given, and the number of such lines."""
    words, most = asked.word("search").casefold(), asked.count("lines", LINES, MOST_LINES)
    lines: list[tuple[str, int, str]] = []
    total = 0
    for path in paths:
        for number, line in enumerate(io.StringIO(_text(path)), 1):
            if not words or words in line.casefold():
                total += 1
                lines.append((path.stem, number, _clean(line)))
        lines = lines[-most:]
    return {"lines": lines, "total": total}


def _brought(context: PageContext, op: Op, journal: Journal) -> list[Path]:
    """Download the logs, rate-limited by the cache, and return the log files in step order."""
    folder = RunHome.for_run(op.run, context.settings.homes).pod.logs

    def bring() -> tuple[None, float]:
        with context.journal() as own:
            if logs.fetch(op, own, context.settings, context.add_note) or not op.is_live:
                logs.fetch_from_store(op, context.settings, context.add_note)
        return None, HERE_S if op.vendor == "local" and op.is_live else ELSEWHERE_S if op.is_live else 3600.0

    context.cached(("logs", op.token, op.is_live), lambda: CachedValue(bring)).get()
    return logs.choose(folder, op, "", False)


def _of_service(context: PageContext, asked: ViewQuery) -> dict[str, Any]:
    """Return the last lines of a service's request log or controller log. Raise UsageError."""
    with context.journal() as journal:
        names = [one.name for one in service_rows.list_services(journal)]
    name, file = asked.word("service"), asked.word("file") or "requests"
    if name not in names:
        raise UsageError(f"no service has the name {name!r}; running: {', '.join(names) or 'none'}")
    places = controller_process.ServicePaths.for_service(context.settings, name)
    files = {"requests": places.access, "controller": places.log}
    if file not in files:
        raise UsageError(f"{name} has no log {file!r}; available: {', '.join(files)}")
    command = f"inv serve.logs {name} --follow" + (" --controller" if file == "controller" else "")
    about = {"service": name, "files": list(files), "is_live": True, "runs": [], "command": command}
    return {**about, **searched([files[file]], asked)}


def _text(path: Path) -> str:
    try:
        with path.open("rb") as file:
            size = file.seek(0, io.SEEK_END)
            file.seek(max(0, size - MOST_BYTES))
            return file.read().decode("utf-8", "replace")
    except FileNotFoundError:
        return ""


def _clean(line: str) -> str:
    return "".join(letter for letter in line.rstrip("\n") if letter == "\t" or letter.isprintable())
