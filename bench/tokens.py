"""Parquet to token shards, and token shards to batches, against what people use today. Prints seconds and ratios.

Run: .venv/bin/python -m bench.tokens FOLDER [--peers PYTHON] [--rounds 3] [--scratch DIR] [--arms PATTERN]. PYTHON is
one that has datasets and datatrove; the loaders' peer is the DataLoader of the torch here. One tokenizer of ours
(VOCAB ids, trained on FOLDER before any clock runs) is used by all. Every arm is a process of its own; arms take turns,
medians count. What an arm made is counted in tokens, so that none is fast by doing less. `largest` is the most memory
that its main process had resident (VmHWM: mapped pages count). CPU seconds are of the arm and of what it waited for,
which datatrove does not do for several workers; of the loaders, they are of the loop in its own process.
"""

import argparse
import json
import os
import re
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VOCAB = 8192
LENGTH, ROWS, BATCHES = 1024, 64, 600


def step(name: str, config: dict[str, object], out: Path) -> None:
    from data.__main__ import main as data

    file = out / f"{name}.json"
    file.write_text(json.dumps(config))
    assert data([name, "--config", str(file)]) == 0


def ours(folder: str, made: Path, out: Path, workers: int) -> int:
    """Text shards first, as `inv launch` does, then tokens."""
    step("text", {"out": str(out / "text"), "spec": {"source": folder, "workers": workers, **SHARDS}}, out)
    inputs = {"text": str(out / "text"), "tokenizer": str(made / "tokenizer")}
    step("tokens", {"out": str(out / "tokens"), "inputs": inputs, "spec": {"workers": workers}}, out)
    return int(json.loads((out / "tokens" / "manifest.json").read_text())["train_tokens"])


def trove(folder: str, made: Path, out: Path, workers: int) -> int:
    from datatrove.executor import LocalPipelineExecutor
    from datatrove.pipeline.readers import ParquetReader
    from datatrove.pipeline.tokens import DocumentTokenizer

    name = str(made / "tokenizer" / "tokenizer.json")
    writer = DocumentTokenizer(
        str(out / "t"), tokenizer_name_or_path=name, eos_token="<|bos|>", shuffle_documents=False
    )
    steps = [ParquetReader(folder, glob_pattern="*.parquet"), writer]
    LocalPipelineExecutor(steps, tasks=workers, workers=workers, logging_dir=str(out / "logs")).run()
    return sum(path.stat().st_size for path in (out / "t").glob("*.ds")) // 2


def mapped(folder: str, made: Path, out: Path, workers: int) -> int:
    """nanoGPT's way: `datasets.map`, then one file."""
    import datasets
    import numpy as np
    import tokenizers

    words = tokenizers.Tokenizer.from_file(str(made / "tokenizer" / "tokenizer.json"))
    bos = words.token_to_id("<|bos|>")

    def encode(rows: dict) -> dict:
        return {"ids": [[bos, *one.ids] for one in words.encode_batch(rows["text"], add_special_tokens=False)]}

    rows = datasets.load_dataset("parquet", data_files=f"{folder}/*.parquet", split="train", columns=["text"])
    coded = rows.map(encode, batched=True, remove_columns=["text"], num_proc=workers)
    total = 0
    with open(out / "all.bin", "wb") as file:
        for batch in coded.with_format("numpy").iter(1000):
            ids = np.concatenate(batch["ids"]).astype(np.uint16)
            file.write(ids.tobytes())
            total += len(ids)
    return total


def load_ours(folder: str, made: Path, out: Path, kind: str) -> int:
    from data.loader import LOADERS

    loader = LOADERS[kind](sorted((made / "tokens").glob("train-*.bin")), LENGTH, ROWS, 1)
    return timed(loader.batch(at) for at in range(BATCHES))


def load_torch(folder: str, made: Path, out: Path, workers: int) -> int:
    import numpy as np
    import torch

    from data.stream import open_shard

    class Rows(torch.utils.data.Dataset):
        ids = np.concatenate([open_shard(path).ids for path in sorted((made / "tokens").glob("train-*.bin"))])

        def __len__(self) -> int:
            return (len(self.ids) - 1) // LENGTH

        def __getitem__(self, at: int) -> torch.Tensor:
            return torch.from_numpy(self.ids[at * LENGTH : at * LENGTH + LENGTH + 1].astype(np.int64))

    rows = Rows()
    chance = torch.utils.data.RandomSampler(rows, replacement=True, num_samples=ROWS * BATCHES)
    return timed(torch.utils.data.DataLoader(rows, ROWS, sampler=chance, num_workers=workers))


def timed(batches: object) -> int:
    """Tokens of these batches, whose time alone counts: not what was imported and opened before."""
    start_s, start_cpu_s = time.perf_counter(), time.process_time()
    tokens = sum((one.shape[1] - 1) * len(one) for one in batches)  # type: ignore[attr-defined]
    CLOCKS.update(s=time.perf_counter() - start_s, cpu_s=time.process_time() - start_cpu_s)
    return tokens


