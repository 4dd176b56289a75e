import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path

import pytest

from store.artifacts.artifacts import Store
from store.manifest import Artifact, StoreError
from tests import seeds
from tests.programs import source

REPOSITORY = Path(__file__).parents[2]


def folder_of(place: Path, files: dict[str, bytes]) -> Path:
    for path, content in files.items():
        (place / path).parent.mkdir(parents=True, exist_ok=True)
        (place / path).write_bytes(content)
    return place


@pytest.fixture
def root(tmp_path):
    return tmp_path / "artifacts"


@pytest.fixture
def store(root):
    return Store(root)


@pytest.fixture
def made(tmp_path):
    return folder_of(tmp_path / "made", {"train/a.txt": b"alpha", "train/b.txt": b"beta", "notes.json": b"{}"})


def child(script: str, *words: str) -> subprocess.Popen:
    environ = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    return subprocess.Popen([sys.executable, "-c", script, *words], env=environ, **pipes)


def test_a_published_artifact_is_found_complete_and_read_from_its_path(store, made, root):
    store.publish(made, "datasets/pydocs/text", "f1", {"lines": 2})
    assert store.artifacts() == [Artifact("datasets/pydocs/text", "f1", "", {"lines": 2})]
    place = store.path("datasets/pydocs/text", "f1")
    assert place == root / "by-fingerprint/text/f1"
    assert os.path.samefile(place / "train/b.txt", root / "datasets/pydocs/text/train/b.txt")  # no second copy
    assert (place / "train/b.txt").read_bytes() == b"beta"
    manifest = json.loads((place / "ARTIFACT.json").read_text())
    listed = {entry["path"]: (entry["size"], entry["sha256"]) for entry in manifest["files"]}
    assert listed["train/a.txt"] == (5, hashlib.sha256(b"alpha").hexdigest())
    assert set(listed) == {"train/a.txt", "train/b.txt", "notes.json"}


def test_a_new_store_is_empty_and_names_the_missing_artifact(store, root):
    assert store.artifacts() == []
    assert store.check("tokenizer").problem == "it is missing"
    with pytest.raises(StoreError, match="tokenizer in .*: it is missing"):
        store.path("tokenizer", "f1")
    assert not root.exists()


def test_a_different_fingerprint_is_refused_with_both_names(store, made):
    store.publish(made, "tokenizer", "f1", {})
    with pytest.raises(StoreError, match="the fingerprint is f1, but f2 is wanted"):
        store.path("tokenizer", "f2")


def test_publishing_again_replaces_all_old_files(store, made, tmp_path, root):
    store.publish(made, "tokenizer", "f1", {})
    store.publish(folder_of(tmp_path / "new", {"tokenizer.json": b"new"}), "tokenizer", "f2", {})
    assert store.artifacts() == [Artifact("tokenizer", "f2")]
    assert sorted(path.name for path in (root / "tokenizer").iterdir()) == ["ARTIFACT.json", "tokenizer.json"]
    assert [path.name for path in root.iterdir() if path.name.startswith((".tmp", ".trash"))] == []


def test_flat_files_are_at_the_root_beside_their_manifest(store, tmp_path, root):
    files = {"identity.jsonl": b"[]\n", "identity.heldout.jsonl": b"[]\n"}
    store.publish(folder_of(tmp_path / "one", files), "identity", "f1", {"n": 1}, flat=True)
    assert store.path("identity", "f1") == root / "by-fingerprint/identity/f1"
    assert (root / "identity.jsonl").read_bytes() == b"[]\n"
    assert (root / "identity.artifact.json").is_file()
    store.publish(folder_of(tmp_path / "two", {"identity.jsonl": b"[1]\n"}), "identity", "f2", {}, flat=True)
    assert store.artifacts() == [Artifact("identity", "f2")]
    assert (root / "identity.jsonl").read_bytes() == b"[1]\n"
    assert not (root / "identity.heldout.jsonl").exists()


