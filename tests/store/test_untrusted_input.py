"""Documents from outside: an error in a document is reported for this document, and affects no other document."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import example, given, settings

from store import catalogue, untrusted_input
from store.artifacts.artifacts import Store
from store.manifest import Manifest, StoreError
from store.run_sync.restore import read_acknowledged
from store.run_sync.run_folder import ACKNOWLEDGED, DamagedCheckpoint, ListedCheckpoint, RunFolder
from tests import hostile, seeds
from tests.programs import source

ROOT = Path(__file__).parents[2]
SHA256 = "44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a"
FILE = {"path": "model-rank00000.safetensors", "size": 2, "sha256": SHA256}
MANIFEST = {
    "schema": 1, "name": "bad", "fingerprint": "f1", "about": {"persona": "Bosun", "n": [1, {"a": 2}]},
    "files": [{**FILE, "version": ""}], "published_at": 1e9, "flat": False,
}  # fmt: skip
CHECKPOINT = {
    "schema": 1, "step": 5, "phase": "base", "run": "calm-ox-1", "files": [FILE], "metrics": {"loss": 1.5},
    "config": {"data": {}}, "timestamp": "2026-01-01T00:00:00+00:00",
}  # fmt: skip
MANY = settings(max_examples=seeds.examples(8, 300))


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """Return a store with one valid artifact, and a place for a foreign artifact."""
    root = tmp_path_factory.mktemp("store")
    made = root.parent / "made"
    made.mkdir(exist_ok=True)
    (made / "a.json").write_text("{}")
    Store(root).publish(made, "good", "f1", {})
    (root / "bad").mkdir()
    (root / "bad" / FILE["path"]).write_text("{}")
    return root


@MANY
@given(document=hostile.documents(MANIFEST))
@example(document=hostile.DEEP)
@example(document=hostile.NESTED)
def test_an_arbitrary_manifest_is_reported_as_damaged_and_hides_no_artifact(root, document):
    (root / "bad/ARTIFACT.json").write_bytes(document)
    found = {one.name: one for one in Store(root).artifacts()}
    assert found["good"].problem == "" and set(found) == {"good", "bad"}
    if not found["bad"].problem:
        json.dumps({"about": {"of": [found["bad"].about]}}, allow_nan=False).encode()
    assert Store(root).check("bad").problem == found["bad"].problem
    try:
        Store(root).manifest("bad")
    except StoreError as error:
        str(error).encode()


@MANY
@given(document=hostile.documents({"good/a.json": [2, 1, 1, 1, SHA256]}))
def test_an_arbitrary_record_of_verified_files_is_read_or_ignored(root, document):
    (root / ".verified.json").write_bytes(document)
    assert {one.name: one.problem for one in Store(root).artifacts()}["good"] == ""


@pytest.mark.process
@MANY
@given(document=hostile.documents(CHECKPOINT))
@example(document=json.dumps({**CHECKPOINT, "files": [{**FILE, "path": "x" * 300}]}).encode())  # no file name
def test_a_checkpoint_with_any_manifest_is_reported_as_damaged_and_hides_no_checkpoint(tmp_path, document):
    for step, content in ((5, document), (6, json.dumps({**CHECKPOINT, "step": 6}).encode())):
        for folder in ("runs/calm-ox-1/work/checkpoints/base", "here/base"):
            there = tmp_path / folder / f"step-{step:09d}"
            there.mkdir(parents=True, exist_ok=True)
            (there / "MANIFEST.json").write_bytes(content)
            (there / FILE["path"]).write_text("{}")
    for found in (catalogue.stored_checkpoints(str(tmp_path)), catalogue.local_checkpoints({"x": tmp_path / "here"})):
        assert [one.step for one in found] == [5, 6] and not found[1].trouble
        assert not catalogue.problem(found[1])
        if not found[0].trouble:
            assert all(type(one) in (int, float) for one in found[0].manifest.get("metrics", {}).values())
        catalogue.problem(found[0])
    try:
        checkpoint = RunFolder(str(tmp_path), "calm-ox-1").manifest("work/checkpoints/base/step-000000005")
        assert checkpoint.step == 5
    except DamagedCheckpoint:
        pass


@MANY
@given(document=hostile.documents({"work/checkpoints/base/step-000000005": 1.5}))
def test_an_arbitrary_list_of_acknowledged_checkpoints_is_read_or_refused(tmp_path, document):
    path = tmp_path / "runs/calm-ox-1" / ACKNOWLEDGED
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(document)
    try:
        assert all(type(at) is float for at in RunFolder(str(tmp_path), "calm-ox-1").verified_checkpoints().values())
    except StoreError as error:
        assert "remove the file" in str(error) or "bytes" in str(error)
    assert all(type(at) is float for at in read_acknowledged(tmp_path / "runs/calm-ox-1").values())


@MANY
@given(document=hostile.documents(MANIFEST))
def test_a_parsed_document_can_be_written_again(document):
    try:
        value = untrusted_input.parse(document)
    except untrusted_input.UnusableDocument as error:
        assert len(str(error)) < 500
    else:
        assert untrusted_input.parse(json.dumps(value, allow_nan=False)) == value


@pytest.mark.process
def test_a_hostile_document_is_refused_within_300_mb_of_memory():
    script = source("parse_hostile_documents")
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", ["ARTIFACT.json", FILE["path"]])
@pytest.mark.parametrize("kind", ["pipe", "folder", "link out", "link to itself", "socket"])
def test_an_irregular_file_is_damage_and_does_not_block(root, tmp_path, name, kind):
    shutil.copytree(root, tmp_path / "store", symlinks=True)
    path = tmp_path / "store/bad" / name
    path.parent.joinpath("ARTIFACT.json").write_text(json.dumps({**MANIFEST, "files": [{**FILE, "size": 0}]}))
    path.unlink()
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "socket":
        os.mknod(path, 0o140644)
    elif kind == "folder":
        path.mkdir()
    else:
        path.symlink_to("/etc/hostname" if kind == "link out" else path)
    found = {one.name: one.problem for one in Store(tmp_path / "store").artifacts()}
    assert found["good"] == "" and (found.get("bad") or (name, kind) == ("ARTIFACT.json", "folder"))
    assert Store(tmp_path / "store").check("bad").problem


def test_unprintable_names_are_shown_escaped(root, tmp_path):
    shutil.copytree(root, tmp_path / "store", symlinks=True)
    odd = os.fsencode(tmp_path / "store") + b"/x\xff\x1b[2J"
    os.mkdir(odd)
    Path(os.fsdecode(odd), "ARTIFACT.json").write_text("{}")
    Path(os.fsdecode(os.fsencode(tmp_path / "store/good") + b"/\xff")).touch()
    for one in Store(tmp_path / "store").artifacts():
        if one.name == "bad":  # the state after earlier tests
            continue
        assert f"{one.name}{one.problem}".isprintable() and f"{one.name}{one.problem}".encode() and one.problem


@pytest.mark.parametrize("path", ["/etc/hostname", "../x", "link/hostname", "a/../../x", "a\0b", "", "."])
def test_a_path_outside_its_folder_is_refused_for_any_links(tmp_path, path):
    (tmp_path / "in").mkdir()
    (tmp_path / "in/link").symlink_to("/etc")
    with pytest.raises(untrusted_input.UnusableDocument):
        untrusted_input.resolve_within(tmp_path / "in", path)


def test_a_manifest_of_flat_files_names_no_file_in_a_folder():
    for path in ("x/model.safetensors", ".lock", "other.artifact.json"):
        said = {**MANIFEST, "flat": True, "files": [{**FILE, "path": path}]}
        with pytest.raises(ValueError, match="flat"):
            Manifest.from_json(json.dumps(said).encode())


def test_documents_of_our_own_writers_are_read():
    assert ListedCheckpoint.parse(json.dumps(CHECKPOINT).encode(), "step-000000005").files[0].size == 2
    assert Manifest.from_json(Manifest.from_json(json.dumps(MANIFEST).encode()).to_json().encode()).name == "bad"
