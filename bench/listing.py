"""Measure the time of `inv --list` here, against the same `inv` with an empty tasks.py.

Run: .venv/bin/python bench/listing.py. Prints medians of interleaved runs in milliseconds, and the ratio.
"""

import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ROUNDS = 25


def listing_s(folder: Path) -> float:
    start = time.perf_counter()
    # An empty listing exits with code 1, so the exit code is ignored.
    subprocess.run([sys.executable, "-m", "invoke", "--list"], cwd=folder, capture_output=True)
    return time.perf_counter() - start


def main() -> None:
    with tempfile.TemporaryDirectory() as empty:
        Path(empty, "tasks.py").touch()
        folders = {"ours": ROOT, "empty": Path(empty)}
        for folder in folders.values():
            listing_s(folder)  # Warm-up: writes the bytecode.
        taken: dict[str, list[float]] = {name: [] for name in folders}
        for _ in range(ROUNDS):
            for name, folder in folders.items():
                taken[name].append(listing_s(folder))
    ours, bare = (statistics.median(taken[name]) * 1000 for name in ("ours", "empty"))
    print(f"inv --list: {ours:.0f} ms, with an empty tasks.py: {bare:.0f} ms, ratio {ours / bare:.2f}")


if __name__ == "__main__":
    main()
