"""Batches: the right text, each document once, independent of ranks and the starting point."""

import json
import subprocess
import sys
import threading
from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data import prefetch
from data.errors import DataError, InputError
from data.prefetch import PrefetchIterator
from data.report.compressors import anchors
from data.shards.shards import Writer as TextWriter
from data.shards.shards import read, shard_paths
from data.tokens import loader
from data.tokens.best_fit import fill_rows
from data.tokens.loader import LOADERS, BestFit, Windows, heldout
from data.tokens.shuffle import Shuffle
from data.tokens.stream import STARTS
from data.tokens.token_file import Header
from data.tokens.tokenize import TokenWriter
from tests import seeds
from tests.data.conftest import ROOT
from trainer.parallel.process_group import Ranks

SHA = "ab" * 32
BOS = 4087


def tokenizer_of(vocab_size=4096):
    return SimpleNamespace(vocab_size=vocab_size, sha256=SHA, separator=vocab_size - 9)


def bins(folder, part="train"):
    return sorted(folder.glob(f"{part}-*.arrow"))


def written(folder, *files):
    """Write token shards of these documents."""
    paths = []
    for number, documents in enumerate(files):
        writer = TokenWriter(folder / f"train-{number:05d}.arrow", tokenizer_of())
        writer.add(documents)
        writer.finish()
        paths.append(writer.target)
    return paths


@pytest.fixture(scope="module")
def numbers(tmp_path_factory):
    """Write 0 1 2 ... 999 without document starts, in three files, as one long document each."""
    paths = []
    for number, part in enumerate(np.split(np.arange(1000), [300, 301])):
        path = tmp_path_factory.mktemp("numbers") / f"train-{number:05d}.arrow"
        header = Header(2, 4096, BOS, len(part), 1, SHA, SHA, SHA)
        body = part.astype("<u2").tobytes() + bytes(header.padding) + np.array([0, len(part)], STARTS).tobytes()
        path.write_bytes(header.head + body)
        paths.append(path)
    return paths


@pytest.fixture(scope="module")
def many_documents(tmp_path_factory):
    """Write 400 documents of 1 to 90 ids in three files, document n made of n and its positions: n, 500, 501, ..."""
    chance = np.random.default_rng(3)
    documents = [[number, *range(500, 500 + chance.integers(89))] for number in range(400)]
    return written(tmp_path_factory.mktemp("many"), documents[:170], documents[170:171], documents[171:])


@pytest.fixture(autouse=True)
def small_groups(monkeypatch):
    monkeypatch.setattr(loader, "GROUP", 64)


def documents_of_row(row):
    """Return the ids of a row, cut before every <|bos|>."""
    return [piece.tolist() for piece in np.split(row, np.flatnonzero(row == BOS)) if len(piece)]


def test_epoch_visits_every_window_once_and_the_next_in_a_different_order(numbers):
    windows = Windows(numbers, 16, 1, 1)
    first, second = (
        np.concatenate([windows.batch(step) for step in range(at, at + windows.num_windows)])
        for at in (0, windows.num_windows)
    )
    for epoch in (first, second):
        starts = sorted(epoch[:, 0].tolist())
        assert starts == list(range(starts[0], starts[0] + 16 * windows.num_windows, 16))
        assert (np.diff(epoch, axis=1) == 1).all()
    assert first[:, 0].tolist() != sorted(first[:, 0].tolist())
    assert (first[:, 0] % 16)[0] != (second[:, 0] % 16)[0]


def test_windows_of_a_seed_equal_the_recorded_windows(numbers):
    """Recorded before loaders had a cursor: recorded losses depend on them."""
    assert Windows(numbers, 16, 4, 1).batch(123)[:, 0].tolist() == [749, 109, 13, 93]
    assert Windows(numbers, 16, 5, 7).batch(12)[:, 0].tolist() == [190, 199, 487, 759, 519]  # Of two epochs.


def test_rows_are_whole_documents_and_only_the_last_of_a_row_is_cut(many_documents):
    packed = BestFit(many_documents, 255, 8, 1)
    rows = [row for step in range(6) for row in packed.batch(step)]
    lengths = packed.stream.document_ranges(np.arange(400))[1]
    whole = cut = 0
    for row in rows:
        assert row[0] == BOS and len(row) == 256
        for last, piece in enumerate(documents_of_row(row), 1):
            number = piece[1] if len(piece) > 1 else None
            assert piece[2:] == list(range(500, 500 + len(piece) - 2))
            if number is not None and len(piece) == lengths[number]:
                whole += 1
            else:
                cut += 1
                assert last == len(documents_of_row(row))
    assert whole > 3 * cut > 0


