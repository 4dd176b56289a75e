"""Text shards from a folder of parquet, against what people use today. Prints seconds and ratios.

Run: .venv/bin/python -m bench.data FOLDER [--peers PYTHON] [--rounds 3] [--scratch DIR] [--arms TEXT]. PYTHON is one
that has datasets and datatrove. Every arm is a process of its own and reads all of FOLDER; arms take turns, medians
count. What an arm wrote is counted, so that none is fast by doing less. `rss` is the largest single process. CPU
seconds are of what the arm's process waited for, which datatrove's does not do for its workers: there they say nothing.

Ours ends when its shards are on the disk, the others end before: so each arm's files are synced, and the seconds until
then are told, too. With `--scratch /dev/shm` no disk is in the way, and both are the same.
"""

import argparse
import gzip
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from data.manifest import sync_path

ROOT = Path(__file__).resolve().parent.parent


def texts(folder: str) -> Iterator[str]:
    import pyarrow.parquet

    for path in sorted(Path(folder).glob("*.parquet")):
        for batch in pyarrow.parquet.ParquetFile(path).iter_batches(1024, columns=["text"], use_threads=False):
            yield from batch.column(0).to_pylist()


def decode(folder: str, out: Path) -> None:
    import pyarrow.parquet

    for path in sorted(Path(folder).glob("*.parquet")):
        for _ in pyarrow.parquet.ParquetFile(path).iter_batches(1024, columns=["text"], use_threads=False):
            pass


def decode_apart(folder: str, out: Path) -> None:
    """By two processes that have nothing to do with each other: what a second core of this machine gives at best."""
    import multiprocessing

    paths = sorted(Path(folder).glob("*.parquet"))
    for half in (0, 1):
        (out / str(half)).mkdir()
        for path in paths[half::2]:
            (out / str(half) / path.name).symlink_to(path)
    both = [multiprocessing.Process(target=decode, args=(str(out / str(half)), out)) for half in (0, 1)]
    for one in both:
        one.start()
    for one in both:
        one.join()


def ours(folder: str, out: Path, **spec: object) -> None:
    from data.__main__ import main as data

    config = out / "config.json"
    config.write_text(json.dumps({"out": str(out), "spec": {"source": folder, **spec}}))
    assert data(["text", "--config", str(config)]) == 0


