"""Benchmark training a tokenizer and encoding, against tokenizers, tiktoken, rustbpe and fastokens.

Run: PYTHON -m bench.tokenizer FOLDER [--rounds 3] [--mb 40] [--vocab-size 32768] [--arms TEXT] [--peers PYTHON]. FOLDER
holds parquet. The Python of `--peers` (default: this Python) runs every arm and needs numpy, pyarrow, tokenizers,
tiktoken, rustbpe and fastokens. Every arm is a separate process; arms take turns, and the tables show medians. Times
exclude imports and reading. All encoders use the tokenizer that `ours` trained and must produce the same ids, which the
program checks by sha256. Prints seconds, CPU seconds and ratios; on a busy machine, CPU seconds are more reliable.
"""

import argparse
import hashlib
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from itertools import islice
from pathlib import Path
from typing import Any

from bench.data import texts
from bench.turns import Taken, ratio, run_arm, shown, take_turns
from data.tokens import bpe, tokenizer

BATCH = 512
Work = Callable[[], Any]


def train_ours(documents: list[str], folder: Path, vocab_size: int, threads: int) -> Work:
    return lambda: bpe.train(documents, vocab_size).to_str()


def train_theirs(documents: list[str], folder: Path, vocab_size: int, threads: int) -> Work:
    import tokenizers
    from tokenizers import Regex, models, pre_tokenizers, trainers

    made = tokenizers.Tokenizer(models.BPE())
    split = pre_tokenizers.Split(Regex(tokenizer.PATTERN), "isolated")
    as_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    made.pre_tokenizer = pre_tokenizers.Sequence([split, as_bytes])
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    how = trainers.BpeTrainer(
        vocab_size=vocab_size - len(tokenizer.SPECIALS), initial_alphabet=letters, show_progress=False
    )
    return lambda: made.train_from_iterator(documents, how)


def encode_ours(documents: list[str], folder: Path, vocab_size: int, threads: int) -> Work:
    ours = tokenizer.load(folder)
    return lambda: [ours.encode_batch(batch) for batch in batches(documents)]


def encode_theirs(documents: list[str], folder: Path, vocab_size: int, threads: int) -> Work:
    theirs = tokenizer.load(folder).inner
    theirs.encode_special_tokens = True
    return lambda: [
        [one.ids for one in theirs.encode_batch_fast(batch, add_special_tokens=False)] for batch in batches(documents)
    ]


def encode_tiktoken(documents: list[str], folder: Path, vocab_size: int, threads: int) -> Work:
    import tiktoken

    letters = bpe.byte_letters()
    byte_of = {letters(bytes([number])): number for number in range(256)}
    vocab = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))["model"]["vocab"]
    ranks = {bytes(byte_of[letter] for letter in word): rank for word, rank in vocab.items()}
    theirs = tiktoken.Encoding("ours", pat_str=tokenizer.PATTERN, mergeable_ranks=ranks, special_tokens={})
    if threads == 1:
        return lambda: [[theirs.encode_ordinary(text) for text in batch] for batch in batches(documents)]
    return lambda: [theirs.encode_ordinary_batch(batch, num_threads=threads) for batch in batches(documents)]


def batches(documents: list[str]) -> Iterable[list[str]]:
    rows = iter(documents)
    while batch := list(islice(rows, BATCH)):
        yield batch


ARMS = {
    "train, ours": train_ours,
    "train, tokenizers": train_theirs,
    "encode, ours": encode_ours,
    "encode, tiktoken": encode_tiktoken,
    "encode, tokenizers": encode_theirs,
}
THREADS = (1, 2)
RATIOS = [("train, tokenizers", "train, ours", 2.3), ("encode, tokenizers", "encode, ours", 3.0),
          ("encode, tiktoken", "encode, ours", 1.0)]  # fmt: skip


def arm(name: str, threads: int, asked: argparse.Namespace) -> None:
    """Run an arm once and print the time as JSON."""
    documents, size = [], 0
    for text in texts(asked.folder):
        documents.append(text)
        size += len(text.encode())
        if size > asked.mb * 1e6:
            break
    work = ARMS[name](documents, asked.tokenizer, asked.vocab_size, threads)
    start, start_cpu = time.perf_counter(), time.process_time()
    made = work()
    took = {"s": time.perf_counter() - start, "cpu_s": time.process_time() - start_cpu}
    digest = hashlib.sha256()
    if name.startswith("encode"):
        for row in (row for batch in made for row in batch):
            digest.update(json.dumps(row if isinstance(row, list) else row.tolist()).encode())
    print(json.dumps({**took, "mb": size / 1e6, "ids": digest.hexdigest()}))


def measure(name: str, threads: int, asked: argparse.Namespace) -> dict[str, Any]:
    words = [asked.folder, "--arm", name, "--threads", str(threads)]
    words += ["--mb", str(asked.mb), "--vocab-size", str(asked.vocab_size), "--tokenizer", str(asked.tokenizer)]
    return run_arm(asked.peers, "bench.tokenizer", words, RAYON_NUM_THREADS=str(threads), TOKENIZERS_PARALLELISM="1")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=lambda text: str(Path(text).resolve()))
    parser.add_argument("--peers", default=sys.executable, metavar="PYTHON")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--mb", type=float, default=40.0, help="so much text")
    parser.add_argument("--vocab-size", type=int, default=32768)
    parser.add_argument("--arms", default="", metavar="TEXT", help="only arms with this text in their name")
    parser.add_argument("--arm", choices=ARMS, help=argparse.SUPPRESS)
    parser.add_argument("--threads", type=int, default=1, help=argparse.SUPPRESS)
    parser.add_argument("--tokenizer", type=Path, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.arm:
        return arm(asked.arm, asked.threads, asked)
    with tempfile.TemporaryDirectory(prefix="slipway-bench-") as scratch:
        asked.tokenizer = Path(scratch)
        bpe.save(bpe.train(texts(asked.folder), asked.vocab_size), asked.tokenizer)
        arms = [(name, threads) for threads in THREADS for name in ARMS if asked.arms in name]
        report(asked, take_turns(arms, asked.rounds, lambda one: measure(*one, asked)))


def report(asked: argparse.Namespace, taken: Taken[tuple[str, int]]) -> None:
    ids = {row["ids"] for (name, _), rows in taken.items() for row in rows if name.startswith("encode")}
    size_mb = next(iter(taken.values()))[0]["mb"]
    same = "equal" if len(ids) < 2 else "NOT EQUAL"
    print(f"{size_mb:.1f} MB of text, {asked.vocab_size} ids; ids of all encoders: {same}\n")
    print("| arm | threads | s, median [range] | CPU s | MB per CPU s |\n|---|---|---|---|---|")
    for (name, threads), rows in taken.items():
        rate = size_mb / statistics.median(row["cpu_s"] for row in rows)
        print(f"| {name} | {threads} | {shown(rows, 's', 2)} | {shown(rows, 'cpu_s', 2)} | {rate:.1f} |")
    print("\n| peer / ours | threads | s | CPU s, median [least-most] | wanted |\n|---|---|---|---|---|")
    for peer, own, wanted in RATIOS:
        for threads in THREADS:
            if (peer, threads) in taken and (own, threads) in taken:
                wall, cpu = (ratio(taken[peer, threads], taken[own, threads], key) for key in ("s", "cpu_s"))
                print(f"| {peer} / {own} | {threads} | {wall} | {cpu} | {wanted} |")


if __name__ == "__main__":
    main()
