import numpy as np
import pytest

from data.anchors import anchors
from data.errors import DataError, InputError
from data.loader import Windows, heldout
from data.shards import Writer, read, shard_paths
from data.tokens import HEADER, Stream, open_shard, write

SHA = "ab" * 32


def bins(folder, part="train"):
    return sorted(folder.glob(f"{part}-*.bin"))


@pytest.fixture
def numbers(tmp_path):
    """0 1 2 ... 999 in three files, as the header says."""
    paths = []
    for name, part in zip("abc", np.split(np.arange(1000, dtype="<u2"), [300, 301]), strict=True):
        paths.append(tmp_path / f"{name}.bin")
        header = HEADER.pack(b"SLIPWAYT", 1, 2, 4096, 0, len(part), 1, bytes.fromhex(SHA))
        paths[-1].write_bytes(header + part.tobytes())
    return paths


def test_the_ids_of_all_documents_stand_behind_a_bos_each(text, tokenizer, token_folder):
    bos = tokenizer.special("<|bos|>")
    shard = open_shard(bins(token_folder, "val")[0], tokenizer.sha256)
    documents = list(read(shard_paths(text, "val")))
    assert (shard.documents, shard.vocab_size, shard.ids.dtype) == (len(documents), 1024, np.uint16)
    assert isinstance(shard.ids, np.memmap)
    starts = np.flatnonzero(shard.ids == bos)
    pieces = [tokenizer.decode(piece[1:].tolist()) for piece in np.split(shard.ids, starts[1:])]
    assert pieces == documents


def test_a_large_vocabulary_takes_four_bytes(tmp_path):
    path = tmp_path / "wide.bin"
    path.write_bytes(
        HEADER.pack(b"SLIPWAYT", 1, 4, 100_000, 0, 2, 1, bytes.fromhex(SHA)) + np.array([7, 99_999], "<u4").tobytes()
    )
    assert open_shard(path).ids.tolist() == [7, 99_999]


def test_an_empty_text_shard_gives_an_empty_token_shard(tokenizer, tmp_path):
    assert write([], tokenizer, tmp_path / "none.bin") == (0, 0)
    assert Stream([tmp_path / "none.bin"]).num_tokens == 0


def test_another_tokenizer_is_refused(numbers, tokenizer):
    with pytest.raises(DataError, match=f"made by tokenizer abababababab, not by {tokenizer.sha256[:12]}"):
        open_shard(numbers[0], tokenizer.sha256)


@pytest.mark.parametrize("damage", ["cut", "magic", "short", "missing"])
def test_a_damaged_token_shard_is_refused(numbers, damage):
    raw = numbers[0].read_bytes()
    numbers[0].write_bytes({"cut": raw[:-2], "magic": b"?" + raw[1:], "short": raw[:10], "missing": b""}[damage])
    if damage == "missing":
        numbers[0].unlink()
    with pytest.raises(DataError, match=str(numbers[0])):
        open_shard(numbers[0])


def test_a_stream_reads_across_its_files(numbers):
    stream = Stream(numbers, SHA)
    assert stream.num_tokens == 1000
    for start, count in [(0, 5), (298, 6), (299, 700), (998, 10), (1000, 5)]:
        assert stream.read(start, count).tolist() == list(range(start, min(start + count, 1000)))


def test_an_epoch_visits_every_window_once_and_the_next_in_another_way(numbers):
    windows = Windows(numbers, 16, 1)
    assert windows.num_tokens == 1000
    first, second = (
        np.concatenate([windows.batch(step, 1) for step in range(at, at + windows.num_windows)])
        for at in (0, windows.num_windows)
    )
    for epoch in (first, second):
        starts = sorted(epoch[:, 0].tolist())
        assert starts == list(range(starts[0], starts[0] + 16 * windows.num_windows, 16))
        assert (np.diff(epoch, axis=1) == 1).all()
    assert first[:, 0].tolist() != sorted(first[:, 0].tolist())
    assert (first[:, 0] % 16)[0] != (second[:, 0] % 16)[0]


def test_a_batch_depends_on_nothing_but_seed_and_step(numbers):
    fresh, used = Windows(numbers, 16, 1), Windows(numbers, 16, 1)
    for step in range(200):
        used.batch(step, 4)
    assert (fresh.batch(123, 4) == used.batch(123, 4)).all()
    assert (fresh.batch(123, 4) != fresh.batch(124, 4)).any()
    assert (fresh.batch(123, 4) != Windows(numbers, 16, 2).batch(123, 4)).any()
    assert fresh.batch(0, 4).shape == (4, 17) and fresh.batch(0, 4).dtype == np.int64


@pytest.mark.parametrize("world", [2, 4])
def test_the_ranks_together_see_what_one_would(numbers, world):
    windows = Windows(numbers, 16, 1)
    together = np.concatenate([windows.batch(5, 8 // world, rank, world) for rank in range(world)])
    assert (together == windows.batch(5, 8)).all()


def test_the_loader_says_what_its_position_is_of(numbers):
    assert Windows(numbers, 16, 1, SHA).about() == {
        "seed": 1, "sequence_len": 16, "num_tokens": 1000, "tokenizer_sha256": SHA,
    }  # fmt: skip


@pytest.mark.parametrize("sequence_len", [999, 500, 499, 333])
def test_few_tokens_still_make_windows(numbers, sequence_len):
    assert Windows(numbers, sequence_len, 1).batch(3, 2).shape == (2, sequence_len + 1)


def test_too_few_tokens_and_no_files_are_refused(numbers):
    with pytest.raises(InputError, match="1000 tokens are too few"):
        Windows(numbers, 1000, 1)
    with pytest.raises(DataError, match="no token shards"):
        Windows([], 16, 1)


@pytest.mark.parametrize(("sequence_len", "rows"), [(64, 8), (100, 3)])
def test_every_held_out_byte_is_counted_once(text, tokenizer_folder, tokenizer, token_folder, sequence_len, rows):
    documents = list(read(shard_paths(text, "val")))
    counted, total = [], 0
    for ids, targets, num_bytes in heldout(bins(token_folder, "val"), tokenizer_folder, sequence_len, rows):
        assert ids.shape == targets.shape and ids.shape[1] == sequence_len and len(ids) <= rows
        assert ids.dtype == targets.dtype == np.int64
        learnt = targets[targets >= 0]
        full, after = ids[:-1, 1:], targets[:-1, :-1]  # the last row may be filled up
        assert (full[after >= 0] == after[after >= 0]).all()
        assert tokenizer.token_bytes()[learnt].sum() == num_bytes
        counted += learnt.tolist()
        total += num_bytes
    assert tokenizer.decode(counted) == "".join(documents)
    assert total == sum(len(one.encode()) for one in documents)


def test_the_compressors_anchors_are_bits_per_byte_of_the_documents(text, tmp_path):
    found = anchors(shard_paths(text, "val"))
    assert 2.0 < found["xz"] < found["gzip"] < 3.5
    writer = Writer(tmp_path, 10)
    writer.add("\n" * 100_000)
    writer.finish("test", {})
    assert anchors(shard_paths(tmp_path))["gzip"] < 0.1
    assert anchors([]) == {}