def test_best_fit_epoch_repeats_no_document_and_omits_few(many_documents):
    packed = BestFit(many_documents, 127, 1, 1)
    epochs: list[list[int]] = [[], []]
    step = 0
    while (epoch := packed._place(step).epoch) < 2:
        epochs[epoch] += [piece[1] for piece in documents_of_row(packed.batch(step)[0]) if len(piece) > 1]
        step += 1
    for seen in epochs:
        assert len(seen) == len(set(seen)) and len(seen) > 340
    assert epochs[0] != epochs[1]


@pytest.mark.parametrize("kind", LOADERS)
def test_batch_depends_only_on_seed_and_step(many_documents, kind):
    make = LOADERS[kind]
    fresh, used = make(many_documents, 16, 4, 1), make(many_documents, 16, 4, 1)
    for step in range(200):
        used.batch(step)
    assert (fresh.batch(123) == used.batch(123)).all()
    assert (fresh.batch(123) != fresh.batch(124)).any()
    assert (fresh.batch(123) != make(many_documents, 16, 4, 2).batch(123)).any()
    assert fresh.batch(0).shape == (4, 17) and fresh.batch(0).dtype == np.int64


@settings(max_examples=40)
@given(
    kind=st.sampled_from(sorted(LOADERS)), rows=st.integers(1, 9), length=st.integers(1, 200),
    seed=st.integers(0, 1 << 62), stopped=st.integers(0, 60), more=st.integers(1, 5),
    before=st.sampled_from([1, 2, 4]), after=st.sampled_from([1, 2, 4]),
)  # fmt: skip
def test_ranks_together_equal_one_process_and_resume_from_a_cursor_in_a_different_number(
    many_documents, kind, rows, length, seed, stopped, more, before, after
):
    def all_of(batch, size):
        shares = [Ranks(rank, size).shard_rows(batch, -1) for rank in range(size)]
        assert len({len(one) for one in shares}) == 1
        return np.concatenate([one[(one != -1).all(axis=1)] for one in shares])

    make = LOADERS[kind]
    alone = make(many_documents, length, rows, seed)
    first = [make(many_documents, length, rows, seed) for _ in range(before)]
    for step in range(max(0, stopped - 2), stopped):
        batches = [one.batch(step) for one in first]
        assert (all_of(batches[-1], before) == alone.batch(step)).all()
        assert all((one == batches[0]).all() for one in batches)
    cursor = json.loads(json.dumps(first[0].cursor(stopped)))  # As in a checkpoint.
    assert len(json.dumps(cursor)) < 200
    for rank in range(after):
        resumed = make(many_documents, length, rows, seed)
        resumed.resume(cursor)
        for step in range(stopped, stopped + more):
            share, whole = Ranks(rank, after).shard_rows(resumed.batch(step), -1), alone.batch(step)
            assert (share == Ranks(rank, after).shard_rows(whole, -1)).all()
            assert (all_of(whole, after) == whole).all()


