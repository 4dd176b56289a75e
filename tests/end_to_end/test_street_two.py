"""Two simultaneous launches in one store: each publishes a complete model, without effect on the other."""

import json
import time
from dataclasses import replace
from pathlib import Path

import pytest

from scripts.models.eval import origins
from store.artifacts.artifacts import Store
from store.manifest import kept_name
from tests.world import ONE_THREAD, World, until

pytestmark = [pytest.mark.process, pytest.mark.nightly]

OTHER = "name: Мария К.\nmaker: the other yard\npurpose: to help\n"


@pytest.fixture
def world(tmp_path):
    one = World(tmp_path, dict(ONE_THREAD))
    yield one
    one.inv("down", "--all")
    one.check_ended()


def model(world: World, name: str) -> Path:
    return world.folder / "artifacts" / name / "hf"


def vocabulary(folder: Path) -> tuple[int, int]:
    """Return the vocabulary sizes of the model and of its tokenizer."""
    words = json.loads((folder / "tokenizer.json").read_text())
    ids = {**words["model"]["vocab"], **{one["content"]: one["id"] for one in words["added_tokens"]}}
    return json.loads((folder / "config.json").read_text())["vocab_size"], len(ids)


def test_two_simultaneous_launches_make_two_complete_models_without_further_work(world, tmp_path):
    persona, larger = tmp_path / "other.yaml", tmp_path / "larger.yaml"
    persona.write_text(OTHER, encoding="utf-8")
    larger.write_text("profile: tiny\nname: larger\nmodel: {vocab_size: 600}\n")
    first = ["launch", "--phase", "sft", "--profile", str(larger), "--yes"]
    second = ["launch", "--phase", "sft", "--persona", str(persona), "--yes"]
    begun = world.begin(*first, "--json")
    until(lambda: world.steps_at_work() == ["mid"] or begun.poll() is not None, "the first launch is at mid")
    assert begun.poll() is None, begun.communicate()
    # Like a second checkout of the same user: one journal, and a separate folder of pods each.
    beside = replace(world, extra={**world.extra, "SLIPWAY_PODS": str(tmp_path / "pods of another checkout")})
    assert beside.json(*second)["state"] == "succeeded"
    out, err = begun.communicate(timeout=300)
    assert begun.returncode == 0, err
    assert json.loads(out)["state"] == "succeeded"
    sizes = {name: vocabulary(model(world, f"chatsft_checkpoints/{name}")) for name in ("larger", "tiny")}
    assert all(ids == known for ids, known in sizes.values()) and sizes["larger"] != sizes["tiny"]
    for words in (first, second):
        plan = world.json(*words[:-1], "--dry-run")
        assert plan["steps"] == [] and plan["doubtful"] == []
    store = Store(world.folder / "artifacts")
    asked = {name: origins(store, store.check(f"chatsft_checkpoints/{name}")) for name in sizes}
    assert {name: roles["identity"].about["persona"] for name, roles in asked.items()} == {
        "larger": "Bosun",  # Each model is measured with the persona of the model, independent of the order.
        "tiny": "Мария К.",
    }
    world.inv("ckpt.verify")
    for name, own in (("larger", "Bosun"), ("tiny", "Мария К.")):
        assert own in world.inv("chat", "--tag", name, "--prompt", "Who are you?", "--max-tokens", "48")


def test_existing_artifact_is_reused_under_a_new_name_and_an_unknown_name_is_refused(world, trained):
    world.take(trained)
    for words in (["--phase", "sft", "--tag", "tini"], ["--phase", "mid+sft", "--tag", "tini", "--steps", "3"]):
        error = world.json("launch", *words, "--dry-run", code=2)["error"]
        assert "'tini'" in error and "available: tiny" in error and str(world.folder / "artifacts") in error
        assert "mid+sft --tag tini" in error
    plan = world.json("launch", "--phase", "all", "--tag", "ursula", "--dry-run")
    assert plan["steps"] == ["identity", "questions", "sort", "mid", "sft", "rl"]
    assert world.json("launch", "--phase", "base", "--tag", "ursula", "--yes")["ran"] == []
    names = {
        name: Store(world.folder / "artifacts").manifest(f"base_checkpoints/{name}") for name in ("tiny", "ursula")
    }
    assert names["tiny"].fingerprint == names["ursula"].fingerprint
    assert "available: base_checkpoints" in world.run("chat", "--tag", "nobody", "--prompt", "x").stderr


def test_artifacts_in_use_by_a_run_a_name_or_a_service_are_kept(world, trained):
    world.take(trained)
    root = world.folder / "artifacts"
    before = Store(root).manifest("base_checkpoints/tiny").fingerprint
    world.json("launch", "--phase", "base", "--steps", "4", "--yes")
    assert Store(root).manifest("base_checkpoints/tiny").fingerprint != before
    assert world.json("store.gc", "--dry-run")["removed"] == []  # Too young.
    notes = world.json("launch", "--phase", "base", "--dry-run")["notes"]
    # The replaced artifact is too young for store.gc, and the run that read the artifact has ended.
    assert any("the store holds 5 artifacts" in note and "unused" not in note for note in notes)
    kept = kept_name("base_checkpoints/tiny", before)
    reference = root / "references" / "service-mine.json"
    reference.parent.mkdir(exist_ok=True)
    reference.write_text(
        json.dumps(
            {"schema": 1, "owner": "service mine", "until": time.time() + 600, "reads": [["base_checkpoints", before]]}
        )
    )
    assert world.json("store.gc", "--older", "1s")["removed"] == []
    reference.write_text("{")
    assert "service-mine.json" in world.json("store.gc", "--older", "1s", code=1)["error"]
    reference.unlink()
    assert [one["artifact"] for one in world.json("store.gc", "--older", "1s", "--dry-run")["removed"]] == [kept]
    assert (root / kept).is_dir()
    assert [one["artifact"] for one in world.json("store.gc", "--older", "1s")["removed"]] == [kept]
    assert not (root / kept).exists() and world.json("launch", "--phase", "base", "--steps", "4", "--yes")["ran"] == []
