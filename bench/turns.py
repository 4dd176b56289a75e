"""Run the arms of a benchmark in turn, each in a separate process, and print Markdown tables of the figures.

An arm's process reports a row of figures with `tell`; `run_arm` returns the row to the main process.
"""

import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

ROOT = Path(__file__).resolve().parent.parent
Name = TypeVar("Name")
Row = dict[str, Any]
Taken = dict[Name, list[Row]]


@contextmanager
def scratch(folder: str | None) -> Iterator[Path]:
    """Yield a new folder in `folder` (None: the folder for temporary files); remove the new folder on exit."""
    out = Path(tempfile.mkdtemp(prefix="slipway-bench-", dir=folder))
    try:
        yield out
    finally:
        shutil.rmtree(out)


def run_arm(python: str, module: str, words: Sequence[str], **environ: str) -> Row:
    """Run an arm; return the reported row with the wall-clock seconds. Exit with the end of stderr on failure."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1", **environ}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # Cached bytecode, as for installed peers.
    start = time.perf_counter()
    done = subprocess.run([python, "-m", module, *words], cwd=ROOT, env=environment, capture_output=True, text=True)
    took_s = time.perf_counter() - start
    if done.returncode:
        sys.exit(f"{' '.join(words)}: {done.stderr[-900:]}")
    return {"s": took_s, **json.loads(done.stdout.splitlines()[-1])}


def tell(**more: Any) -> None:
    """Print the row of an arm at the end of the arm's process: CPU seconds with child processes, memory, and `more`."""
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    status = dict(line.split(":") for line in Path("/proc/self/status").read_text().splitlines())
    own_mb = int(status["VmHWM"].split()[0]) / 1024  # ru_maxrss of a child starts at the parent's value.
    largest_mb = max(own_mb, usages[1].ru_maxrss / 1024)
    print(json.dumps({"cpu_s": sum(one.ru_utime + one.ru_stime for one in usages), "mb_largest": largest_mb, **more}))


def take_turns(names: Sequence[Name], rounds: int, measure: Callable[[Name], Row]) -> Taken[Name]:
    """Run each arm in each round and return the rows. Print each row, and at the end the cores and the load."""
    taken: Taken[Name] = {name: [] for name in names}
    loads = [os.getloadavg()[0]]
    for _ in range(rounds):
        for name, rows in taken.items():
            rows.append(measure(name))
            loads.append(os.getloadavg()[0])
            print(name, rows[-1], file=sys.stderr)
    print(f"{rounds} rounds, {os.cpu_count()} cores, load {min(loads):.1f}-{max(loads):.1f}\n")
    return taken


def median(rows: Sequence[Row], key: str) -> float:
    return statistics.median(row[key] for row in rows)


def shown(rows: Sequence[Row], key: str, places: int, ranges: bool = True) -> str:
    values = [row[key] for row in rows]
    span = f" [{min(values):.{places}f}-{max(values):.{places}f}]" if ranges else ""
    return f"{statistics.median(values):.{places}f}{span}"


def print_arms(taken: Taken[Any], columns: Mapping[str, tuple[str, int, bool]]) -> None:
    """Print a table of arms. `columns`: by title, the key of the figure, the decimals, and a flag to show the range."""
    print(f"| arm | {' | '.join(columns)} |\n|---|{'---|' * len(columns)}")
    for name, rows in taken.items():
        print(f"| {name} | {' | '.join(shown(rows, *how) for how in columns.values())} |")


def print_ratios(taken: Taken[Any], ratios: Sequence[tuple[Any, Any, float]], keys: Mapping[str, str]) -> None:
    """Print ratios of medians, peer / ours, with the smallest and largest ratio in brackets.

    `keys`: by title, the key of the figure.
    """
    print(f"\n| peer / ours | {' | '.join(keys)} | wanted |\n|---|{'---|' * len(keys)}---|")
    for peer, own, wanted in ratios:
        if peer in taken and own in taken:
            cells = " | ".join(ratio(taken[peer], taken[own], key) for key in keys.values())
            print(f"| {peer} / {own} | {cells} | {wanted or ''} |")


def ratio(theirs: Sequence[Row], ours: Sequence[Row], key: str) -> str:
    those, these = [row[key] for row in theirs], [row[key] for row in ours]
    middle = statistics.median(those) / statistics.median(these)
    return f"{middle:.2f} [{min(those) / max(these):.2f}-{max(those) / min(these):.2f}]"
