"""Training of a tokenizer: merges, reuse, and the metadata file."""

import json
import shutil

import pytest
import rustbpe
import yaml

from data.config import ConfigError, TokenizerSpec
from data.errors import DataError, InputError
from data.shards.shards import Writer, read, shard_paths
from data.tokens import bpe
from data.tokens.tokenizer import PATTERN, SPECIALS, load
from tests.data.conftest import run_step

try:
    import tomllib
except ModuleNotFoundError:  # Python 3.10
    import tomli as tomllib


@pytest.fixture
def words(tmp_path):
    """Write a few documents, one of them huge."""
    writer = Writer(tmp_path / "words", 1000)
    for number in range(60):
        writer.add(f"the quick brown fox {number} jumps over the lazy dog, the end")
    writer.add("zebra " * 20_000)
    writer.finish('corpus "with" \\ and \x7f\x85 and \U0001f600', {})
    return tmp_path / "words"


def training(folder):
    return (
        yaml.safe_load((folder / "training.yaml").read_text(encoding="utf-8")),
        tomllib.loads((folder / "training.toml").read_text(encoding="utf-8")),
    )


def stamps(folder):
    return {path.name: path.stat().st_mtime_ns for path in folder.iterdir()}


@pytest.mark.process
def test_training_is_independent_of_the_number_of_processors(text, tokenizer_folder, tmp_path):
    config = {"out": str(tmp_path / "out"), "inputs": {"text": str(text)}, "spec": {"vocab_size": 1024}}
    assert run_step("tokenizer", config, tmp_path, RAYON_NUM_THREADS="1").returncode == 0
    for name in (*bpe.FILES, bpe.MANIFEST):
        assert (tmp_path / "out" / name).read_bytes() == (tokenizer_folder / name).read_bytes()


@pytest.mark.process
def test_merges_equal_the_merges_of_the_trainer(text, tmp_path):
    """The trainer counts words, not pairs; the pairs found here must give the same ids."""
    trainer = rustbpe.Tokenizer()
    trainer.train_from_iterator(read(shard_paths(text)), 3000, pattern=PATTERN)
    ranks = sorted(trainer.get_mergeable_ranks(), key=lambda row: row[1])
    bpe.save(bpe.assemble([bytes(word) for word, _ in ranks]), tmp_path)
    ours = load(tmp_path)
    for document in list(read(shard_paths(text, "val")))[:400]:
        assert ours.encode(document) == trainer.encode(document)


def test_ids_are_bytes_then_merges_then_specials(words, tmp_path):
    bpe.make(TokenizerSpec(vocab_size=300, document_chars=60), words, tmp_path / "out")
    made = json.loads((tmp_path / "out" / "tokenizer.json").read_text())
    ours = load(tmp_path / "out")
    assert [ours.encode(bytes([number]))[0] for number in range(128)] == list(range(128))
    assert len(made["model"]["merges"]) == 300 - 256 - len(SPECIALS)
    assert ours.decode([256]) in ("th", "he")  # The most frequent pair.
    assert [one["content"] for one in made["added_tokens"]] == list(SPECIALS)


@pytest.mark.parametrize("size", [265, 266, 300])
def test_vocabulary_may_be_as_small_as_the_bytes_and_the_specials(words, tmp_path, size):
    made = bpe.make(TokenizerSpec(vocab_size=size), words, tmp_path / "out")
    ours = load(tmp_path / "out")
    assert made["vocab_size"] == ours.vocab_size == size
    assert ours.decode(ours.encode("quick ✓")) == "quick ✓"
    assert ours.special(SPECIALS[0]) == size - 9


@pytest.mark.parametrize(
    ("size", "seen"),
    [
        (264, "alone are 265"),
        (200, "alone are 265"),
        (90_000, "yields only 355; .* --set model.vocab_size=355, or for inv tokenizer --vocab-size 355"),
    ],
)
def test_impossible_vocabulary_size_is_refused(words, tmp_path, size, seen):
    with pytest.raises(InputError, match=seen):
        bpe.make(TokenizerSpec(vocab_size=size), words, tmp_path / "out")


def test_training_files_exist_before_training_with_the_same_content(words, tmp_path):
    with pytest.raises(InputError):
        bpe.make(TokenizerSpec(vocab_size=90_000), words, tmp_path)
    in_yaml, in_toml = training(tmp_path)
    assert in_yaml == in_toml
    assert in_yaml["source"] == 'corpus "with" \\ and \x7f\x85 and \U0001f600'
    assert (in_yaml["vocab_size"], in_yaml["pattern"], in_yaml["specials"]) == (90_000, PATTERN, list(SPECIALS))
    assert in_yaml["text_lines"] == 61
    assert not (tmp_path / "tokenizer.json").exists()


def test_tokenizer_of_the_same_text_and_settings_is_kept(words, tmp_path):
    out, spec = tmp_path / "out", TokenizerSpec(vocab_size=300)
    first = bpe.make(spec, words, out)
    before = stamps(out)
    second = bpe.make(spec, words, out)
    assert (first["reused"], second["reused"]) == (False, True)
    assert stamps(out) == before and second["tokenizer_sha256"] == first["tokenizer_sha256"]
    assert bpe.make(spec, words, out, retrain=True) == first
    assert stamps(out)["tokenizer.json"] > before["tokenizer.json"]


