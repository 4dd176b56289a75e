"""Benchmark parquet to token shards, and token shards to batches, against datatrove, datasets and DataLoader.

Run: .venv/bin/python -m bench.tokens FOLDER [--peers PYTHON] [--rounds 3] [--scratch DIR] [--arms PATTERN]. PYTHON has
the packages datasets and datatrove; the peer of the loaders is the DataLoader of the local PyTorch. All arms use the
same tokenizer of Slipway (VOCAB ids), trained on FOLDER before the measurement. Every arm is a separate process; arms
take turns, and the tables show medians of seconds and ratios. The number of tokens exposes an arm that does less work.
Mapped pages count as memory. CPU seconds include child processes that the arm waited for; datatrove does not wait for
several workers. For loaders, CPU seconds are those of the main process.
"""

import argparse
import json
import re
import sys
import time
from collections.abc import Callable, Iterator
from itertools import islice, pairwise
from pathlib import Path

from bench.turns import print_arms, print_ratios, run_arm, scratch, take_turns, tell
from data.tokens.token_file import token_files

VOCAB = 8192
LENGTH, ROWS, BATCHES = 1024, 64, 600


def step(name: str, config: dict[str, object], out: Path) -> None:
    from data.__main__ import main as data

    file = out / f"{name}.json"
    file.write_text(json.dumps(config))
    assert data([name, "--config", str(file)]) == 0


def ours(folder: str, made: Path, out: Path, workers: int) -> int:
    """Make text shards, as `inv launch` does, then token shards; return the number of training tokens."""
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
    """Make tokens as nanoGPT does: `datasets.map`, then a single file. Return the number of tokens."""
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
    from data.tokens.loader import LOADERS

    loader = LOADERS[kind](token_files(made / "tokens", "train"), LENGTH, ROWS, 1)
    return timed(loader.batch(at) for at in range(BATCHES))


def load_torch(folder: str, made: Path, out: Path, workers: int) -> int:
    import numpy as np
    import torch

    from data.tokens.stream import open_shard

    class Rows(torch.utils.data.Dataset):
        ids = np.concatenate([open_shard(path).ids for path in token_files(made / "tokens", "train")])

        def __len__(self) -> int:
            return (len(self.ids) - 1) // LENGTH

        def __getitem__(self, at: int) -> torch.Tensor:
            return torch.from_numpy(self.ids[at * LENGTH : at * LENGTH + LENGTH + 1].astype(np.int64))

    rows = Rows()
    chance = torch.utils.data.RandomSampler(rows, replacement=True, num_samples=ROWS * BATCHES)
    return timed(torch.utils.data.DataLoader(rows, ROWS, sampler=chance, num_workers=workers))


def load_packed(folder: str, made: Path, out: Path, buffer: int) -> int:
    """Load best-fit packed rows with a DataLoader; return the number of tokens.

    `buffer` above 0: search a buffer of that many documents for the best fit, as nanochat does. 0: pack groups of
    documents with the code of Slipway.
    """
    import numpy as np
    import torch

    from data.tokens.best_fit import fill_rows
    from data.tokens.loader import GROUP
    from data.tokens.stream import open_shard

    documents: list[np.ndarray] = []
    for path in token_files(made / "tokens", "train"):
        shard = open_shard(path)
        documents += np.split(shard.ids, shard.starts[1:-1].astype(np.int64))

    def shuffled() -> Iterator[np.ndarray]:
        chance = np.random.default_rng(1)
        while True:
            yield from (documents[at] for at in chance.permutation(len(documents)).tolist())

    def by_our_code() -> Iterator[torch.Tensor]:
        stream = shuffled()
        while True:
            some = list(islice(stream, GROUP))
            which, sizes, begins = (one.tolist() for one in fill_rows(list(map(len, some)), LENGTH + 1))
            for first, end in pairwise(begins):
                spans = zip(which[first:end], sizes[first:end], strict=True)
                yield torch.from_numpy(np.concatenate([some[at][:size] for at, size in spans]).astype(np.int64))

    def by_looking() -> Iterator[torch.Tensor]:
        stream = shuffled()
        waiting = list(islice(stream, buffer))
        while True:
            row, room = [], LENGTH + 1
            while room:
                best, longest = -1, 0
                for at, one in enumerate(waiting):
                    if longest < len(one) <= room:
                        best, longest = at, len(one)
                if best < 0:
                    best = min(range(len(waiting)), key=lambda at: len(waiting[at]))
                row.append(waiting.pop(best)[:room])
                room -= len(row[-1])
                waiting.append(next(stream))
            yield torch.from_numpy(np.concatenate(row).astype(np.int64))

    class Rows(torch.utils.data.IterableDataset):
        def __iter__(self) -> Iterator[torch.Tensor]:
            return by_looking() if buffer else by_our_code()

    return timed(islice(torch.utils.data.DataLoader(Rows(), ROWS), BATCHES))


def timed(batches: object) -> int:
    """Load the batches and return the number of tokens; set CLOCKS to the time of the loading alone."""
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
    "DataLoader of packed rows, as nanochat": lambda folder, made, out: load_packed(folder, made, out, 1000),
    "DataLoader of packed rows, by our code": lambda folder, made, out: load_packed(folder, made, out, 0),
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
    ("DataLoader", "ours, best-fit", 0.0),  # DataLoader does not pack
    ("DataLoader of packed rows, as nanochat", "ours, best-fit", 2.0),
    ("DataLoader of packed rows, by our code", "ours, best-fit", 2.0),
]
PEERS = ("datatrove, 2 workers", "datatrove, 1 worker", "datasets.map, 2 processes")


def measure(name: str, folder: str, python: str, made: Path, where: str | None) -> dict[str, float]:
    with scratch(where) as out:
        words = [folder, "--arm", name, "--made", str(made), "--out", str(out)]
        return run_arm(python, "bench.tokens", words, HF_HOME=str(out / "hf"))


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
    parser.add_argument("--scratch", metavar="DIR", help="folder for output; default: the system's temporary folder")
    parser.add_argument("--arms", default="", metavar="PATTERN", help="only arms with a name that matches")
    parser.add_argument("--arm", choices=ARMS, help=argparse.SUPPRESS)
    for name in ("--out", "--made"):
        parser.add_argument(name, type=Path, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.arm:
        tokens = ARMS[asked.arm](asked.folder, asked.made, asked.out)
        return tell(million_tokens=tokens / 1e6, **CLOCKS)
    names = [name for name in ARMS if (asked.peers or name not in PEERS) and re.search(asked.arms, name)]
    pythons = {name: asked.peers if name in PEERS else sys.executable for name in names}
    with scratch(asked.scratch) as made:
        prepare(asked.folder, made)
        taken = take_turns(
            names, asked.rounds, lambda name: measure(name, asked.folder, pythons[name], made, asked.scratch)
        )
    print_arms(taken, SHOWN)
    print_ratios(taken, RATIOS, {"s": "s", "CPU s": "cpu_s"})


SHOWN = {
    "s, median [range]": ("s", 2, True),
    "CPU s": ("cpu_s", 3, True),
    "million tokens": ("million_tokens", 2, False),
    "largest process, MB": ("mb_largest", 0, False),
}

if __name__ == "__main__":
    main()
