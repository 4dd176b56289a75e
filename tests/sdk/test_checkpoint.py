"""slipway.checkpoint: saved whole or not at all, loaded from the newest that is whole, and the two decorators."""

import importlib.util
import json
import os
from pathlib import Path

import pytest
import torch

from store.run_sync.run_folder import ListedCheckpoint, check_files

SOURCE = Path(__file__).parents[2] / "sdk" / "slipway" / "checkpoint.py"
spec = importlib.util.spec_from_file_location("slipway_checkpoint", SOURCE)
checkpoint = importlib.util.module_from_spec(spec)
spec.loader.exec_module(checkpoint)


@pytest.fixture(autouse=True)
def plain(monkeypatch, tmp_path):
    monkeypatch.setitem(checkpoint.sys.modules, "torch", None)
    for name in ("RANK", "SKYPILOT_NODE_RANK"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("SLIPWAY_WORK", str(tmp_path))


def test_the_newest_are_kept_and_the_courier_can_read_them(tmp_path):
    saver = checkpoint.Saver("count", keep=3)
    assert saver.load_latest() is None
    for step in range(1, 9):
        assert saver.save({"sum": step}, step, metrics={"loss": 0.5}, model_type="Linear")
    assert saver.steps() == [6, 7, 8] and saver.load_latest() == ({"sum": 8}, 8)
    folder = tmp_path / "checkpoints" / "count" / "step-000000008"
    check_files(folder)
    assert ListedCheckpoint.of(folder).phase == "count"
    about = json.loads((folder / "MANIFEST.json").read_text())
    assert about["timestamp"].endswith("Z") and about["model_type"] == "Linear"
    assert {path.name for path in folder.parent.iterdir()} == {f"step-{step:09d}" for step in (6, 7, 8)}


def test_a_damaged_one_is_passed_over_and_none_whole_is_an_error(caplog):
    saver = checkpoint.Saver("count")
    for step in (30, 40):
        saver.save({"sum": step}, step)
    (saver.folder / "step-000000040" / "state.json").write_text("{")
    assert saver.load_latest() == ({"sum": 30}, 30)
    assert "checkpoint 40 unreadable" in caplog.text
    (saver.folder / "step-000000030" / "state.json").write_text("{")
    with pytest.raises(checkpoint.CheckpointError, match="remove it to begin again"):
        saver.load_latest()


def test_a_save_that_fails_leaves_nothing_and_is_tried_once_more(monkeypatch, caplog):
    saver, tries = checkpoint.Saver("count"), []

    def full(path):
        tries.append(path)
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(checkpoint, "_sync", full)
    assert saver.save({"sum": 1}, 1) is False
    assert len(tries) == 2 and saver.steps() == [] and list(saver.folder.iterdir()) == []
    monkeypatch.undo()
    with pytest.raises(ValueError, match="cannot be saved as JSON"):
        monkeypatch.setitem(checkpoint.sys.modules, "torch", None)
        checkpoint.Saver("count", save_dir=saver.folder).save({"x": object()}, 1)


def test_only_rank_0_saves(monkeypatch):
    monkeypatch.setenv("RANK", "1")
    saver = checkpoint.Saver("count")
    assert saver.save({"sum": 1}, 1) and saver.steps() == []


def test_the_decorators_save_what_is_returned_and_hand_over_what_was_found():
    calls = []

    @checkpoint.save_checkpoint(max_checkpoints=2, checkpoint_prefix="mine")
    def state(step=None, model=None):
        return {"at": step}

    @checkpoint.load_checkpoint(checkpoint_prefix="mine")
    def load(step, state=None):
        calls.append(step)
        if step == 3 and "poison" in calls:
            raise KeyError("layer")
        return step, state

    assert load(0) == (0, None) and state() == {"at": None}
    assert [state(1), state(2), state(step=3)] == [{"at": 1}, {"at": 2}, {"at": 3}]
    assert load(0) == (3, {"at": 3}) == load(step=0)
    calls.append("poison")
    assert load(0) == (2, {"at": 2})


def test_tensors_come_back_bit_for_bit(monkeypatch):
    monkeypatch.setitem(checkpoint.sys.modules, "torch", torch)
    weights = torch.randn(3, 3)
    saver = checkpoint.Saver("tensors")
    saver.save({"model": {"w": weights}, "step": 5}, 5)
    (found, step) = saver.load_latest()
    assert step == 5 and torch.equal(found["model"]["w"], weights)
    assert os.listdir(saver.folder / "step-000000005").count("state.pt") == 1