def test_same_text_at_a_different_path_reuses_the_tokenizer(words, tmp_path, monkeypatch):
    spec, elsewhere = TokenizerSpec(vocab_size=300), tmp_path / "elsewhere"
    first = bpe.make(spec, words, tmp_path / "a")
    shutil.copytree(words, elsewhere)
    manifest = json.loads((elsewhere / "manifest.json").read_text())
    (elsewhere / "manifest.json").write_text(json.dumps({**manifest, "source": "a path of another machine"}))
    with monkeypatch.context() as patch:
        patch.setattr(bpe, "read", _interrupted)
        assert bpe.make(spec, elsewhere, tmp_path / "a") == {**first, "reused": True}
        assert bpe.make(spec, elsewhere, tmp_path / "b", others=[tmp_path / "none", tmp_path / "a"])["reused"]
        assert bpe.make(spec, words, tmp_path / "b") == {**first, "reused": True}
    files = [{name: (tmp_path / one / name).read_bytes() for name in bpe.FILES} for one in "ab"]
    assert files[0] == files[1]


@pytest.mark.parametrize("change", ["settings", "text", "a byte", "a lost file", "a lost manifest"])
def test_tokenizer_of_different_inputs_is_trained_again(words, tmp_path, change):
    out, spec = tmp_path / "out", TokenizerSpec(vocab_size=300)
    bpe.make(spec, words, out)
    whole = (out / "tokenizer.json").read_bytes()
    if change == "settings":
        spec = TokenizerSpec(vocab_size=301)
    elif change == "text":
        writer = Writer(words, 1000)
        writer.add("Sphinx of black quartz, judge my vow; pack my box with five dozen liquor jugs. " * 10)
        writer.finish("another", {})
    elif change == "a byte":
        (out / "tokenizer.json").write_bytes(whole.replace(b"<|bos|>", b"<|boz|>"))
    else:
        (out / {"a lost file": "tokenizer_config.json", "a lost manifest": bpe.MANIFEST}[change]).unlink()
    assert bpe.make(spec, words, out)["reused"] is False
    assert ((out / "tokenizer.json").read_bytes() == whole) == (change not in ("settings", "text"))
    assert bpe.make(spec, words, out)["reused"] is True


def test_interrupted_training_is_not_mistaken_for_the_previous_tokenizer(words, tmp_path, monkeypatch):
    out = tmp_path / "out"
    bpe.make(TokenizerSpec(vocab_size=300), words, out)
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(bpe, "read", _interrupted)
        bpe.make(TokenizerSpec(vocab_size=280), words, out)
    assert load(out).vocab_size == 300  # The old files are still present.
    assert bpe.make(TokenizerSpec(vocab_size=280), words, out) | {"tokenizer_sha256": ""} == {
        "vocab_size": 280,
        "tokenizer_sha256": "",
        "reused": False,
    }


def _interrupted(paths):
    yield "some text"
    raise KeyboardInterrupt


def test_training_text_is_bounded_in_total_and_per_document(words, tmp_path):
    spec = TokenizerSpec(vocab_size=300, document_chars=50)
    heads = list(bpe._heads(read(shard_paths(words)), spec))
    assert len(heads) == 61 and max(map(len, heads)) == 50
    cut = list(bpe._heads(read(shard_paths(words)), TokenizerSpec(max_chars=120, document_chars=50)))
    assert [len(head) for head in cut] == [50, 50, 20]
    for key in ("max_chars", "document_chars"):
        with pytest.raises(ConfigError, match=key):
            TokenizerSpec(**{key: 0})


@pytest.mark.parametrize("piece", [" ", "a", ".", "\n", "\t ", "x\r\n", "'"])
def test_huge_repetitive_document_is_trained_on(piece):
    texts = [f"word number {n} of some more words" for n in range(40)] + [piece * (10_000 // len(piece))]
    assert bpe.train(texts, 280).get_vocab_size() == 280


@pytest.mark.process
def test_published_tokenizer_is_copied_byte_for_byte(tokenizer_folder, tmp_path):
    bare = tmp_path / "published"
    bare.mkdir()
    (bare / "tokenizer.json").write_bytes((tokenizer_folder / "tokenizer.json").read_bytes())
    taken = bpe.adopt(bpe.Published(path=str(bare / "tokenizer.json")), tmp_path / "out")
    assert taken == {"vocab_size": 1024, "tokenizer_sha256": load(tokenizer_folder).sha256, "reused": False}
    for name in ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"):
        assert (tmp_path / "out" / name).read_bytes() == (tokenizer_folder / name).read_bytes()
    in_yaml, in_toml = training(tmp_path / "out")
    assert in_yaml == in_toml and in_yaml["tokenizer_json"] == str(bare / "tokenizer.json")
    before = stamps(tmp_path / "out")
    assert bpe.adopt(bpe.Published(path=str(bare)), tmp_path / "out")["reused"] is True
    assert stamps(tmp_path / "out") == before


@pytest.mark.process  # A file of unknown cost is read in a child process.
@pytest.mark.parametrize(("make", "seen"), [
    (lambda folder: None, "no tokenizer.json"),
    (lambda folder: (folder / "tokenizer.json").write_text("{}"), "cannot be read"),
])  # fmt: skip
def test_invalid_tokenizer_is_refused(tmp_path, make, seen):
    make(tmp_path)
    with pytest.raises(InputError, match=seen):
        bpe.adopt(bpe.Published(path=str(tmp_path)), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_unfinished_shards_are_not_trained_on(tmp_path):
    with pytest.raises(DataError, match="not finished"):
        bpe.make(TokenizerSpec(vocab_size=300), tmp_path, tmp_path / "out")