def flip(path):
    content = bytearray(path.read_bytes())
    content[0] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (flip, "has changed since the publication"),
        (lambda path: path.write_bytes(b"a"), "has 1 bytes, but 5 bytes in the manifest"),
        (Path.unlink, "is missing"),
        (lambda path: (path.rename(path.with_name(".m")), path.symlink_to(path.with_name(".m"))), "symbolic"),
        (lambda path: (path.parent / "c.txt").write_text("c"), "is not in the manifest"),
        (lambda path: (path.parents[1] / "ARTIFACT.json").write_text("{"), "manifest cannot be used"),
    ],
)
@pytest.mark.parametrize("where", ["text", "by-fingerprint/text/f1"])
def test_damage_is_named_and_an_intact_copy_under_a_second_name_is_read(store, made, root, damage, words, where):
    store.publish(made, "text", "f1", {})
    assert [one.problem for one in store.artifacts()] == [""]
    damage(root / where / "train/a.txt")
    assert words in store.check(where).problem
    assert words in {one.name: one for some in store.list_all() for one in some}[where].problem
    if damage is flip or words.startswith("has 1 bytes"):  # two names of the same bytes
        with pytest.raises(StoreError, match=words):
            store.path("text", "f1")
    else:
        assert (store.path("text", "f1") / "train/a.txt").read_bytes() == b"alpha"
    store.publish(made, "text", "f1", {})  # again: repaired
    assert store.check("text").problem == "" and store.find("text", "f1").problem == ""


@pytest.mark.slow
def test_a_verified_file_is_not_read_again_before_its_stat_changes(store, made, root):
    store.publish(made, "text", "f1", {})
    remembered = root / ".verified.json"
    assert store.artifacts()[0].problem == "" and not remembered.exists()  # too young to be trusted
    known, deadline = {}, time.monotonic() + 20
    while len(known) < 3 and time.monotonic() < deadline:
        assert store.artifacts()[0].problem == ""
        known = json.loads(remembered.read_text()) if remembered.exists() else {}
    files = {"train/a.txt", "train/b.txt", "notes.json"}
    assert {one.removeprefix("by-fingerprint/text/f1/").removeprefix("text/") for one in known} == files
    for name in known:
        if name.endswith("notes.json"):
            known[name][-1] = "0" * 64  # the remembered result counts
    remembered.write_text(json.dumps(known))
    assert "has changed since the publication" in store.check("text").problem
    (root / "text/notes.json").write_bytes(b"{}")
    assert store.check("text").problem == ""
    flip(root / "text/train/a.txt")
    assert "a.txt has changed since the publication" in store.check("text").problem


@pytest.mark.parametrize("name", ["", "/etc", "../x", "a/../b", "a//b", ".hidden", "-flag", "a b", "a\n", "a/"])
def test_names_that_lead_outside_the_store_are_refused(store, made, name):
    with pytest.raises(StoreError, match="cannot name an artifact"):
        store.publish(made, name, "f1", {})
    with pytest.raises(StoreError, match="cannot name an artifact"):
        store.path(name, "f1")


def test_a_manifest_with_outside_files_is_damage(store, made, root):
    store.publish(made, "text", "f1", {})
    manifest = json.loads((root / "text/ARTIFACT.json").read_text())
    manifest["files"][0]["path"] = "../../secret"
    (root / "text/ARTIFACT.json").write_text(json.dumps(manifest))
    assert "entry '../../secret'" in store.artifacts()[0].problem


@pytest.mark.parametrize(("key", "value"), [("fingerprint", 7), ("about", [1])])
def test_a_manifest_with_values_of_wrong_types_is_damage(store, made, root, key, value):
    store.publish(made, "text", "f1", {})
    manifest = json.loads((root / "text/ARTIFACT.json").read_text())
    (root / "text/ARTIFACT.json").write_text(json.dumps({**manifest, key: value}))
    assert "of the wrong kind" in store.artifacts()[0].problem


def test_links_are_neither_published_nor_followed_out(store, made, root, tmp_path):
    (made / "link").symlink_to("/etc/passwd")
    with pytest.raises(StoreError, match="link is neither a file nor a folder"):
        store.publish(made, "text", "f1", {})
    (made / "link").unlink()
    root.mkdir()
    (tmp_path / "elsewhere").mkdir()
    (root / "datasets").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(StoreError, match="leads out of the store"):
        store.publish(made, "datasets/text", "f1", {})
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_a_store_with_an_unknown_protocol_is_a_usage_error():
    with pytest.raises(StoreError, match="foo") as refused:
        Store("foo://x")
    assert refused.value.exit_code == 2


