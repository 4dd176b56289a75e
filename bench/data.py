"""Benchmark text shards from a folder of parquet against datasets and datatrove. Prints seconds and ratios.

Run: .venv/bin/python -m bench.data [FOLDER] [--peers PYTHON] [--rounds 3] [--scratch DIR] [--arms TEXT]. PYTHON has the
packages datasets and datatrove. Every arm is a separate process and reads all of FOLDER; arms take turns, and the
tables show medians. The tables also show the output of each arm (MB, lines), to expose an arm that does less work. CPU
seconds include the child processes that the arm waited for; datatrove does not wait for workers, so ignore its value.

Slipway's arms end when the shards are on disk; the other arms end earlier. Therefore the program syncs the files of
each arm and also prints the seconds until the sync. With `--scratch /dev/shm` both times are the same.

Without FOLDER the program compares Slipway with `datasets` row for row, on small data sets in the layouts of well-known
data sets (bench/layouts.py).
"""

import argparse
import gzip
import json
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from bench.turns import print_arms, print_ratios, run_arm, scratch, take_turns, tell
from data.manifest import sync_path


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


def apart(work: Callable[[str, Path], None], folder: str, out: Path) -> None:
    """Run the work in two independent processes on half of the files each: an upper bound for two cores."""
    import multiprocessing

    paths = sorted(Path(folder).glob("*.parquet"))
    both = []
    for number in (0, 1):
        half, made = out / f"half-{number}", out / f"made-{number}"
        half.mkdir()
        made.mkdir()
        for path in paths[number::2]:
            (half / path.name).symlink_to(path)
        both.append(multiprocessing.Process(target=work, args=(str(half), made)))
    for one in both:
        one.start()
    for one in both:
        one.join()
    assert not any(one.exitcode for one in both)


def ours(folder: str, out: Path, **spec: object) -> None:
    from data.__main__ import main as data
    from data.__main__ import spare_numpy

    spare_numpy()  # as `python -m data text` does
    config = out / "config.json"
    config.write_text(json.dumps({"out": str(out), "spec": {"source": folder, **spec}}))
    assert data(["text", "--config", str(config)]) == 0


def ours_alone(folder: str, out: Path) -> None:
    ours(folder, out, workers=1)


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
    "ours, 1 process": ours_alone,
    "ours, 2 processes": lambda folder, out: ours(folder, out, workers=2),
    "decode only": decode,
    "decode only, twice a half": lambda folder, out: apart(decode, folder, out),
    "ours, twice a half": lambda folder, out: apart(ours_alone, folder, out),
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
    ("ours, 1 process", "ours, twice a half", 0.0),
    ("ours, twice a half", "ours, 2 processes", 0.0),
    ("python gzip", "ours, gzip", 2.5),
]


def measure(name: str, folder: str, python: str, where: str | None) -> dict[str, float]:
    """Run an arm; return the reported figures, the seconds until the files are synced, and the lines and MB written."""
    with scratch(where) as out:
        start = time.perf_counter()
        told = run_arm(python, "bench.data", [folder, "--arm", name, "--out", str(out)], HF_HOME=str(out / "hf"))
        for path in out.rglob("*"):
            sync_path(path)
        synced_s = time.perf_counter() - start
        files = [path for path in out.rglob("*") if path.is_file() and path.suffix in (".txt", ".gz", ".jsonl")]
        lines = sum(count_lines(path) for path in files)
        return {**told, "synced_s": synced_s, "lines": lines, "mb": sum(path.stat().st_size for path in files) / 1e6}


def count_lines(path: Path) -> int:
    with gzip.open(path, "rb") if path.suffix == ".gz" else open(path, "rb") as file:
        return sum(block.count(b"\n") for block in iter(lambda: file.read(1 << 20), b""))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", nargs="?", type=lambda text: str(Path(text).resolve()))
    parser.add_argument("--peers", default="", metavar="PYTHON")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--scratch", metavar="DIR", help="folder for output; default: the system's temporary folder")
    parser.add_argument("--arms", default="", metavar="TEXT", help="only arms that match one of these texts: TEXT,TEXT")
    parser.add_argument("--arm", choices=ARMS, help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.arm:
        ARMS[asked.arm](asked.folder, asked.out)
        return tell()
    if asked.folder is None:
        from bench import layouts  # Imported late: the peers' Python may lack packages of the tests.

        return layouts.compare(20_000, asked.rounds, asked.arms)
    names = [
        name
        for name in ARMS
        if (asked.peers or name not in PEERS) and any(one in name for one in asked.arms.split(","))
    ]
    pythons = {name: asked.peers if name in PEERS else sys.executable for name in names}
    taken = take_turns(names, asked.rounds, lambda name: measure(name, asked.folder, pythons[name], asked.scratch))
    print_arms(taken, SHOWN)
    print_ratios(taken, RATIOS, {"s": "s", "on the disk": "synced_s", "CPU s": "cpu_s"})


SHOWN = {
    "s, median [range]": ("s", 2, True),
    "s until on the disk": ("synced_s", 2, True),
    "CPU s": ("cpu_s", 2, True),
    "MB written": ("mb", 0, False),
    "lines": ("lines", 0, False),
    "largest process, MB": ("mb_largest", 0, False),
}

if __name__ == "__main__":
    main()
