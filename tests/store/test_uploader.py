"""Results of a run in the store are complete after any end of the uploader, and can be fetched from the store."""

import dataclasses
import hashlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fsspec import register_implementation
from fsspec.implementations.memory import MemoryFileSystem

from infra.agent.state import is_held
from store import uploader as uploader_module
from store.artifacts.artifacts import Store
from store.manifest import StoreError
from store.masking import Mask
from store.run_sync.mounts import MountFolder
from store.run_sync.restore import Fetch
from store.run_sync.run_folder import MANIFEST, RunFolder, by_folder
from store.uploader import Config, Uploader
from tests import seeds
from tests.faults.trial import rounds
from tests.infra.agent.world import until
from tests.needs import PRIVILEGE, needs

ROOT = Path(__file__).parents[2]
RUN = "brave-otter-1"
FOLDER = "work/checkpoints/base-f00d"


class Pod:
    """The folder of a pod, and the processes of an uploader."""

    def __init__(self, root: Path, store: Path | str) -> None:
        self.root, self.store = root, str(store)
        self.started: list[subprocess.Popen[str]] = []
        (root / "work").mkdir(parents=True)
        (root / "logs").mkdir()
        self.write("state/marks/fetch.json", "{}")  # as if the pod had begun
        self.configure()

    def configure(self, **more: Any) -> None:
        self.write("config.json", json.dumps({"store": self.store, "run": RUN, "makings": {}, "every_s": 0.1, **more}))

    def write(self, name: str, text: str) -> None:
        (self.root / name).parent.mkdir(parents=True, exist_ok=True)
        draft = self.root / "draft"
        draft.write_text(text)
        draft.rename(self.root / name)

    def save(self, step: int, folder: str = FOLDER, size: int = 1000) -> str:
        """Save a checkpoint as the trainer does; return the name."""
        name = f"{folder}/step-{step:09d}"
        draft = self.root / folder / ".tmp-save"
        draft.mkdir(parents=True)
        files = []
        for file in ("model.safetensors", "optimizer.safetensors"):
            content = random.Random(f"{name}/{file}").randbytes(size)
            (draft / file).write_bytes(content)
            files.append({"path": file, "size": size, "sha256": hashlib.sha256(content).hexdigest()})
        phase = folder.rpartition("/")[2].partition("-")[0]
        (draft / MANIFEST).write_text(json.dumps({"phase": phase, "step": step, "files": files}))
        draft.rename(self.root / name)
        return name

    def begin(self, verb: str = "carry") -> subprocess.Popen[str]:
        words = [sys.executable, "-m", "store.uploader", verb, "--config", str(self.root / "config.json")]
        environ = {**os.environ, "SLIPWAY_WORK": str(self.root / "work")}
        environ |= {"SLIPWAY_RECORDS": str(self.root / "records.jsonl")}
        one = subprocess.Popen(
            words, cwd=ROOT, env=environ, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        self.started.append(one)
        return one

    def end(self, one: subprocess.Popen[str], code: int = 0) -> str:
        """Ask the uploader to end as soon as it works; check the exit `code`, and return the output."""
        until(lambda: is_held(self.root / "state" / "uploader.lock") or one.poll() is not None, "it is at work")
        one.send_signal(signal.SIGTERM)
        return left(one, code)

    def acknowledged(self) -> dict[str, float]:
        path = self.root / "state" / "acknowledged.json"
        return json.loads(path.read_text()) if path.exists() else {}

    @property
    def folder(self) -> RunFolder:
        return RunFolder(self.store, RUN)

    @property
    def stored(self) -> Path:
        return Path(self.store, "runs", RUN)

    def log(self, name: str) -> str:
        """Return a log at the usual place: at the top of the store."""
        return Path(self.store, "logs", RUN, name).read_text()

    def stored_checkpoints(self) -> list[str]:
        """Return the checkpoints in the store, before and after our look; each must verify."""
        problems = {name: self.folder.problem(name) for names in self.listed().values() for name in names}
        # Not removed meanwhile.
        still = [name for names in self.listed().values() for name in names if name in problems]
        assert [(name, problems[name]) for name in still if problems[name]] == []
        return still

    def listed(self) -> dict[str, list[str]]:
        return by_folder(self.folder.file_sizes())


def left(one: subprocess.Popen[str], code: int = 0) -> str:
    said, _ = one.communicate(timeout=60)
    assert one.returncode == code, said
    return said


@pytest.fixture
def pods(tmp_path: Path) -> Iterator[Any]:
    """Return a function that makes pods of a run, over a store."""
    made: list[Pod] = []

    def make(name: str, store: Path | str = tmp_path / "store") -> Pod:
        made.append(Pod(tmp_path / name, store))
        return made[-1]

    yield make
    for pod in made:
        for one in pod.started:
            if one.poll() is None:
                one.kill()
                one.communicate()


def uploader(pod: Pod) -> Uploader:
    """Return an uploader within this process."""
    return Uploader(pod.root, Config(store=pod.store, run=RUN, makings={}), print)


def fetch(pod: Pod, **makings: dict[str, str]) -> dict[str, Any]:
    """Return the result of a fetch within this process."""
    records: list[dict[str, Any]] = []
    Fetch(pod.root, pod.folder, makings, lambda kind, **values: records.append({"kind": kind, **values}), print).run()
    return records[-1]


@pytest.mark.process
def test_results_are_in_the_store_during_the_run_and_the_newest_two_checkpoints_are_kept(pods):
    pod = pods("one")
    one = pod.begin()
    for step in (5, 10, 15):
        pod.write("work/runs/base/metrics.jsonl", "".join(f'{{"step": {n + 1}}}\n' for n in range(step)))
        name = pod.save(step)
        until(lambda name=name: name in pod.acknowledged(), "it is acknowledged")
        assert pod.stored.joinpath("work/runs/base/metrics.jsonl").read_text().count("\n") == step
    until(lambda: len(pod.stored_checkpoints()) == 2, "the oldest has gone")
    pod.write("state/marks/text.json", json.dumps({"digest": "d", "result": {}}))
    pod.write("logs/base.log", "hello\n")
    until(lambda: {"state/marks/text.json", "logs/base.log"} <= pod.acknowledged().keys(), "mark and log")
    assert pod.stored_checkpoints() == [f"{FOLDER}/step-{step:09d}" for step in (15, 10)]
    pod.write("logs/base.log", "hello\nworld\n")
    pod.write("state/ending.json", json.dumps({"state": "succeeded", "ends_at_monotonic_s": time.monotonic() + 30}))
    assert left(one).endswith("all files are in the store\n")  # the uploader has seen the ending by itself
    assert pod.log("base.log") == "hello\nworld\n"
    assert json.loads((pod.stored / "state/ending.json").read_text())["state"] == "succeeded"
    assert set(json.loads((pod.stored / "state/acknowledged.json").read_text())) == set(pod.stored_checkpoints())
    assert json.loads((pod.root / "state/waiting.json").read_text()) == {"names": []}


@pytest.mark.process
def test_a_second_pod_begins_at_the_end_of_the_first(pods, tmp_path):
    first, second = pods("one"), pods("two")
    made = tmp_path / "made"
    made.mkdir()
    (made / "a.txt").write_text("a")
    Store(first.store).publish(made, "text", "f1", {})
    first.save(5)
    first.save(10)
    first.write("work/runs/base/metrics.jsonl", "".join(f'{{"step": {n}}}\n' for n in range(1, 14)) + '{"st')
    first.write(
        "work/runs/base/samples.jsonl", "".join(f'{{"step": {n}, "text": "x"}}\n' for n in (4, 4, 8, 8, 12, 12))
    )
    for step in ("text", "lost", "other"):
        first.write(f"state/marks/{step}.json", json.dumps({"digest": step, "result": {}}))
    first.write("logs/base.log", "one\n")
    first.write("logs/base.times", "1.0 4\n")
    first.write("logs/agent.log", "first agent\n")
    first.end(first.begin())
    second.write("logs/agent.log", "second agent\n")
    makings = {
        "text": {"name": "text", "store": first.store, "fingerprint": "f1"},
        "other": {"name": "text", "store": first.store, "fingerprint": "f2"},
        "lost": {"name": "nowhere", "store": first.store, "fingerprint": "f1"},
    }
    for _ in range(2):  # repeated work is recorded once
        brought = fetch(second, **makings)
        assert (second.root / FOLDER / "step-000000010" / "model.safetensors").read_bytes() == (
            first.root / FOLDER / "step-000000010" / "model.safetensors"
        ).read_bytes()
        assert [path.name for path in (second.root / FOLDER).iterdir()] == ["step-000000010"]
        assert {path.stem for path in (second.root / "state/marks").iterdir()} == {"fetch", "text"}
        assert (second.root / "work/runs/base/metrics.jsonl").read_text().count("\n") == 10
        assert (second.root / "work/runs/base/samples.jsonl").read_text().count("\n") == 4  # up to the checkpoint
    assert brought["kind"] == "result" and brought["damaged"] == []
    with (second.root / "logs/base.log").open("a") as log:
        log.write("two\n")
    second.end(second.begin())
    assert second.log("base.log") == "one\ntwo\n"
    assert second.log("agent.log") == "first agent\nsecond agent\n"


@pytest.mark.process
def test_a_first_start_reports_an_empty_store(pods):
    pod = pods("one")
    assert fetch(pod)["checkpoints"] == []
    one = pod.begin("fetch")
    assert "the store holds no files of this run yet" in left(one)
    (record,) = [json.loads(line) for line in (pod.root / "records.jsonl").read_text().splitlines()][-1:]
    assert record["kind"] == "result" and record["checkpoints"] == []
    assert not Path(pod.store).exists()


@pytest.mark.process
@pytest.mark.parametrize("damage", ["flip", "truncate", "remove", "manifest", "hostile"])
def test_a_damaged_checkpoint_is_named_and_the_previous_checkpoint_is_fetched(pods, damage):
    first, second, third = pods("one"), pods("two"), pods("three")
    for step in (5, 10):
        first.save(step)
        uploader(first).upload_changes()
    damage_file(first.stored / FOLDER / "step-000000010", damage)
    brought = fetch(second)
    assert brought["checkpoints"] == [f"{FOLDER}/step-000000005"]
    assert len(brought["damaged"]) == 1 and "step-000000010" in brought["damaged"][0]
    damage_file(first.stored / FOLDER / "step-000000005", damage)
    with pytest.raises(StoreError, match=f"no checkpoint of {FOLDER} in .* is whole: .*step-000000010: "):
        fetch(third)
    assert "is whole" in left(third.begin("fetch"), code=1)
    shutil.rmtree(first.stored / FOLDER)
    with pytest.raises(StoreError, match="are missing now"):
        fetch(third)
    assert not list(third.root.glob("work/checkpoints/*/step-*"))
    assert not (first.stored.parent / "escaped").exists() and not list(third.root.parent.glob("escaped"))
    # Results of the second pod replace the damaged files.
    second.save(10)
    uploader(second).upload_changes()
    assert f"{FOLDER}/step-000000010" in second.stored_checkpoints()
    assert fetch(third)["checkpoints"] == [f"{FOLDER}/step-000000010"]


def damage_file(folder: Path, damage: str) -> None:
    model, manifest = folder / "model.safetensors", folder / MANIFEST
    content = bytearray(model.read_bytes())
    if damage == "flip":
        content[len(content) // 2] ^= 1
        model.write_bytes(content)
    elif damage == "truncate":
        model.write_bytes(content[:-1])
    elif damage == "remove":
        model.unlink()
    elif damage == "manifest":
        manifest.write_bytes(manifest.read_bytes()[:-9])
    else:
        said = json.loads(manifest.read_text())
        said["files"][0]["path"] = "../../../../../escaped"
        manifest.write_text(json.dumps(said))


@pytest.mark.process
def test_a_locally_damaged_checkpoint_is_skipped_and_the_previous_checkpoint_is_uploaded(pods):
    pod = pods("one")
    pod.save(5)
    name = pod.save(10)
    damage_file(pod.root / name, "flip")
    said = pod.end(pod.begin(), code=1)
    assert f"not in the store: {name}" in said and "has other content than was written" in said
    assert pod.stored_checkpoints() == [f"{FOLDER}/step-000000005"]
    assert name not in pod.acknowledged()


@pytest.mark.process
def test_a_failing_store_is_retried_without_an_early_acknowledgement(pods, tmp_path):
    pod = pods("one")
    (tmp_path / "store").write_text("a file is in the way")
    one = pod.begin()
    name = pod.save(5)
    pod.write("logs/base.log", "hello\n")
    log = tmp_path / "one" / "state" / "waiting.json"
    until(log.exists, "it waits")
    assert json.loads(log.read_text())["names"] == [name]
    until(lambda: "Error" in json.loads(log.read_text()).get("problem", ""), "it says why")
    assert one.poll() is None and pod.acknowledged() == {}
    said = pod.end(one, code=1)
    assert "not carried, retrying until the upload succeeds: " in said and f"not in the store: {name}" in said
    two = pod.begin()
    (tmp_path / "store").unlink()
    until(lambda: name in pod.acknowledged(), "it is acknowledged")
    pod.end(two)
    assert pod.stored_checkpoints() == [name] and json.loads(log.read_text()) == {"names": []}


@pytest.mark.process
def test_a_full_store_keeps_its_content_and_continues_when_there_is_room(pods, tmp_path):
    needs(PRIVILEGE)
    store = tmp_path / "small"
    store.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", store], check=True)
    try:
        pod = pods("one", store)
        one = pod.begin()
        small, large = pod.save(5), ""
        until(lambda: small in pod.acknowledged(), "the small one is there")
        large = pod.save(10, size=800_000)
        until(lambda: json.loads((pod.root / "state/waiting.json").read_text())["names"] == [large], "it waits")
        said = pod.end(one, code=1)
        assert "No space left" in said and pod.stored_checkpoints() == [small] and large not in pod.acknowledged()
        assert shutil.disk_usage(store).free > 150_000  # unfinished uploads do not block
        subprocess.run(["mount", "-o", "remount,size=4m", store], check=True)
        pod.end(pod.begin())
        assert pod.stored_checkpoints() == [large, small]
    finally:
        subprocess.run(["umount", store], check=True)


@pytest.mark.process
@rounds(5, 200)
def test_a_killed_uploader_leaves_only_verified_checkpoints(pods, rounds):
    seed = seeds.seed()
    chance, pod = random.Random(seed), pods("one")
    began = time.monotonic()
    one = pod.begin()
    name = pod.save(1, size=4_000_000)
    until((pod.stored / name).exists, "it is being brought there")
    seen = time.monotonic()
    until(lambda: name in pod.acknowledged(), "the first is there")
    whole_s, upload_s = time.monotonic() - began, time.monotonic() - seen
    one.kill()
    one.communicate()
    for number in range(2, 2 + rounds):
        name = pod.save(number, size=4_000_000)
        one = pod.begin()
        if chance.random() < 0.2:
            time.sleep(chance.uniform(0, 1.2) * whole_s)
        else:
            until((pod.stored / name).exists, "it is being brought there")
            time.sleep(chance.uniform(0, 1.2) * upload_s)
        one.kill()
        one.communicate()
        shown = pod.stored_checkpoints()
        assert shown, "what was acknowledged has gone"
        known = [one for one in pod.acknowledged() if one.startswith(FOLDER)]
        assert set(known) <= set(shown) and (name not in known or shown[0] == name)
        for old in sorted((pod.root / FOLDER).glob("step-*"))[:-2]:
            shutil.rmtree(old)
    pod.end(pod.begin())
    assert pod.stored_checkpoints()[0] == name and len(pod.stored_checkpoints()) == 2
    other = pods("two")
    assert fetch(other)["checkpoints"] == [name]


@pytest.mark.process
def test_a_pod_has_one_uploader(pods):
    pod = pods("one")
    one = pod.begin()
    until((pod.root / "state" / "waiting.json").exists, "it is at work")
    assert "a second uploader is already uploading for this pod" in left(pod.begin(), code=1)
    pod.end(one)


@pytest.mark.process
def test_only_final_reports_are_uploaded_before_the_fetch_is_done(pods):
    first, second = pods("one"), pods("two")
    first.write("logs/base.log", "of the first\n")
    first.end(first.begin())
    (second.root / "state/marks/fetch.json").unlink()
    second.write("logs/base.log", "of the second\n")
    second.write("logs/error-20261121T000000Z.log", "why\n")
    second.write("state/ending.json", json.dumps({"state": "failed"}))
    left(second.begin())
    assert first.log("base.log") == "of the first\n"
    assert first.log("error-20261121T000000Z.log") == "why\n"
    assert json.loads((first.stored / "state/ending.json").read_text())["state"] == "failed"


def test_an_object_store_gets_the_same_content(pods):
    """An object store has no renames and no fsync; this test uses an in-memory store."""
    store = f"memory://{random.randrange(1 << 40)}"
    first, second = pods("one", store), pods("two", store)
    one = uploader(first)
    first.write("logs/base.log", "hello\n")
    for step in (5, 10, 15):
        first.save(step)
        one.upload_changes()
    one.upload_changes(last=True)
    assert first.stored_checkpoints() == [f"{FOLDER}/step-{step:09d}" for step in (15, 10)]
    assert first.folder.read("logs/base.log") == b"hello\n"
    assert fetch(second)["checkpoints"] == [f"{FOLDER}/step-000000015"]


class Lossy(MemoryFileSystem):
    """An object store with faults in the next few writes or listings."""

    protocol = "memory"
    flips = 0
    omits = 0

    def put_file(self, lpath, rpath, **more):
        super().put_file(lpath, rpath, **more)
        self._flip(rpath)

    def _flip(self, path):
        if Lossy.flips:
            Lossy.flips -= 1
            content = bytearray(self.cat_file(path))
            content[len(content) // 2] ^= 1
            super().pipe_file(path, bytes(content))

    def find(self, path, **more):
        found = super().find(path, **more)
        if Lossy.omits and any(name.endswith(MANIFEST) for name in found):
            Lossy.omits -= 1
            found = {name: info for name, info in found.items() if not name.endswith("optimizer.safetensors")}
        return found


@pytest.mark.parametrize(
    ("flips", "omits", "why"), [(1, 0, "reads back with other bytes"), (0, 1, "the store does not list")]
)
def test_an_unreadable_or_unlisted_upload_is_not_acknowledged(pods, flips, omits, why, request):
    register_implementation("memory", Lossy, clobber=True)
    request.addfinalizer(lambda: register_implementation("memory", MemoryFileSystem, clobber=True))
    pod = pods("one", f"memory://{random.randrange(1 << 40)}")
    one, name = uploader(pod), pod.save(5)
    Lossy.flips, Lossy.omits = flips, omits
    with pytest.raises(StoreError, match=why):
        one.upload_changes()
    assert (Lossy.flips, Lossy.omits) == (0, 0)
    assert name not in pod.acknowledged() and pod.stored_checkpoints() == []
    one.upload_changes()
    assert name in pod.acknowledged() and pod.stored_checkpoints() == [name]


@pytest.mark.process
def test_complete_parts_of_an_interrupted_upload_are_reused(pods):
    pod = pods("one")
    name = pod.save(5)
    for file in ("model.safetensors", "optimizer.safetensors"):
        (pod.stored / name).mkdir(parents=True, exist_ok=True)
        shutil.copyfile(pod.root / name / file, pod.stored / name / file)
    content = bytearray((pod.stored / name / "model.safetensors").read_bytes())
    content[7] ^= 1  # with the right length
    (pod.stored / name / "model.safetensors").write_bytes(content)
    before = (pod.stored / name / "optimizer.safetensors").stat().st_ctime_ns
    pod.end(pod.begin())
    assert pod.stored_checkpoints() == [name]
    assert (pod.stored / name / "optimizer.safetensors").stat().st_ctime_ns == before


def test_only_the_beginning_of_an_endless_sparse_log_is_uploaded(pods, monkeypatch):
    monkeypatch.setattr(uploader_module, "MOST_LOG_BYTES", 100_000)
    pod = pods("first")
    pod.write("logs/base.log", "the beginning\n")
    os.truncate(pod.root / "logs" / "base.log", 10**12)
    uploader(pod).upload_changes(last=True)
    found = RunFolder(pod.store, RUN).read("logs/base.log")
    assert len(found) == 100_000 and found.startswith(b"the beginning\n")


@pytest.mark.process
def test_secrets_are_masked_in_uploads_and_offsets_stay(pods, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "canary-8b1d-77")
    pod = pods("one")
    pod.configure(secrets=["HF_TOKEN", "NOT_THERE"])
    text = "with canary-8b1d-77 and " + b"canary-8b1d-77".hex() + "\nend\n"
    pod.write("logs/base.log", text)
    pod.end(pod.begin())
    there = pod.log("base.log")
    assert there == "with " + "*" * 14 + " and " + "*" * 28 + "\nend\n"


def test_a_secret_is_found_across_any_piece_boundary():
    text = b"a secret-1234 b secret-1234secret-1234 c"
    wanted = text.replace(b"secret-1234", b"*" * 11)
    for size in range(1, len(text) + 1):
        pieces = [text[start : start + size] for start in range(0, len(text), size)]
        assert b"".join(Mask(["secret-1234", ""])(pieces)) == wanted
    assert b"".join(Mask([])([b"a", b"b"])) == b"ab"


def test_a_folder_of_a_bucket_is_mounted_at_its_own_address(tmp_path):
    shelf = tmp_path / "bucket" / "shelf"
    (shelf / "deep").mkdir(parents=True)
    (shelf / "a.txt").write_text("a")
    (shelf / "deep" / "b.txt").write_text("b")
    mount = MountFolder("/no/store", "books-1", tmp_path / "pod", str(shelf))
    assert mount.download_missing(lambda done, total: None) == 2 and mount.pending() == []
    (mount.here / "deep" / "c.txt").write_text("c")
    (mount.here / "a.txt").unlink()
    assert mount.upload_changes(last=True) == []
    assert {one.name for one in shelf.rglob("*.txt")} == {"b.txt", "c.txt"}
    one = MountFolder("/no/store", "words-2", tmp_path / "pod", str(shelf / "deep" / "b.txt"))
    assert one.download_missing(lambda done, total: None) == 1 and (one.here / "b.txt").read_text() == "b"
    (one.here / "b.txt").write_text("changed")
    assert one.upload_changes(last=True) == [] and (shelf / "deep" / "b.txt").read_text() == "changed"


def test_a_copied_folder_of_a_bucket_is_not_uploaded(tmp_path):
    config = Config(store="", run="a", makings={}, mounts=[["a", "/x", "still"], ["b", "/y", ""]])
    assert [(one.name, one.uri) for one in config.mount_folders(tmp_path)] == [("a", "/x"), ("b", "/y")]
    config = dataclasses.replace(config, store=str(tmp_path / "store"))
    assert [one.name for one in Uploader(tmp_path, config, lambda _: None).mounts] == ["b"]


def test_a_mounted_folder_is_uploaded_and_available_to_the_next_run(tmp_path):
    first = MountFolder(str(tmp_path / "store"), "data", tmp_path / "first")
    assert first.download_missing(lambda done, total: None) == 0
    (first.here / "deep").mkdir()
    (first.here / "deep" / "a.bin").write_bytes(b"a" * 1000)
    assert first.pending() == ["deep/a.bin"]
    assert first.upload_changes() == ["deep/a.bin"]  # may still be written
    assert first.upload_changes() == [] and first.pending() == []
    (first.here / "marker").write_text("whole")
    assert first.upload_changes(last=True) == []
    second = MountFolder(str(tmp_path / "store"), "data", tmp_path / "second")
    assert second.download_missing(lambda done, total: None) == 2
    assert (second.here / "deep" / "a.bin").read_bytes() == b"a" * 1000 and second.pending() == []
    (second.here / "marker").unlink()
    assert second.pending() == ["marker"] and second.upload_changes() == []
    third = MountFolder(str(tmp_path / "store"), "data", tmp_path / "third")
    assert third.download_missing(lambda done, total: None) == 1
    shutil.rmtree(third.here)  # a cleanup of the pod, no deletion by the job
    assert third.pending() == third.upload_changes(last=True) == []
    fourth = MountFolder(str(tmp_path / "store"), "data", tmp_path / "fourth")
    assert fourth.download_missing(lambda done, total: None) == 1
