"""Checkpoints: atomic saves; loads of the newest valid checkpoint; no silent fresh start; no damage by a full disk."""

import errno
import json
import os
import shutil
import subprocess
import threading
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from tests.needs import PRIVILEGE, needs
from tests.trainer.conftest import TINY, tiny
from trainer.checkpoints.checkpoint import MANIFEST, Checkpoint, Checkpoints, DiskFull, NonFinite, find_damage
from trainer.checkpoints.saving import ALIGNED, Arena, Saver
from trainer.config import CheckpointOptions
from trainer.errors import CheckpointError, Diverged, TrainerError
from trainer.loop import MAX_SKIPPED, Training
from trainer.model.decoder import Decoder, initialize
from trainer.objectives import Batch
from trainer.objectives.source import StepSource

pytestmark = pytest.mark.slow

EASY = CheckpointOptions(save_every=5, keep=3, reserve_bytes=0)
FACTS = {"run": "brave-otter-3", "phase": "base", "tokenizer_sha256": "ab", "vocab": TINY.vocab_size}


def random_batch(step: int) -> Batch:
    ids = np.random.default_rng([9, step]).integers(0, TINY.vocab_size, (4, 17))
    return {"ids": ids[:, :-1], "targets": ids[:, 1:]}


def training(folder: Path, keeping: CheckpointOptions = EASY, model: Decoder | None = None, **changes) -> Training:
    config = tiny(sequence_len=16, **changes)
    model = model or Decoder(config.model, getattr(torch, config.dtype) if config.dtype != "auto" else torch.float32)
    initialize(model, config.seed)
    return Training(
        model, config, StepSource(random_batch), Checkpoints(folder / "saved", keeping), FACTS, folder / "metrics"
    )


@pytest.fixture(scope="module")
def undisturbed_run(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], Checkpoint]:
    """Return the end of an undisturbed training of so many steps, trained for the first test."""
    made: dict[int, Checkpoint] = {}

    def of(steps: int) -> Checkpoint:
        if steps not in made:
            found = training(tmp_path_factory.mktemp("undisturbed"), steps=steps).run()
            assert found is not None
            made[steps] = found
        return made[steps]

    return of


class Stopped(Exception):
    pass


def stop_at(one: Training, step: int) -> None:
    """Run until the batch of `step` is requested, then fail."""

    def batch(number: int) -> Batch:
        if number == step:
            raise Stopped
        return random_batch(number)

    one.source = StepSource(batch)
    with pytest.raises(Stopped):
        one.run()


@pytest.mark.day_cases(2)
@pytest.mark.parametrize("changes", [{"dtype": "float32"}, {"dtype": "bfloat16"}])
@pytest.mark.parametrize("muon_lr", [0.0, 0.02])
def test_resumed_run_equals_an_undisturbed_run_in_every_bit(tmp_path, changes, muon_lr):
    changes = {**changes, "steps": 24, "optimizer": replace(tiny().optimizer, muon_lr=muon_lr)}
    whole = training(tmp_path / "a", **changes).run()
    for step in (3, 12, 13):
        stop_at(training(tmp_path / "b", **changes), step)
    parted = training(tmp_path / "b", **changes).run()
    for kind in ("model", "optimizer", "rng"):
        ours, theirs = whole.tensors(kind), parted.tensors(kind)
        assert ours.keys() == theirs.keys()
        assert all(torch.equal(ours[name], theirs[name]) for name in ours), kind
    curves = [(tmp_path / name / "metrics" / "metrics.jsonl").read_text().splitlines() for name in "ab"]
    figures = [[(json.loads(line)["step"], json.loads(line)["loss"]) for line in curve] for curve in curves]
    assert figures[0] == figures[1]
    assert [step for step, _ in figures[0]] == list(range(1, 25))


def test_manifest_has_every_field_and_only_the_newest_checkpoints_are_kept(tmp_path):
    final = training(tmp_path, steps=33).run()
    saved = tmp_path / "saved"
    assert [path.name for path in Checkpoints(saved, EASY).steps()] == [f"step-{n:09d}" for n in (25, 30, 33)]
    assert (saved / "LATEST").read_text().strip() == "step-000000033"
    assert not [path for path in saved.iterdir() if path.name.startswith((".tmp", ".trash", ".bad"))]
    assert {"schema", "run", "phase", "step", "tokenizer_sha256", "vocab", "config_hash", "data_cursor", "rng"} <= set(
        final.manifest
    )
    assert final.manifest["data_cursor"]["step"] == 33
    assert {"world": 1, "finite": True}.items() <= final.manifest.items()
    assert {file["path"] for file in final.manifest["files"]} | {MANIFEST} == set(os.listdir(final.folder))


