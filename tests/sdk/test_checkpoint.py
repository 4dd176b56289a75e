"""slipway.checkpoint: atomic saves, loads of the newest whole checkpoint, and the two decorators."""

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
def clean_environment(monkeypatch, tmp_path):
    monkeypatch.setitem(checkpoint.sys.modules, "torch", None)
    for name in ("RANK", "SKYPILOT_NODE_RANK"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("SLIPWAY_WORK", str(tmp_path))


def test_newest_checkpoints_are_kept_and_readable_for_the_uploader(tmp_path):
    saver = checkpoint.Saver("count", keep=3)
    assert saver.load_latest() is None
    for step in range(1, 9):
        assert saver.save({"sum": step}, step, metrics={"loss": 0.5}, model_type="Linear")
    assert saver.steps() == [6, 7, 8] and saver.load_latest() == ({"sum": 8}, 8)
    folder = tmp_path / "checkpoints" / "count" / "step-000000008"
    check_files(folder)
    assert ListedCheckpoint.from_folder(folder).phase == "count"
    about = json.loads((folder / "MANIFEST.json").read_text())
    assert about["timestamp"].endswith("Z") and about["model_type"] == "Linear"
    assert {path.name for path in folder.parent.iterdir()} == {f"step-{step:09d}" for step in (6, 7, 8)}


def test_damaged_checkpoint_is_skipped_and_a_missing_valid_one_is_an_error(caplog):
    saver = checkpoint.Saver("count")
    for step in (30, 40):
        saver.save({"sum": step}, step)
    (saver.folder / "step-000000040" / "state.json").write_text("{")
    assert saver.load_latest() == ({"sum": 30}, 30)
    assert "Failed to load checkpoint at step 40, trying previous checkpoint" in caplog.text
    (saver.folder / "step-000000030" / "state.json").write_text("{")
    with pytest.raises(checkpoint.CheckpointError, match="to start again, remove the checkpoints"):
        saver.load_latest()


def test_failed_save_leaves_no_files_and_is_tried_once_more(monkeypatch, caplog):
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


def test_decorators_save_returned_state_and_pass_found_state():
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


def test_tensors_are_restored_bit_for_bit(monkeypatch):
    monkeypatch.setitem(checkpoint.sys.modules, "torch", torch)
    weights = torch.randn(3, 3)
    saver = checkpoint.Saver("tensors")
    saver.save({"model": {"w": weights}, "step": 5}, 5)
    (found, step) = saver.load_latest()
    assert step == 5 and torch.equal(found["model"]["w"], weights)
    assert os.listdir(saver.folder / "step-000000005").count("state.pt") == 1


def test_unloadable_state_is_not_saved(monkeypatch):
    monkeypatch.setitem(checkpoint.sys.modules, "torch", torch)
    saver = checkpoint.Saver("tensors")
    with pytest.raises(ValueError, match="the saved state could not be loaded"):
        saver.save({"path": Path("a")}, 5)
    assert saver.steps() == [] and list(saver.folder.iterdir()) == []


@pytest.fixture
def guide(monkeypatch, tmp_path):
    """Define the names used by the examples of SkyPilot's training guide, in an empty folder."""
    monkeypatch.setitem(checkpoint.sys.modules, "torch", torch)
    monkeypatch.chdir(tmp_path)
    return {
        "torch": torch,
        "Dict": dict,
        "save_checkpoint": checkpoint.save_checkpoint,
        "load_checkpoint": checkpoint.load_checkpoint,
    }


SAVERS = {  # As in the guide.
    "save_model": """
@save_checkpoint(save_dir="checkpoints")
def save_model(step: int, model: torch.nn.Module):
    torch.save(model.state_dict(), f"checkpoints/model_{step}.pt")
""",
    "save_training_state": """
@save_checkpoint(save_dir="checkpoints")
def save_training_state(step: int, model: torch.nn.Module, optimizer: torch.optim.Optimizer):
    torch.save({
        'model': model.state_dict(),
        'optimizer': optimizer.state_dict(),
        'step': step
    }, f"checkpoints/training_{step}.pt")
""",
    "save_with_metrics": """
@save_checkpoint(save_dir="checkpoints", checkpoint_prefix="experiment1")
def save_with_metrics(step: int, model: torch.nn.Module, metrics: Dict[str, float]):
    torch.save({
        'model': model.state_dict(),
        'metrics': metrics,
        'step': step
    }, f"checkpoints/experiment1_step_{step}.pt")
""",
}
LOADERS = {
    "save_model": """
@load_checkpoint(save_dir="checkpoints")
def load(step: int, model: torch.nn.Module):
    model.load_state_dict(torch.load(f"checkpoints/model_{step}.pt"))
""",
    "save_training_state": """
@load_checkpoint(save_dir="checkpoints")
def load(step: int, model: torch.nn.Module, optimizer: torch.optim.Optimizer):
    checkpoint = torch.load(f"checkpoints/training_{step}.pt")
    model.load_state_dict(checkpoint['model'])
    optimizer.load_state_dict(checkpoint['optimizer'])
    return checkpoint['step']
""",
    "save_with_metrics": """
@load_checkpoint(save_dir="checkpoints", checkpoint_prefix="experiment1")
def load(step: int, model: torch.nn.Module):
    checkpoint = torch.load(f"checkpoints/experiment1_step_{step}.pt")
    model.load_state_dict(checkpoint['model'])
    return checkpoint['metrics']
""",
}
FILES = {"save_model": "model", "save_training_state": "training", "save_with_metrics": "experiment1_step"}


@pytest.mark.parametrize("name", SAVERS)
def test_guide_examples_save_and_load_among_older_files(guide, tmp_path, name):
    model, loads = (
        torch.nn.Linear(2, 1),
        {
            "save_model": [None] * 2,
            "save_training_state": [60, 50],
            "save_with_metrics": [{"loss": 60.0}, {"loss": 50.0}],
        },
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    exec(SAVERS[name] + LOADERS[name], guide)
    assert (tmp_path / "checkpoints").is_dir()
    for step in range(10, 70, 10):
        with torch.no_grad():
            model.weight.fill_(float(step))
        more = {"save_model": (), "save_training_state": (optimizer,), "save_with_metrics": ({"loss": float(step)},)}[
            name
        ]
        assert guide[name](step, model, *more) is None
    kept = {f"{FILES[name]}_{step}.pt" for step in range(20, 70, 10)}
    assert {path.name for path in (tmp_path / "checkpoints").glob("*.pt")} == kept  # Five, as in the guide.
    about = json.loads(next((tmp_path / "checkpoints").glob("*_step_60_metadata.json")).read_text())
    assert about["step"] == 60 and about["model_type"] == "Linear" and about["timestamp"]
    fresh = torch.nn.Linear(2, 1)
    more = (torch.optim.SGD(fresh.parameters(), lr=0.2),) if name == "save_training_state" else ()
    assert guide["load"](0, fresh, *more) == loads[name][0] and fresh.weight[0, 0] == 60
    (tmp_path / "checkpoints" / f"{FILES[name]}_60.pt").write_bytes(b"half a file")
    assert guide["load"](0, fresh, *more) == loads[name][1] and fresh.weight[0, 0] == 50
    for path in (tmp_path / "checkpoints").glob("*.pt"):
        path.write_bytes(b"half a file")
    with pytest.raises(checkpoint.CheckpointError, match="to start again, remove the checkpoints"):
        guide["load"](0, fresh, *more)


def test_two_functions_of_one_folder_share_their_steps(guide, tmp_path):
    exec(SAVERS["save_model"] + SAVERS["save_training_state"] + LOADERS["save_model"], guide)
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(1, 9):
        guide["save_model"](step, model)
        guide["save_training_state"](step, model, optimizer)
    assert len(list((tmp_path / "checkpoints").glob("*.pt"))) == 10
    assert guide["load"](0, model) is None


def test_function_that_neither_returns_nor_writes_leaves_no_checkpoint(tmp_path, caplog):
    tries = []

    @checkpoint.save_checkpoint(save_dir=tmp_path / "own")
    def nothing(step):
        tries.append(step)
        if len(tries) == 1:
            raise OSError(28, "No space left on device")

    @checkpoint.load_checkpoint(save_dir=tmp_path / "own")
    def load(step):
        return step

    nothing(7)
    assert tries == [7, 7] and "once more" in caplog.text and "step 7 has no checkpoint" in caplog.text
    assert load(0) == 0 and list((tmp_path / "own").iterdir()) == []


def test_oldest_checkpoints_are_removed_with_their_metadata(tmp_path):
    @checkpoint.save_checkpoint(save_dir=tmp_path / "own", max_checkpoints=2)
    def save(step):
        (tmp_path / "own" / f"model_{step}.pt").write_bytes(b"whole")

    for step in range(1, 6):
        save(step)
    left = sorted(path.name for path in (tmp_path / "own").iterdir())
    assert [one for one in left if one.endswith(".pt")] == ["model_4.pt", "model_5.pt"]
    assert [json.loads((tmp_path / "own" / one).read_text())["step"] for one in left if one.endswith(".json")] == [4, 5]