CLOCKS: dict[str, float] = {}
SHARDS = {"lines_per_shard": 5000}
Arm = Callable[[str, Path, Path], int]
PIPELINES: dict[str, Arm] = {
    "ours, 2 processes": lambda folder, made, out: ours(folder, made, out, 2),
    "ours, 1 process": lambda folder, made, out: ours(folder, made, out, 1),
    "datatrove, 2 workers": lambda folder, made, out: trove(folder, made, out, 2),
    "datatrove, 1 worker": lambda folder, made, out: trove(folder, made, out, 1),
    "datasets.map, 2 processes": lambda folder, made, out: mapped(folder, made, out, 2),
}
LOADING: dict[str, Arm] = {
    "ours, windows": lambda folder, made, out: load_ours(folder, made, out, "windows"),
    "ours, best-fit": lambda folder, made, out: load_ours(folder, made, out, "best-fit"),
    "DataLoader": lambda folder, made, out: load_torch(folder, made, out, 0),
    "DataLoader, 2 workers": lambda folder, made, out: load_torch(folder, made, out, 2),
}
ARMS = PIPELINES | LOADING
RATIOS = [
    ("datatrove, 2 workers", "ours, 2 processes", 2.5),
    ("datatrove, 1 worker", "ours, 1 process", 2.5),
    ("datasets.map, 2 processes", "ours, 2 processes", 2.5),
    ("ours, 1 process", "ours, 2 processes", 1.8),
    ("DataLoader", "ours, windows", 2.0),
    ("DataLoader, 2 workers", "ours, windows", 2.0),
    ("DataLoader", "ours, best-fit", 2.0),
]
PEERS = ("datatrove, 2 workers", "datatrove, 1 worker", "datasets.map, 2 processes")


def measure(name: str, folder: str, python: str, made: Path, scratch: str | None) -> dict[str, float]:
    out = Path(tempfile.mkdtemp(prefix="slipway-bench-", dir=scratch))
    words = [python, "-m", "bench.tokens", folder, "--arm", name, "--made", str(made), "--out", str(out)]
    environ = {**os.environ, "PYTHONPATH": str(ROOT), "HF_HOME": str(out / "hf"), "HF_HUB_OFFLINE": "1"}
    try:
        start = time.perf_counter()
        done = subprocess.run(words, cwd=ROOT, env=environ, capture_output=True, text=True)
        took_s = time.perf_counter() - start
        if done.returncode:
            sys.exit(f"{name}: {done.stderr[-900:]}")
        return {"s": took_s, **json.loads(done.stdout.splitlines()[-1])}
    finally:
        shutil.rmtree(out)


def arm(name: str, folder: str, made: Path, out: Path) -> None:
    tokens = ARMS[name](folder, made, out)
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    status = dict(line.split(":") for line in Path("/proc/self/status").read_text().splitlines())
    told = {"tokens": tokens, "cpu_s": sum(one.ru_utime + one.ru_stime for one in usages)}
    told["largest_mb"] = int(status["VmHWM"].split()[0]) / 1024
    print(json.dumps(told | CLOCKS))


def prepare(folder: str, made: Path) -> None:
    step("text", {"out": str(made / "text"), "spec": {"source": folder, **SHARDS}}, made)
    inputs = {"text": str(made / "text")}
    step("tokenizer", {"out": str(made / "tokenizer"), "inputs": inputs, "spec": {"vocab_size": VOCAB}}, made)
    inputs["tokenizer"] = str(made / "tokenizer")
    step("tokens", {"out": str(made / "tokens"), "inputs": inputs, "spec": {}}, made)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=lambda text: str(Path(text).resolve()))
    parser.add_argument("--peers", default="", metavar="PYTHON")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--scratch", metavar="DIR", help="where arms write; default: where temporary files go")
    parser.add_argument("--arms", default="", metavar="PATTERN", help="only arms whose name holds this")
    parser.add_argument("--arm", choices=ARMS, help=argparse.SUPPRESS)
    for name in ("--out", "--made"):
        parser.add_argument(name, type=Path, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.arm:
        return arm(asked.arm, asked.folder, asked.made, asked.out)
    names = [name for name in ARMS if (asked.peers or name not in PEERS) and re.search(asked.arms, name)]
    taken: dict[str, list[dict[str, float]]] = {name: [] for name in names}
    with tempfile.TemporaryDirectory(prefix="slipway-bench-", dir=asked.scratch) as made:
        prepare(asked.folder, Path(made))
        loads = [os.getloadavg()[0]]
        for _ in range(asked.rounds):
            for name in names:
                python = asked.peers if name in PEERS else sys.executable
                taken[name].append(measure(name, asked.folder, python, Path(made), asked.scratch))
                loads.append(os.getloadavg()[0])
                print(name, taken[name][-1], file=sys.stderr)
    print(f"{asked.rounds} rounds, {os.cpu_count()} cores, load {min(loads):.1f}-{max(loads):.1f}\n")
    print("| arm | s, median [range] | CPU s | million tokens | largest MB |\n|---|---|---|---|---|")
    for name, rows in taken.items():
        seconds = [row["s"] for row in rows]
        cells = (
            f"{statistics.median(seconds):.2f} [{min(seconds):.2f}-{max(seconds):.2f}] | {median(rows, 'cpu_s'):.2f}"
        )
        print(f"| {name} | {cells} | {median(rows, 'tokens') / 1e6:.2f} | {median(rows, 'largest_mb'):.0f} |")
    print("\n| peer / ours | ratio | CPU | wanted |\n|---|---|---|---|")
    for peer, own, wanted in RATIOS:
        if peer in taken and own in taken:
            ratios = " | ".join(f"{median(taken[peer], key) / median(taken[own], key):.2f}" for key in ("s", "cpu_s"))
            print(f"| {peer} / {own} | {ratios} | {wanted} |")


def median(rows: list[dict[str, float]], key: str) -> float:
    return statistics.median(row[key] for row in rows)


if __name__ == "__main__":
    main()