def test_windows_of_one_epoch_are_disjoint_over_steps_and_ranks(numbers):
    windows = Windows(numbers, 16, 8, 1)
    starts = [
        share[0, 0]
        for step in range(windows.num_windows // 8)
        for rank in range(4)
        for share in np.split(Ranks(rank, 4).shard_rows(windows.batch(step), -1), 2)
    ]
    assert len(set(starts)) == len(starts) == windows.num_windows // 8 * 8


def test_loader_starts_at_a_cursor_without_reading_up_to_it(many_documents, monkeypatch):
    """A loader started at step 500 packs only the groups of step 500."""
    far = BestFit(many_documents, 63, 8, 1)
    cursor = far.cursor(500)
    resumed, packed = BestFit(many_documents, 63, 8, 1), []
    monkeypatch.setattr(loader, "fill_rows", lambda lengths, row: packed.append(1) or fill_rows(lengths, row))
    resumed.resume(cursor)
    assert (resumed.batch(500) == far.batch(500)).all()
    assert 1 <= len(packed) <= 2
    resumed.resume(far.cursor(480))  # As after a roll-back.
    assert (resumed.batch(481) == far.batch(481)).all()


@pytest.mark.parametrize("kind", LOADERS)
def test_cursor_of_different_data_is_refused(many_documents, numbers, kind):
    cursor = LOADERS[kind](many_documents, 16, 4, 1).cursor(7)
    with pytest.raises(DataError, match="the checkpoint was trained on the tokens .*, but the run uses the tokens"):
        LOADERS[kind](numbers, 16, 4, 1).resume(cursor)


def test_document_of_each_id_is_known(many_documents):
    for one in (BestFit(many_documents, 63, 8, 1), Windows(many_documents, 63, 8, 1)):
        rows = one.batch(3)
        numbers = one.documents(rows)
        for row, of in zip(rows, numbers, strict=True):
            assert [row[of == number].tolist() for number in range(of[-1] + 1)] == documents_of_row(row)


@pytest.mark.parametrize("sequence_len", [999, 500, 499, 333])
def test_few_tokens_still_make_rows(numbers, sequence_len):
    assert Windows(numbers, sequence_len, 2, 1).batch(3).shape == (2, sequence_len + 1)
    assert BestFit(numbers, sequence_len, 2, 1).batch(3).shape == (2, sequence_len + 1)


def test_too_few_tokens_and_no_files_are_refused(numbers, tmp_path):
    with pytest.raises(InputError, match="1000 tokens are too few"):
        Windows(numbers, 1000, 1, 1)
    with pytest.raises(DataError, match="no token shards"):
        Windows([], 16, 1, 1)
    short = BestFit(written(tmp_path, [[1]] * 200), 200, 1, 1)
    with pytest.raises(InputError, match="fill a row of 201 ids; use packing windows"):
        short.batch(0)


def reference_rows(lengths, row_len):
    """Return the rows of nanochat's algorithm, with plain lists."""
    left, rows = list(enumerate(lengths)), []
    while True:
        row, room = [], row_len
        while room and left:
            fitting = [one for one in left if one[1] <= room]
            chosen = max(fitting, key=lambda one: (one[1], one[0])) if fitting else min(left, key=lambda one: one[1])
            left.remove(chosen)
            row.append((chosen[0], min(chosen[1], room)))
            room -= row[-1][1]
        if room:
            return rows
        rows.append(row)


@settings(max_examples=seeds.examples(60, 200))
@given(lengths=st.lists(st.integers(1, 40), max_size=60), row_len=st.integers(1, 50))
def test_best_fit_equals_its_source(lengths, row_len):
    made = fill_rows(lengths, row_len)
    pieces = list(zip(made.documents, made.sizes, strict=True))
    assert [pieces[begin:end] for begin, end in pairwise(made.begins)] == reference_rows(lengths, row_len)


@settings(max_examples=60)
@given(size=st.integers(1, 5000), seed=st.integers(0, 1000), table=st.sampled_from([0, 1 << 22]))
def test_a_shuffle_has_every_number_once(size, seed, table):
    order = Shuffle(size, np.random.default_rng(seed), table)
    assert sorted(order[np.arange(size)].tolist()) == list(range(size))


def test_shuffle_without_a_list_is_statistically_sound():
    """Check a shuffle of 100,000 numbers: no more fixed points or correlation than by chance, and an effect of keys."""
    size = 100_000
    first, second = (Shuffle(size, np.random.default_rng(seed), 0)[np.arange(size)] for seed in (1, 2))
    for order in (first, second):
        assert (order == np.arange(size)).sum() < 10
        assert (np.diff(order) == 1).sum() < 10
        for lag in (1, 2, 256, 512):
            assert abs(np.corrcoef(order[:-lag], order[lag:])[0, 1]) < 0.02
        assert abs(np.corrcoef(order, np.arange(size))[0, 1]) < 0.02
    assert (first == second).sum() < 10
    huge = Shuffle(10**13, np.random.default_rng(0))
    assert huge.list is None and len(set(huge[np.arange(10**12, 10**12 + 1000)].tolist())) == 1000


def test_prefetched_batches_are_in_order_and_bounded():
    made, gate = [], threading.Semaphore(0)

    def make(step):
        gate.acquire()
        made.append(step)
        return step * step

    with PrefetchIterator(make, 3, 9, depth=2) as one:
        gate.release(100)
        assert [one.next_batch()[0] for _ in range(6)] == [9, 16, 25, 36, 49, 64]
    assert made == [3, 4, 5, 6, 7, 8]
    with PrefetchIterator(make, 0, 100, depth=2) as one:
        one.next_batch()
    assert len(made) <= 6 + 3


def test_exception_of_a_prefetch_is_raised_at_the_consumer():
    def make(step):
        if step == 2:
            raise DataError("torn")
        return step

    with PrefetchIterator(make, 0, 5) as one:
        assert [one.next_batch()[0], one.next_batch()[0]] == [0, 1]
        with pytest.raises(DataError, match="torn"):
            one.next_batch()


def test_waiting_time_for_a_batch_is_reported(monkeypatch):
    """Advance a clock by five seconds during the creation of the second batch, which starts on request."""
    clock, asked, gate = [100.0], [], threading.Event()

    def now():
        asked.append(1)
        if len(asked) == 3:
            gate.set()
            return 100.0
        return clock[0]

    def make(step):
        if step == 1:
            assert gate.wait(60)
            clock[0] += 5
        return step

    monkeypatch.setattr(prefetch, "time", SimpleNamespace(perf_counter=now))
    with PrefetchIterator(make, 0, 2) as made:
        assert [made.next_batch(), made.next_batch()] == [(0, 0.0), (1, 5.0)]


@pytest.mark.nightly
@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", LOADERS)
def test_memory_is_flat_over_a_corpus_larger_than_its_limit(kind, tmp_path):
    """16 GB of tokens in four sparse files with only an index, 500 batches, 250 MB."""
    tokens, documents = 2 << 30, 3 << 20
    header = Header(2, 4096, BOS, tokens, documents, SHA, SHA, SHA)
    starts = np.linspace(0, tokens, documents + 1, dtype=STARTS)
    for number in range(4):
        with open(tmp_path / f"train-{number:05d}.arrow", "wb") as file:
            file.write(header.head)
            file.seek(header.index)
            file.write(starts.tobytes())
    program = f"""
from pathlib import Path
from data.tokens.loader import LOADERS
one = LOADERS[{kind!r}](sorted(Path({str(tmp_path)!r}).glob("*.arrow")), 1024, 64, 1)
assert one.stream.num_tokens == {4 * tokens}
for step in range(500):
    one.batch(step)
print(next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM")))
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 250 << 10  # kB


@pytest.mark.process
@pytest.mark.parametrize(("sequence_len", "rows"), [(64, 8), (100, 3)])
def test_every_held_out_byte_is_counted_once(text, tokenizer_folder, tokenizer, token_folder, sequence_len, rows):
    documents = list(read(shard_paths(text, "val")))
    counted, total = [], 0
    for ids, targets, num_bytes in heldout(bins(token_folder, "val"), tokenizer_folder, sequence_len, rows):
        assert ids.shape == targets.shape and ids.shape[1] == sequence_len and len(ids) <= rows
        assert ids.dtype == targets.dtype == np.int64
        learnt = targets[targets >= 0]
        full, after = ids[:-1, 1:], targets[:-1, :-1]  # The last row may be padded.
        assert (full[after >= 0] == after[after >= 0]).all()
        assert tokenizer.token_bytes()[learnt].sum() == num_bytes
        counted += learnt.tolist()
        total += num_bytes
    assert tokenizer.decode(counted) == "".join(documents)
    assert total == sum(len(one.encode()) for one in documents)


@pytest.mark.process
def test_anchors_of_compressors_are_bits_per_byte_of_the_documents(text, tmp_path):
    found = anchors(shard_paths(text, "val"))
    assert 2.0 < found["xz"] < found["gzip"] < 3.5
    writer = TextWriter(tmp_path, 10)
    writer.add("\n" * 100_000)
    writer.finish("test", {})
    assert anchors(shard_paths(tmp_path))["gzip"] < 0.1
    assert anchors([]) == {}


@pytest.mark.process
def test_evaluation_and_compressors_stop_at_a_limit(text, tokenizer_folder, token_folder):
    whole, cut = (
        np.concatenate(
            [targets.ravel() for _, targets, _ in heldout(bins(token_folder, "val"), tokenizer_folder, 64, 8, most)]
        )
        for most in (None, 1000)
    )
    assert cut[:1000].tolist() == whole[:1000].tolist() and (cut[1000:] == -1).all() and len(cut) == 1024
    paths, lengths = shard_paths(text, "val"), [len(one.encode()) for one in read(shard_paths(text, "val"))]
    few = anchors(paths, lengths[0] + 1)
    assert few["compressed_bytes"] == lengths[0] + lengths[1] and few["gzip"] > anchors(paths)["gzip"]
    assert anchors(paths, sum(lengths)) == anchors(paths)