def damage(folder: Path, how: str) -> None:
    path = folder / "optimizer-rank00000.safetensors"
    data = bytearray(path.read_bytes())
    if how == "truncated":
        path.write_bytes(data[:-100])
    elif how == "flipped":
        data[len(data) // 2] ^= 1
        path.write_bytes(data)
    elif how == "missing":
        path.unlink()
    elif how == "unmanifested":
        (folder / MANIFEST).unlink()
    elif how == "renamed":
        folder.rename(folder.with_name("step-000000099"))
    elif how == "garbled":
        (folder / MANIFEST).write_text("{")


@pytest.mark.day_cases(2)
@pytest.mark.parametrize("how", ["truncated", "flipped", "missing", "unmanifested", "renamed", "garbled"])
def test_damaged_newest_checkpoint_is_set_aside_and_the_previous_one_is_used(tmp_path, undisturbed_run, how):
    stop_at(training(tmp_path, steps=30), 19)
    damage(tmp_path / "saved" / "step-000000015", how)
    one = training(tmp_path, steps=30)
    stop_at(one, 10)  # The training continues there.
    assert [path.name[:9] for path in (tmp_path / "saved").glob(".bad-*")] == [".bad-step"]
    final = training(tmp_path, steps=30).run()
    ours, theirs = final.tensors("model"), undisturbed_run(30).tensors("model")
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


def test_checkpoints_without_a_valid_one_are_named_and_no_fresh_start_happens(tmp_path):
    stop_at(training(tmp_path, steps=30), 14)
    for folder in Checkpoints(tmp_path / "saved", EASY).steps():
        damage(folder, "flipped")
    for _ in range(2):  # The second time the damaged checkpoints are set aside already.
        with pytest.raises(
            CheckpointError, match=r"(?s)all checkpoints.*damaged.*step-000000010.*step-000000005"
        ) as seen:
            training(tmp_path, steps=30).run()
        assert seen.value.exit_code == 1


def test_different_configuration_does_not_continue_from_these_checkpoints(tmp_path):
    stop_at(training(tmp_path, steps=30), 14)
    with pytest.raises(CheckpointError, match="config_hash"):
        training(tmp_path, steps=31).run()


def test_non_finite_parameter_is_never_saved_and_an_existing_checkpoint_is_never_overwritten(tmp_path):
    some, good = Checkpoints(tmp_path, EASY), {"model": {"w": torch.ones(3)}}
    with pytest.raises(NonFinite, match="w is not finite"):
        some.save(1, {"model": {"w": torch.tensor([1.0, float("nan")])}}, {})
    assert os.listdir(tmp_path) == []
    first = some.save(2, good, {})
    stamp = (first.folder / MANIFEST).stat().st_mtime_ns
    assert some.save(2, {"model": {"w": torch.zeros(3)}}, {}).folder == first.folder
    assert (first.folder / MANIFEST).stat().st_mtime_ns == stamp
    damage_one = first.folder / "model-rank00000.safetensors"
    damage_one.write_bytes(b"")
    assert not find_damage(some.save(2, good, {}).folder)
    with pytest.raises(DiskFull):
        Checkpoints(tmp_path, CheckpointOptions(reserve_bytes=1 << 60)).save(3, good, {})


def test_run_that_the_disk_cannot_hold_ends_before_its_first_step(tmp_path, monkeypatch):
    one = training(tmp_path, steps=3, keeping=replace(EASY, reserve_bytes=1))
    size = 2 * sum(parameter.nbytes for parameter in one.model.parameters())  # the checkpoint has moments, too
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=2 * size))
    with pytest.raises(TrainerError, match=r"two checkpoints of .* need .*--disk-size"):
        one.run()
    assert one.step == 0


