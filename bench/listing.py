"""Measure the CPU seconds of three commands as multiples of `python -c "import invoke"`.

Run: .venv/bin/python -m bench.listing [--rounds N] [TREE ...]. Each TREE is a folder with another checkout. The
programs of all trees and the import alternate in one run, so the load of the machine has little effect on the
multiples. Prints a line per command and tree: the median of the rounds in CPU seconds (user and system, with child
processes), and the multiple.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
COMMANDS = {
    "inv --list": ("--list",),
    "inv status": ("status",),
    "inv launch --dry-run": ("launch", "--phase", "sft", "--provider", "local", "--dry-run"),
}


def cpu_s(words: Sequence[str], folder: Path, environ: Mapping[str, str]) -> float:
    """Run Python in `folder` and return the CPU seconds of the process. Raises CalledProcessError."""
    null = subprocess.DEVNULL
    line = [sys.executable, *words]
    process = subprocess.Popen(line, cwd=folder, env=environ, stdin=null, stdout=null, stderr=null)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, process.args)
    return usage.ru_utime + usage.ru_stime


def main() -> None:
    known = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    known.add_argument("trees", nargs="*", type=Path, metavar="TREE")
    known.add_argument("--rounds", type=int, default=15)
    flags = known.parse_args()
    trees = [ROOT, *(tree.resolve() for tree in flags.trees)]
    with tempfile.TemporaryDirectory() as world:
        programs: dict[tuple[str, Path], tuple[str, ...]] = {("import invoke", ROOT): ("-c", "import invoke")}
        programs |= {(name, tree): ("-m", "invoke", *words) for name, words in COMMANDS.items() for tree in trees}
        taken: dict[tuple[str, Path], list[float]] = {program: [] for program in programs}
        for number in range(-1, flags.rounds):  # Round -1 warms up: the programs write bytecode and the journal.
            for (name, tree), words in programs.items():
                here = Path(world, str(trees.index(tree)))
                places = {"STATE_FILE": "state/journal.db", "STORE": "artifacts", "PODS": "pods"}
                environ = os.environ | {f"SLIPWAY_{place}": str(here / path) for place, path in places.items()}
                environ.pop("PYTHONDONTWRITEBYTECODE", None)  # Cached bytecode, as for installed programs.
                seconds = cpu_s(words, tree, environ)
                if number >= 0:
                    taken[name, tree].append(seconds)
    base = statistics.median(taken["import invoke", ROOT])
    print(f"import invoke: {base:.3f} s of CPU")
    for (name, tree), seen in list(taken.items())[1:]:
        middle = statistics.median(seen)
        print(f"{name}: {middle:.3f} s of CPU, {middle / base:.2f} times import invoke, in {tree}")


if __name__ == "__main__":
    main()