def test_empty_and_nested_artifacts_are_not_published(store, made, tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(StoreError, match="holds no file"):
        store.publish(tmp_path / "empty", "text", "f1", {})
    with pytest.raises(StoreError, match="No such file"):
        store.publish(tmp_path / "absent", "text", "f1", {})
    store.publish(made, "data/text", "f1", {})
    for inner_or_outer in ("data", "data/text/more"):
        with pytest.raises(StoreError, match="an artifact cannot lie inside of a second artifact"):
            store.publish(made, inner_or_outer, "f1", {})
    with pytest.raises(StoreError, match="is not allowed at the root of the store"):
        store.publish(made, "flat", "f1", {}, flat=True)
    assert [one.name for one in store.artifacts()] == ["data/text"]


def test_foreign_files_are_set_aside(store, made, root):
    folder_of(root / "text", {"mine.txt": b"precious"})
    store.publish(made, "text", "f1", {})
    assert [path.read_bytes() for path in root.glob(".aside-*/mine.txt")] == [b"precious"]
    assert store.artifacts() == [Artifact("text", "f1")]


FULL = source("publish_on_full_disk")


@pytest.mark.process
def test_a_failed_publish_keeps_the_old_artifact_and_leaves_no_draft(store, made, tmp_path, root):
    store.publish(made, "text", "f1", {})
    folder_of(tmp_path / "large", {"a": b"small", "b": bytes(5000)})
    said, _ = child(FULL, str(root), str(tmp_path / "large")).communicate(timeout=30)
    assert b"publishing text to" in said and b"File too large" in said
    assert store.artifacts() == [Artifact("text", "f1")]
    assert not list(root.glob(".tmp-*"))


PUBLISH = source("publish_again")


@pytest.mark.process
@pytest.mark.parametrize("form", ["folder", "flat"])
def test_two_concurrent_publishers_leave_one_complete_artifact(store, tmp_path, root, form):
    writers = []
    for letter in "ab":
        content = {f"{number}.txt": letter.encode() * 1000 for number in range(8)}
        folder = folder_of(tmp_path / letter, content)
        writers.append(child(PUBLISH, str(folder), str(root), form, "6"))
    try:
        while any(writer.poll() is None for writer in writers):
            assert [one.problem for one in store.artifacts()] in ([], [""])
        assert [writer.wait() for writer in writers] == [0, 0]
    finally:
        for writer in writers:
            writer.kill()
            writer.communicate()
    (artifact,) = store.artifacts()
    place = store.path("thing", artifact.fingerprint)
    assert {path.read_bytes()[:1].decode() for path in place.glob("*.txt")} == {artifact.fingerprint[-1]}


@pytest.mark.process
@pytest.mark.parametrize("form", ["folder", "flat"])
def test_a_killed_writer_leaves_a_complete_artifact_and_its_leftovers_are_removed(tmp_path, root, form):
    content = {f"{number}.txt": b"a" * 1000 for number in range(20)}
    folder = folder_of(tmp_path / "a", content)
    seed = seeds.seed()
    chance = random.Random(seed)
    Store(root).publish(folder, "thing", "f-a", {}, flat=form == "flat")
    for _ in range(5):
        writer = child(PUBLISH, str(folder), str(root), form, "forever")
        try:
            assert writer.stdout.readline() == b"up\n"
            with pytest.raises(subprocess.TimeoutExpired):
                writer.wait(chance.uniform(0, 0.1))
        finally:
            writer.send_signal(signal.SIGKILL)
            writer.communicate()
        assert Store(root).artifacts() == [Artifact("thing", "f-a")]
        assert not list(root.glob(".tmp-*")) + list(root.glob(".trash-*"))


def test_the_next_reader_completes_a_writer_that_died_between_renames(store, made, tmp_path, root):
    store.publish(made, "data/text", "f1", {})
    (root / "data/text").rename(root / "data" / f".trash-{uuid.uuid4().hex}")
    other = Store(tmp_path / "other")
    other.publish(made, "data/text", "f2", {})
    (tmp_path / "other/data/text").rename(root / "data" / f".tmp-{uuid.uuid4().hex}")
    assert store.artifacts() == [Artifact("data/text", "f2")]
    assert os.listdir(root / "data") == ["text"]


def test_the_next_reader_completes_a_flat_writer_that_died_during_moves(store, tmp_path, root):
    made = folder_of(tmp_path / "flat", {"a.jsonl": b"a", "b.jsonl": b"b"})
    store.publish(made, "flat", "f1", {}, flat=True)
    draft = root / f".tmp-{uuid.uuid4().hex}"
    draft.mkdir()
    (root / "flat.artifact.json").rename(draft / "ARTIFACT.json")
    (root / "b.jsonl").rename(draft / "b.jsonl")
    assert store.artifacts() == [Artifact("flat", "f1")]
    assert not draft.exists()


@pytest.mark.process
def test_the_draft_of_a_living_writer_is_kept(store, made, root):
    store.publish(made, "text", "f1", {})
    draft = root / f".tmp-{uuid.uuid4().hex}"
    draft.mkdir()
    holder = child(
        "import fcntl, os, sys; fcntl.flock(os.open(sys.argv[1], 0), 2); print(1, flush=True); input()", str(draft)
    )
    try:
        assert holder.stdout.readline() == b"1\n"
        store.artifacts()
        assert draft.is_dir()
    finally:
        holder.kill()
        holder.communicate()
    store.artifacts()
    assert not draft.exists()


def test_a_remote_store_behaves_like_a_local_store(made, tmp_path, monkeypatch):
    monkeypatch.setenv("SLIPWAY_WORK", str(tmp_path / "work"))
    store = Store(f"memory://{uuid.uuid4().hex}")
    store.publish(made, "datasets/text", "f1", {"n": 1})
    store.publish(folder_of(tmp_path / "new", {"train/a.txt": b"new"}), "datasets/text", "f2", {})
    store.publish(folder_of(tmp_path / "flat", {"flat.jsonl": b"[]"}), "flat", "f3", {}, flat=True)
    assert store.artifacts() == [Artifact("datasets/text", "f2"), Artifact("flat", "f3")]
    assert store.check("datasets/text").problem == ""
    for work in ("work", "other"):  # the published path, and a path that needs a download
        monkeypatch.setenv("SLIPWAY_WORK", str(tmp_path / work))
        assert (store.path("datasets/text", "f2") / "train" / "a.txt").read_bytes() == b"new"
        assert (store.path("flat", "f3") / "flat.jsonl").read_bytes() == b"[]"


@pytest.mark.parametrize("kind", ["nonsense", "gcs", "sftp", "ftp", "S3", "az"])
def test_an_unknown_uri_scheme_is_refused_with_the_known_schemes(kind):
    with pytest.raises(StoreError, match=f"store {kind}://x/y: {kind}:// is not supported; a store is a folder, hf://"):
        Store(f"{kind}://x/y")


def test_an_artifact_without_a_fingerprint_path_cannot_get_a_name(store, made, root):
    """A note is stored under its own name: it is read there, and no second name can point to it."""
    store.write_note(made, "evals/x", "f1", {})
    assert store.path("evals/x", "f1") == root / "evals" / "x" and store.find("evals/y", "f1").problem
    with pytest.raises(StoreError, match="evals/y in .*: it is missing"):
        store.point_name("evals/y", "f1")


@pytest.mark.parametrize("damage", ["lost", "link", "manifest"])
def test_a_damaged_name_does_not_block_a_new_publication(store, made, root, tmp_path, damage):
    store.publish(folder_of(tmp_path / "old", {"x": b"old", "y": b"old"}), "tokenizer", "f1", {})
    path = root / "tokenizer" / ("ARTIFACT.json" if damage == "manifest" else "y")
    path.unlink()
    if damage == "link":
        path.symlink_to(root / "tokenizer" / "x")
    elif damage == "manifest":
        path.write_text("{")
    store.publish(made, "tokenizer", "f2", {})
    assert store.check("tokenizer") == Artifact("tokenizer", "f2")
    assert (store.path("tokenizer", "f1") / "x").read_bytes() == b"old"


def test_an_existing_name_of_the_artifact_is_kept(store, made, root):
    store.publish(made, "text", "f1", {})
    before = os.stat(root / "text").st_ino
    store.point_name("text", "f1")
    store.publish(made, "text", "f1", {})
    assert os.stat(root / "text").st_ino == before


def test_a_rewritten_note_is_read_again_also_from_a_copy(tmp_path):
    from store.artifacts.local_copies import Mirror
    from store.manifest import Manifest

    mirror = Mirror("s3://a/b")
    for content in (b"1", b"2"):
        folder = folder_of(tmp_path / content.decode(), {"eval.json": content})
        from store.manifest import FileEntry

        entry = FileEntry("eval.json", 1, hashlib.sha256(content).hexdigest())
        mirror.seed(folder, Manifest("evals/x", "f1", {}, (entry,), 1.0))
        assert (mirror.store.path("evals/x", "f1") / "eval.json").read_bytes() == content