def test_leftovers_of_a_killed_writer_are_removed_and_a_second_writer_is_refused(tmp_path):
    some = Checkpoints(tmp_path, EASY)
    for name in (".tmp-000000005-abcd", ".trash-abcd"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "model-rank00000.safetensors").write_bytes(b"half")
    with some.locked():
        assert os.listdir(tmp_path) == ["LOCK"]
        with pytest.raises(CheckpointError, match="another trainer"), Checkpoints(tmp_path, EASY).locked():
            pass


class Spoilt:
    """A disk operation that fails with EIO at some calls of this thread and of its child threads."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, owner: object, name: str, bad: range) -> None:
        self.inner, self.bad, self.calls = getattr(owner, name), bad, 0
        # A thread left by an earlier test of this process writes to the disk as well.
        self.others = set(threading.enumerate()) - {threading.current_thread()}
        monkeypatch.setattr(owner, name, lambda *words, **more: self(*words, **more))

    def __call__(self, *words, **more):
        if threading.current_thread() in self.others:
            return self.inner(*words, **more)
        self.calls += 1
        if self.calls in self.bad:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return self.inner(*words, **more)


@pytest.mark.day_cases(2)
@pytest.mark.parametrize(
    ("owner", "name", "at"),
    [(os, "fsync", 1), (os, "fsync", 4), (os, "fsync", 5), (os, "write", 2), (Path, "rename", 1), (Path, "mkdir", 3)],
)
def test_save_that_fails_once_is_written_again_without_loss(
    tmp_path, undisturbed_run, monkeypatch, caplog, owner, name, at
):
    whole = undisturbed_run(40)
    one = training(tmp_path)
    spoilt = Spoilt(monkeypatch, owner, name, range(at, at + 1))
    final = one.run()
    assert spoilt.calls > at and "retrying the write" in caplog.text and "saving a checkpoint failed" not in caplog.text
    assert [path.name for path in one.checkpoints.steps()] == [f"step-{step:09d}" for step in (30, 35, 40)]
    assert not list((tmp_path / "saved").glob(".tmp-*"))
    assert hashes(final) == hashes(whole)


def test_persistently_failing_disk_costs_saves_and_the_training_continues(tmp_path, monkeypatch, caplog):
    one = training(tmp_path)
    Spoilt(monkeypatch, os, "fsync", range(1, 5))  # Both tries of the first two saves.
    assert one.run().step == 40
    assert sum("saving a checkpoint failed" in record.message for record in caplog.records) == 2
    assert not list((tmp_path / "saved").glob(".tmp-*"))


def hashes(one: Checkpoint) -> list[str]:
    return [file["sha256"] for file in one.manifest["files"]]


def test_save_keeps_the_values_of_its_start_while_training_continues(tmp_path):
    some, weight = Checkpoints(tmp_path, EASY), torch.ones(1_000_000)
    saver = Saver(some)
    for step in (1, 2):  # The second save reuses the copies of the first.
        saver.start(step, {"model": {"w": weight}}, {})
        weight += 1
        saver.wait()
        assert saver.collect() and not saver.collect()
        assert torch.equal(some.find_newest().tensors("model")["w"], torch.full((1_000_000,), float(step)))


def test_manifest_records_time_content_and_quality(tmp_path):
    began = datetime.now(timezone.utc).replace(microsecond=0)
    said = training(tmp_path, steps=10).run().manifest
    assert began <= datetime.fromisoformat(said["timestamp"]) <= datetime.now(timezone.utc)
    assert (said["model_type"], said["step"], said["config"]["steps"]) == ("Decoder", 10, 10)
    lines = [json.loads(line) for line in (tmp_path / "metrics" / "metrics.jsonl").read_text().splitlines()]
    assert said["metrics"] == {name: lines[-1][name] for name in ("loss", "grad_norm", "lr")}


def test_newest_two_uploaded_checkpoints_are_kept_at_any_step(tmp_path):
    elsewhere, good = tmp_path / "acknowledged.json", {"model": {"w": torch.ones(3)}}
    some = Checkpoints(tmp_path / "base-f00d", EASY, elsewhere)
    for step in range(1, 10):
        some.save(step, good, {})
        if step in (2, 3, 4):
            names = [f"work/checkpoints/base-f00d/step-{one:09d}" for one in range(1, step + 1)]
            elsewhere.write_text(json.dumps(dict.fromkeys([*names, "work/checkpoints/other/step-000000001"], 1.0)))
    assert [int(path.name[5:]) for path in some.steps()] == [3, 4, 7, 8, 9]


class Poisoned(Decoder):
    """A decoder with a NaN loss at some calls."""

    calls = 0
    bad: range = range(0)

    def loss(self, *given):
        self.calls += 1
        return super().loss(*given) * (float("nan") if self.calls in self.bad else 1.0)


def poisoned(bad: range) -> Poisoned:
    model = Poisoned(TINY)
    model.bad = bad
    return model


def test_few_non_finite_steps_are_skipped_without_effect(tmp_path):
    final = training(tmp_path, model=poisoned(range(7, 7 + MAX_SKIPPED)), micro_rows=4).run()
    lines = (tmp_path / "metrics" / "metrics.jsonl").read_text().splitlines()
    assert len(lines) == 40 - MAX_SKIPPED
    assert all(bool(torch.isfinite(one).all()) for one in final.tensors("model").values())


def test_many_non_finite_steps_roll_back_once_and_continue(tmp_path):
    healthy = training(tmp_path / "a", micro_rows=4).run()
    cured = training(tmp_path / "b", model=poisoned(range(12, 13 + MAX_SKIPPED)), micro_rows=4).run()
    ours, theirs = healthy.tensors("model"), cured.tensors("model")
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


@pytest.mark.parametrize("start", [2, 12], ids=["before the first save", "after it"])
def test_persistently_non_finite_loss_stops_the_run(tmp_path, start):
    with pytest.raises(Diverged, match="Lower the learning rate"):
        training(tmp_path, model=poisoned(range(start, 1000)), micro_rows=4).run()


@pytest.fixture
def small_disk(tmp_path):
    """Yield a tmpfs with room for two checkpoints of the tiny model and half of a third."""
    needs(PRIVILEGE)
    folder = tmp_path / "disk"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=750k", "tmpfs", folder], check=True)
    yield folder
    subprocess.run(["umount", folder], check=True)


@pytest.mark.process
def test_full_disk_costs_saves_but_no_checkpoint_and_ends_cleanly(tmp_path, small_disk, caplog):
    keeping = replace(EASY, keep=4)
    one = training(tmp_path, keeping)
    one.checkpoints = Checkpoints(small_disk / "saved", keeping)
    with pytest.raises(TrainerError, match=r"3 saves in a row failed.*No space left"):
        one.run()
    saved = sorted(path.name for path in (small_disk / "saved").iterdir() if path.is_dir())
    assert saved == ["step-000000005", "step-000000010"]  # Whole, without a draft beside them.
    assert 25 <= one.step <= 30  # Training continued over two failed saves, and during the third failing save.
    assert sum("saving a checkpoint failed" in record.message for record in caplog.records) == 3
    assert one.checkpoints.find_newest().step == 10
    subprocess.run(["mount", "-o", "remount,size=8m", small_disk], check=True)
    again = training(tmp_path, keeping)
    again.checkpoints = one.checkpoints
    assert again.run().step == 40
    shutil.rmtree(small_disk / "saved")


def test_rest_of_a_power_of_two_allocation_holds_the_next_tensors():
    """PyTorch takes that much for pinned memory, regardless of the request: an embedding of 2.5 GB would cost 4."""
    arena = Arena(1 << 10, is_pinned=False)
    large, small = arena.allocate(2500), arena.allocate(1000)
    assert small.untyped_storage().data_ptr() == large.untyped_storage().data_ptr()
    assert small.data_ptr() - large.data_ptr() == 2500 + -2500 % ALIGNED
    assert (len(large), len(small), large.untyped_storage().nbytes()) == (2500, 1000, 4096)
    assert arena.allocate(1000).untyped_storage().nbytes() == 1 << 10


def test_start_names_its_checkpoint_or_reports_none(tmp_path, caplog):
    caplog.set_level("INFO")
    stop_at(training(tmp_path, steps=30), 14)
    assert f"No checkpoints found in {tmp_path / 'saved'}: starting at step 0" in caplog.text
    stop_at(training(tmp_path, steps=30), 16)
    assert "Successfully loaded checkpoint from step 10" in caplog.text
