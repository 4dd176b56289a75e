"""Benchmark reading data sets in well-known layouts: Slipway against `datasets`. Prints seconds and ratios.

Run: python -m bench.layouts [--rows 20000] [--rounds 3] [--layouts TEXT], or bench.data without a folder. The program
writes the data sets (tests/data/layouts.py) and serves them from a hub on loopback. Each arm is a separate process that
writes every document of a split to one line of a file; `datasets` streams. The program exits unless both files are
equal byte for byte.
"""

import argparse
import contextlib
import hashlib
import json
import os
import sys
import tempfile
from pathlib import Path

from bench.turns import Row, print_arms, print_ratios, run_arm, take_turns, tell
from tests.data.layouts import LAYOUTS
from tests.hub import FolderRepo, serving

COLUMNS = {"objects": "content", "webdataset": "txt", "pictures": "caption", "gsm8k": "answer", "smoltalk": "source"}
CONFIGS = {"fineweb-edu": "sample-10BT", "smoltalk": "all", "odd-names": "größer set"}
LEAST = 1.0  # minimum speed relative to `datasets`


def ours(layout: str, out: Path) -> Path:
    from data.__main__ import main as data
    from data.shards.shards import shard_paths

    config = f"/{CONFIGS[layout]}" if layout in CONFIGS else ""
    spec = {"source": f"hf://x/{layout}{config}", "workers": 1, "text_column": COLUMNS.get(layout, "")}
    (out / "config.json").write_text(json.dumps({"out": str(out / "shards"), "spec": spec}))
    assert data(["text", "--config", str(out / "config.json")]) == 0
    (path,) = shard_paths(out / "shards")
    return path


def theirs(layout: str, out: Path) -> Path:
    import datasets

    from data.text.hub_datasets import unpack_zstd

    unpack_zstd()  # lets `datasets` stream .zst without an extra package
    rows = datasets.load_dataset(f"x/{layout}", CONFIGS.get(layout), split="train", streaming=True)
    column = COLUMNS.get(layout, "text")
    with open(out / "all.txt", "w", encoding="utf-8", newline="\n") as file:
        for row in rows:
            if (text := row[column] or "").strip():
                file.write(text.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r") + "\n")
    return out / "all.txt"


ARMS = {"ours": ours, "datasets": theirs}


def measure(name: str, url: str) -> Row:
    with tempfile.TemporaryDirectory() as home:
        return run_arm(
            sys.executable,
            "bench.layouts",
            ["--arm", name],
            HF_ENDPOINT=url,
            HF_HUB_OFFLINE="0",
            HF_HOME=home,
            no_proxy="*",
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--layouts", default="", metavar="TEXT", help="only layouts that match one of TEXT,TEXT")
    parser.add_argument("--arm", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.arm:
        arm, layout = asked.arm.split(": ")
        with tempfile.TemporaryDirectory() as out, contextlib.redirect_stdout(sys.stderr):
            written = ARMS[arm](layout, Path(out)).read_bytes()
        return tell(lines=written.count(b"\n"), sha256=hashlib.sha256(written).hexdigest()[:12])
    compare(asked.rows, asked.rounds, asked.layouts)


def compare(rows: int, rounds: int, wanted: str = "") -> None:
    """Print both times for each layout that matches `wanted`, a list of name parts; exit if the rows differ."""
    names = [name for name in LAYOUTS if any(one in name for one in wanted.split(","))]
    with tempfile.TemporaryDirectory() as folder:
        for name in names:
            LAYOUTS[name](Path(folder) / name, rows)
        with serving({f"x/{name}": FolderRepo(Path(folder) / name) for name in names}) as hub:
            arms = [f"{arm}: {name}" for name in names for arm in ARMS]
            taken = take_turns(arms, rounds, lambda arm: measure(arm, hub.url))
    for name in names:
        digests = {row["sha256"] for arm in ARMS for row in taken[f"{arm}: {name}"]}
        if len(digests) > 1:
            sys.exit(f"{name}: the rows of Slipway and of datasets differ")
    print_arms(taken, {"s, median [range]": ("s", 2, True), "CPU s": ("cpu_s", 2, True), "lines": ("lines", 0, False)})
    ratios = [(f"datasets: {name}", f"ours: {name}", LEAST) for name in names]
    print_ratios(taken, ratios, {"s": "s", "CPU s": "cpu_s"})
    print(f"Rows are equal in every layout, on {os.cpu_count()} processors.")


if __name__ == "__main__":
    main()