def stream(folder: str, out: Path, columns: list[str] | None) -> None:
    import datasets

    rows = datasets.load_dataset(
        "parquet", data_files=f"{folder}/*.parquet", split="train", streaming=True, columns=columns
    )
    with open(out / "all.txt", "w", encoding="utf-8") as file:
        for row in rows:
            file.write(row["text"].replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r") + "\n")


def trove(folder: str, out: Path) -> None:
    from datatrove.executor import LocalPipelineExecutor
    from datatrove.pipeline.readers import ParquetReader
    from datatrove.pipeline.writers import JsonlWriter

    steps = [ParquetReader(folder, glob_pattern="*.parquet"), JsonlWriter(str(out / "shards"), compression=None)]
    LocalPipelineExecutor(steps, tasks=2, workers=2, logging_dir=str(out / "logs")).run()


def python_gzip(folder: str, out: Path) -> None:
    with gzip.open(out / "all.txt.gz", "wt", encoding="utf-8") as file:
        for text in texts(folder):
            file.write(text.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r") + "\n")


ARMS: dict[str, Callable[[str, Path], None]] = {
    "ours, 1 process": lambda folder, out: ours(folder, out, workers=1),
    "ours, 2 processes": lambda folder, out: ours(folder, out, workers=2),
    "decode only": decode,
    "decode only, twice a half": decode_apart,
    "datasets, streaming": lambda folder, out: stream(folder, out, None),
    "datasets, columns=['text']": lambda folder, out: stream(folder, out, ["text"]),
    "datatrove, 2 workers": trove,
    "ours, gzip": lambda folder, out: ours(folder, out, workers=2, compression="gzip"),
    "python gzip": python_gzip,
}
PEERS = {"datasets, streaming", "datasets, columns=['text']", "datatrove, 2 workers"}
RATIOS = [
    ("datasets, streaming", "ours, 2 processes", 5.0),
    ("datasets, columns=['text']", "ours, 2 processes", 3.0),
    ("datatrove, 2 workers", "ours, 2 processes", 3.0),
    ("decode only", "ours, 2 processes", 0.6),
    ("ours, 1 process", "ours, 2 processes", 1.8),
    ("decode only", "decode only, twice a half", 0.0),
    ("python gzip", "ours, gzip", 2.5),
]


def measure(name: str, folder: str, python: str, scratch: str | None = None) -> dict[str, float]:
    """Seconds to the end and to the disk, CPU seconds, lines, bytes written, the largest process (MB) of one arm."""
    out = Path(tempfile.mkdtemp(prefix="slipway-bench-", dir=scratch))
    program = [python, "-m", "bench.data", folder, "--arm", name, "--out", str(out)]
    environ = {**os.environ, "PYTHONPATH": str(ROOT), "HF_HOME": str(out / "hf"), "HF_HUB_OFFLINE": "1"}
    try:
        start = time.perf_counter()
        done = subprocess.run(program, cwd=ROOT, env=environ, capture_output=True, text=True)
        took_s = time.perf_counter() - start
        if done.returncode:
            sys.exit(f"{name}: {done.stderr[-600:]}")
        for path in out.rglob("*"):
            sync_path(path)
        synced_s = time.perf_counter() - start
        used = json.loads(done.stdout.splitlines()[-1])
        files = [path for path in out.rglob("*") if path.is_file() and path.suffix in (".txt", ".gz", ".jsonl")]
        lines = sum(count_lines(path) for path in files)
        return {
            "s": took_s,
            "synced_s": synced_s,
            **used,
            "lines": lines,
            "mb": sum(path.stat().st_size for path in files) / 1e6,
        }
    finally:
        shutil.rmtree(out)


def count_lines(path: Path) -> int:
    with gzip.open(path, "rb") if path.suffix == ".gz" else open(path, "rb") as file:
        return sum(block.count(b"\n") for block in iter(lambda: file.read(1 << 20), b""))


def arm(name: str, folder: str, out: Path) -> None:
    ARMS[name](folder, out)
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    cpu_s = sum(one.ru_utime + one.ru_stime for one in usages)
    print(json.dumps({"cpu_s": cpu_s, "rss_mb": max(one.ru_maxrss for one in usages) / 1024}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=lambda text: str(Path(text).resolve()))
    parser.add_argument("--peers", default="", metavar="PYTHON")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--scratch", metavar="DIR", help="where arms write; default: where temporary files go")
    parser.add_argument("--arms", default="", metavar="TEXT", help="only arms whose name holds this, or this,...")
    parser.add_argument("--arm", choices=ARMS, help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.arm:
        return arm(asked.arm, asked.folder, asked.out)
    names = [
        name
        for name in ARMS
        if (asked.peers or name not in PEERS) and any(one in name for one in asked.arms.split(","))
    ]
    taken: dict[str, list[dict[str, float]]] = {name: [] for name in names}
    loads = [os.getloadavg()[0]]
    for _ in range(asked.rounds):
        for name in names:
            python = asked.peers if name in PEERS else sys.executable
            taken[name].append(measure(name, asked.folder, python, asked.scratch))
            loads.append(os.getloadavg()[0])
            print(name, taken[name][-1], file=sys.stderr)
    where = asked.scratch or "temporary files"
    print(
        f"{asked.rounds} rounds, {os.cpu_count()} cores, load {min(loads):.1f}-{max(loads):.1f}, writing to {where}\n"
    )
    print(f"| arm | {' | '.join(SHOWN)} |\n|---|{'---|' * len(SHOWN)}")
    for name, rows in taken.items():
        print(f"| {name} | {' | '.join(shown([row[key] for row in rows], *how) for key, how in SHOWN.values())} |")
    print("\n| peer / ours | ratio | on the disk | CPU | wanted |\n|---|---|---|---|---|")
    for peer, own, wanted in RATIOS:
        if peer in taken and own in taken:
            ratios = " | ".join(f"{median(taken[peer], key) / median(taken[own], key):.2f}" for key in KEYS)
            print(f"| {peer} / {own} | {ratios} | {wanted or ''} |")


def median(rows: list[dict[str, float]], key: str) -> float:
    return statistics.median(row[key] for row in rows)


def shown(values: list[float], places: int, ranges: bool) -> str:
    span = f" [{min(values):.{places}f}-{max(values):.{places}f}]" if ranges else ""
    return f"{statistics.median(values):.{places}f}{span}"


KEYS = ("s", "synced_s", "cpu_s")
SHOWN: dict[str, tuple[str, tuple[int, bool]]] = {
    "s, median [range]": ("s", (2, True)),
    "s until on the disk": ("synced_s", (2, True)),
    "CPU s": ("cpu_s", (2, True)),
    "MB written": ("mb", (0, False)),
    "lines": ("lines", (0, False)),
    "rss MB": ("rss_mb", (0, False)),
}

if __name__ == "__main__":
    main()
