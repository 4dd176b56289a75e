"""Leases: artifacts in use are never removed, and an unreadable lease is reported."""

import json

import pytest

from store.artifacts import references
from store.artifacts.artifacts import Store
from store.manifest import Artifact, StoreError, kept_name
from tests.store.test_store import folder_of

NOW = 1_000_000.0


@pytest.fixture
def root(tmp_path):
    return tmp_path / "store"


def test_a_lease_holds_until_it_ends_and_is_renewed(root):
    references.hold(str(root), "a-run", "run a", [("tokens", "f1"), ("base_checkpoints", "f2")], NOW)
    references.hold(str(root), "b-run", "run b", [("tokens", "f1")], NOW - 10)
    readers = references.readers(references.live_leases(str(root), NOW))
    assert readers == {("tokens", "f1"): ("run a", "run b"), ("base_checkpoints", "f2"): ("run a",)}
    late = NOW + references.LEASE_S - 5
    assert references.readers(references.live_leases(str(root), late)).keys() == {
        ("tokens", "f1"),
        ("base_checkpoints", "f2"),
    }
    assert [one.owner for one in references.live_leases(str(root), late)] == ["run a"]
    references.release(str(root), "a-run")
    references.release(str(root), "a-run")
    references.hold(str(root), "b-run", "run b", [("tokens", "f1")], NOW)
    assert [one.owner for one in references.live_leases(str(root), late)] == ["run b"]


@pytest.mark.parametrize(
    "content", ["[", "{}", '{"owner":"x","until":NaN,"reads":[]}', '{"owner":"x","until":1,"reads":[1]}']
)
def test_an_unreadable_lease_stops_removals_and_is_reported_in_plans(root, content):
    (root / "references").mkdir(parents=True)
    (root / "references" / "x.json").write_text(content)
    with pytest.raises(StoreError, match="x.json"):
        references.live_leases(str(root), NOW)
    odd: list[str] = []
    assert references.live_leases(str(root), NOW, odd) == [] and "x.json" in odd[0]


def test_unreferenced_artifacts_are_found_and_unknown_files_are_not():
    kept = [
        Artifact(kept_name("base_checkpoints/x", one), one, published_at=at)
        for one, at in (("f1", 5.0), ("f2", 1.0), ("f3", 2.0), ("f4", 50.0), ("f5", 3.0))
    ]
    kept.append(Artifact(kept_name("base_checkpoints/x", "f6"), "", "the manifest cannot be used"))
    named = [Artifact("base_checkpoints/tiny", "f1")]
    due = references.unread(named, kept, {("base_checkpoints", "f2")}, 10.0)
    assert [one.fingerprint for one in due] == ["f3", "f5"]


@pytest.mark.parametrize("is_held", [False, True], ids=["named", "under a lease"])
def test_the_model_of_a_kept_change_is_kept(is_held):
    def kept(kind, made, **changes):
        about = {"changes": changes} if changes else {}
        return Artifact(kept_name(f"{kind}/x", made), made, about=about, published_at=1.0)

    long = "model/of a former code"  # no part of a path
    change = kept("chatsft_checkpoints", "a1", name="base_checkpoints/tiny", fingerprint=long)
    unused = kept("chatsft_checkpoints", "a2", name="base_checkpoints/tiny", fingerprint="f2")
    odd = kept("chatsft_checkpoints", "a3", name=7, fingerprint=None)
    models = [kept("base_checkpoints", one) for one in (long, "f2")]
    named = [] if is_held else [Artifact("chatsft_checkpoints/tiny", "a1")]
    held = {("chatsft_checkpoints", "a1")} if is_held else set()
    due = references.unread(named, [change, unused, odd, *models], held, 10.0)
    assert {one.fingerprint for one in due} == {"a2", "a3", "f2"}


def test_the_target_of_a_path_is_returned(root, tmp_path):
    store = Store(root)
    store.publish(folder_of(tmp_path / "made", {"hf/config.json": b"{}"}), "chatsft_checkpoints/tiny", "f1", {})
    path = store.path("chatsft_checkpoints/tiny", "f1") / "hf"
    assert references.kept_at(str(path)) == ("chatsft_checkpoints", "f1")
    assert references.kept_at(str(root / "chatsft_checkpoints" / "tiny")) is None
    (tmp_path / "joined").mkdir()
    (tmp_path / "joined" / "hf").symlink_to(path)
    assert references.kept_behind(str(tmp_path / "joined" / "hf")) == ("chatsft_checkpoints", "f1")
    assert references.kept_behind(f"s3://bucket/{kept_name('tokens', 'f2')}") == ("tokens", "f2")


def test_a_mismatch_of_model_and_tokenizer_is_reported(tmp_path):
    from hashlib import sha256

    from store.artifacts import vocabulary

    def words(count, eos=1):
        model = {"vocab": {f"t{n}": n for n in range(count)}}
        return json.dumps({"model": model, "added_tokens": [{"id": eos, "content": "<end>"}]}).encode()

    def said(files, about=None):
        def read(name):
            try:
                return files[name]
            except KeyError:
                raise FileNotFoundError(name) from None

        return vocabulary.problem(read, about or {})

    named = {
        "special_tokens_map.json": b'{"eos_token": "<end>"}',
        "generation_config.json": b'{"eos_token_id": [1, 0]}',
    }
    good = {"config.json": b'{"vocab_size": 9}', "tokenizer.json": words(9), **named}
    told = {"tokenizer_sha256": sha256(words(9)).hexdigest(), "vocab": 9}
    assert said(good) == said(good, told) == said({"config.json": b"{}"}) == ""
    assert "a different tokenizer (with 9 ids)" in said({**good, "tokenizer.json": words(5)}, told)
    assert "ids up to 10, but the model has only 9 rows" in said({**good, "tokenizer.json": words(11)})
    assert "'<end>' is 3" in said({**good, "tokenizer.json": words(9, eos=3)})
    for content in (b"[]", b"\xff", b'{"model": NaN}'):
        assert "cannot be read" in said({**good, "tokenizer.json": content})
    for content in (b"{}", b'{"model": {"vocab": {"a": "b"}}}', b'{"model": {"vocab": 5}}'):  # of a foreign kind
        assert said({**good, "tokenizer.json": content}) == ""
        assert "a different tokenizer" in said({**good, "tokenizer.json": content}, told)
