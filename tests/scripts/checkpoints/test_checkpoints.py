"""`inv ckpt.*`: lists, contents, verification, and copies between stores."""

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from invoke import Exit

import tasks
from infra.errors import UsageError
from scripts.checkpoints import lookup
from store.artifacts.artifacts import Store
from store.backends.backend import open_place
from store.run_sync.run_folder import RunFolder
from tests.store import conftest as stores
from tests.world import World

s3_server, s3, hub, no_keys = stores.s3_server, stores.s3, stores.hub, stores.no_keys
RUN = "brave-otter-3"


def save(folder: Path, step: int, phase: str = "base") -> Path:
    """Write a checkpoint like the trainer's."""
    target = folder / f"step-{step:09d}"
    target.mkdir(parents=True)
    content = f"weights of {step}".encode() * 50
    (target / "model.safetensors").write_bytes(content)
    entry = {"path": "model.safetensors", "size": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    said = {"phase": phase, "step": step, "files": [entry], "timestamp": f"2026-11-21T10:00:{step:02d}+00:00"}
    said |= {"model_type": "Decoder", "metrics": {"loss": 2.5}, "config": {"steps": 40}, "tokenizer_sha256": "ab"}
    (target / "MANIFEST.json").write_text(json.dumps(said))
    return target


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Write a store with a published checkpoint, a tokenizer, flat conversations, and the remains of a run."""
    store = tmp_path / "artifacts"
    monkeypatch.setenv("SLIPWAY_STORE", str(store))
    monkeypatch.setenv("SLIPWAY_PODS", str(tmp_path / "pods"))
    monkeypatch.setattr(lookup, "ROOT", tmp_path / "checkout")
    save(tmp_path / "made", 40)
    (tmp_path / "made" / "hf").mkdir()
    (tmp_path / "made" / "hf" / "config.json").write_text("{}")
    Store(store).publish(tmp_path / "made", "base_checkpoints/smoke", "f1", {"loss": 2.5})
    (tmp_path / "flat").mkdir()
    (tmp_path / "flat" / "identity_conversations.jsonl").write_text("[]\n")
    Store(store).publish(tmp_path / "flat", "identity_conversations", "f2", {}, flat=True)
    for step in (10, 20):
        folder = RunFolder(str(store), RUN)
        folder.put_checkpoint(save(tmp_path / "run", step), f"work/checkpoints/base-f00d/step-{step:09d}")
    save(tmp_path / "pods" / "calm-fox-1" / "work" / "checkpoints" / "base-beef", 30)
    yield tmp_path


def run(name: str, **given: Any) -> None:
    command = tasks.namespace[f"ckpt.{name}"]
    command.work(command.record(**given))


def refusal(capsys: pytest.CaptureFixture[str], name: str, **given: Any) -> Any:
    capsys.readouterr()
    run(name, **{"json": True, **given})
    return json.loads(capsys.readouterr().out)


def test_list_shows_kind_step_size_and_time(home, capsys):
    rows = refusal(capsys, "list")
    assert [(row["name"], row["kind"], row["phase"], row["step"]) for row in rows] == [
        ("base_checkpoints/smoke", "final", "base", 40),
        (f"{RUN}/base-f00d/step-000000010", "run", "base", 10),
        (f"{RUN}/base-f00d/step-000000020", "run", "base", 20),
        ("calm-fox-1/base-beef/step-000000030", "here", "base", 30),
    ]
    assert all(row["bytes"] > 600 and row["saved_at"].startswith("2026-11-21T10:00") for row in rows)
    assert len(refusal(capsys, "list", job="otter")) == 2
    run("list", from_="", job="", json=False)
    out = capsys.readouterr().out
    assert "base_checkpoints/smoke" in out and "2.5000" in out and "2026-11-21T10:00:40" in out


def test_checkpoint_is_found_by_the_start_or_the_end_of_its_name(home, capsys):
    shown = refusal(capsys, "show", model="step-000000020")
    assert (shown["step"], shown["manifest"]["model_type"], shown["manifest"]["metrics"]) == (
        20,
        "Decoder",
        {"loss": 2.5},
    )
    run("show", model="base_ch", from_="", json=False)
    out = capsys.readouterr().out
    assert "tokenizer_sha256" in out and "steps 40" in out and "file model.safetensors" in out


@pytest.mark.parametrize(
    ("name", "given", "words"),
    [
        ("show", {"model": ""}, "name of a checkpoint is missing. List the names: inv ckpt.list"),
        ("show", {"model": "base_checkpoints/smok3"}, "did you mean base_checkpoints/smoke"),
        ("show", {"model": "smoek"}, "did you mean base_checkpoints/smoke"),
        ("verify", {"model": "smoek"}, "did you mean base_checkpoints/smoke"),
        ("pull", {"to": "x", "model": "smoek"}, "did you mean base_checkpoints/smoke"),
        ("push", {"to": "elsewhere", "models": ["smoek"]}, "did you mean base_checkpoints/smoke"),
        ("show", {"model": RUN}, "matches several checkpoints: .*step-000000010, .*step-000000020"),
        ("verify", {"model": "zzz"}, "no checkpoint 'zzz'"),
        ("pull", {"model": "base_checkpoints/smoke"}, "--to DIR is missing"),
        ("pull", {"to": "x"}, "name of a checkpoint.*--latest"),
        ("pull", {"to": "x", "model": "a", "latest": True}, "give the name of a checkpoint"),
        ("push", {}, "--to is missing"),
        ("push", {"to": "elsewhere", "models": ["tokeniser"]}, "no artifact 'tokeniser'"),
        ("init", {"to": ""}, "--to is missing"),
    ],
)
def test_invalid_words_are_refused_in_one_line_with_the_command_to_use(home, capsys, name, given, words):
    with pytest.raises(UsageError, match=words) as seen:
        refusal(capsys, name, **given)
    assert "\n" not in str(seen.value)


def test_damage_is_found_in_every_file_and_exits_with_5(home, capsys):
    assert [row["problem"] for row in refusal(capsys, "verify")] == ["", "", "", ""]
    there = home / "artifacts" / "runs" / RUN / "work/checkpoints/base-f00d/step-000000020/model.safetensors"
    here = home / "pods" / "calm-fox-1" / "work" / "checkpoints/base-beef/step-000000030/model.safetensors"
    final = home / "artifacts" / "base_checkpoints/smoke/step-000000040/model.safetensors"
    for number, path in enumerate((there, here, final), 1):
        path.write_bytes(b"x" + path.read_bytes()[1:])
        with pytest.raises(Exit, match="damaged: .*A resumed run skips damaged checkpoints") as seen:
            run("verify", model="", from_="", json=True)
        rows = json.loads(capsys.readouterr().out)
        assert seen.value.code == 5 and len(rows) == 4
        assert sum(bool(row["problem"]) for row in rows) == number


@pytest.mark.day_cases(1)
@pytest.mark.process
@pytest.mark.parametrize("kind", ["folder", "s3", "hf"])
def test_artifacts_are_copied_to_a_second_store_and_back(home, capsys, kind, request, monkeypatch):
    if kind == "folder":
        uri = str(home / "elsewhere")
    elif kind == "s3":
        uri = request.getfixturevalue("s3").bucket()
    else:
        request.getfixturevalue("hub")
        uri = "hf://us/kept/in/here"
    commands = {"folder": "mkdir -p", "s3": "aws s3 mb s3://bucket", "hf": "hf repo create us/kept"}
    assert refusal(capsys, "init", to=uri, dry_run=True)["command"].startswith(commands[kind])
    google = refusal(capsys, "init", to="gs://bucket/x", dry_run=True)
    assert (google["made"], google["command"]) == (None, "gcloud storage buckets create gs://bucket")
    assert refusal(capsys, "init", to=uri)["made"] is True and refusal(capsys, "init", to=uri)["made"] is False
    names = ["base_checkpoints/smoke", "identity_conversations"]
    assert refusal(capsys, "push", to=uri)["pushed"] == names
    assert refusal(capsys, "push", to=uri)["pushed"] == []
    place = open_place(uri)
    assert {"base_checkpoints/smoke/hf/config.json", "identity_conversations.jsonl"} <= place.listing().keys()
    assert [row["name"] for row in refusal(capsys, "list", from_=uri)] == ["base_checkpoints/smoke"]
    assert refusal(capsys, "verify", from_=uri)[0]["problem"] == ""
    monkeypatch.setenv("XDG_CACHE_HOME", str(home / "another"))
    pulled = refusal(capsys, "pull", from_=uri, latest=True, to=str(home / "here"))
    folder = Path(pulled["folder"])
    assert folder == home / "here" / "base_checkpoints" / "smoke"
    made = home / "made" / "step-000000040" / "model.safetensors"
    assert (folder / "step-000000040" / "model.safetensors").read_bytes() == made.read_bytes()
    with pytest.raises(UsageError, match="already exists"):
        run("pull", model="", from_=uri, latest=True, to=str(home / "here"), json=True)


def test_phase_name_means_its_model_as_for_chat_and_serve(home, capsys):
    assert refusal(capsys, "push", to=str(home / "elsewhere"), models=("base",))["pushed"] == ["base_checkpoints/smoke"]
    with pytest.raises(UsageError, match="no model 'sft' in .*base_checkpoints/smoke"):
        refusal(capsys, "push", to=str(home / "elsewhere"), models=("sft",))


@pytest.mark.process
@pytest.mark.needs("sshd", "ssh-keygen")
def test_rehearsal_has_separate_checkpoints(home, tmp_path):
    world = World(tmp_path / "user", {"SLIPWAY_STORE": str(home / "artifacts"), "SLIPWAY_PODS": str(home / "pods")})
    assert "base_checkpoints/smoke" in [one["name"] for one in world.json("ckpt.list")]
    world.json("offers", "--rehearse")  # The flag starts a rehearsal.
    try:
        assert world.json("ckpt.list", "--rehearse") == []
    finally:
        world.inv("rehearse", "--stop")


def test_remains_of_a_run_are_pulled_as_a_folder(home, capsys):
    pulled = refusal(capsys, "pull", model="step-000000020", to=str(home / "here"))
    folder = home / "here" / "step-000000020"
    assert Path(pulled["folder"]) == folder
    assert sorted(path.name for path in folder.iterdir()) == ["MANIFEST.json", "model.safetensors"]


@pytest.mark.process
def test_commands_exit_with_a_message_and_the_right_code(home, tmp_path):
    world = World(tmp_path, {"SLIPWAY_STORE": str(home / "artifacts"), "SLIPWAY_PODS": str(home / "pods")})
    shown = world.json("ckpt.show", "step-000000020", "--from", str(home / "artifacts"))
    assert shown["step"] == 20
    failed = world.json("ckpt.list", "--from", "hf://us", code=2)
    assert "expected hf://user/repo" in failed["error"] and failed["exit_code"] == 2
