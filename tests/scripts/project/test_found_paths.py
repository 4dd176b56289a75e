"""`inv config --config`, and a key saved by runpodctl."""

from pathlib import Path

import pytest

from flows.installation import doctor, first_keys
from infra.settings import Settings
from tests.world import World


@pytest.mark.process
@pytest.mark.pack("pipeline")
def test_existing_files_named_by_a_file_are_marked(tmp_path):
    (tmp_path / "talk.jsonl").write_text("{}\n")
    (tmp_path / "none.jsonl").write_text("")
    (tmp_path / "run.yaml").write_text(
        f"persona: {tmp_path}/who.yaml\nidentity: {tmp_path}/talk.jsonl\nsource: hf://us/set\n"
        f"phases: {{sft: {{mixture: [{tmp_path}/none.jsonl]}}}}\n"
    )
    world = World(tmp_path, {"SLIPWAY_WORKSPACE": str(tmp_path / "ws"), "RUN_EXPERIMENT": "x"})
    found = {one["name"]: one["found"] for one in world.json("config", "--config", str(tmp_path / "run.yaml"))}
    assert found == {
        "config": True,
        "persona": False,
        "identity": True,
        "phases.sft.mixture": False,
        "train shards": False,
        "val shards": False,
        "tokenizer": False,
    }
    shown = world.inv("config", "--config", str(tmp_path / "run.yaml"))
    assert f"empty    {tmp_path}/none.jsonl" in shown and f"missing  {tmp_path}/who.yaml" in shown
    world.inv("config", "--config", "nonsense", code=2)


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("config.toml", 'apiurl = "https://api.runpod.io/graphql"\napikey = "rpa_CANARY91"\n'),
        ("config.toml", "apiKey='rpa_CANARY91'"),
        ("../.runpod.yaml", "apiKey: rpa_CANARY91\n"),
    ],
)
def test_key_saved_by_runpodctl_is_found_but_not_used_by_itself(tmp_path, monkeypatch, file, text):
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / ".runpod").mkdir()
    (tmp_path / ".runpod" / file).write_text(text)
    assert first_keys.saved("runpod")[0] == "rpa_CANARY91" and first_keys.saved("lium") == ("", "")
    settings = Settings.load(Path(tmp_path), environ={"HOME": str(tmp_path)})
    assert settings.runpod_api_key == "" and settings.provider == "local"
    told = doctor._vendor("runpod", settings)
    assert told.state == "off" and "to use the key: inv init runpod" in told.detail and "CANARY" not in told.detail
