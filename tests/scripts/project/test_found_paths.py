"""`inv config --config`, `inv doctor --lint`, and a key that runpodctl has saved."""

import re
from pathlib import Path

import pytest

from flows.installation import doctor, first_keys
from infra.errors import UsageError
from infra.settings import Settings
from tests.world import World


@pytest.mark.process
@pytest.mark.pack("pipeline")
def test_of_the_files_that_a_file_names_it_is_said_which_are_there(tmp_path):
    (tmp_path / "talk.jsonl").write_text("{}\n")
    (tmp_path / "none.jsonl").write_text("")
    (tmp_path / "run.yaml").write_text(
        f"persona: {tmp_path}/who.yaml\nidentity: {tmp_path}/talk.jsonl\nsource: hf://us/set\n"
        f"phases: {{sft: {{mixture: [{tmp_path}/none.jsonl]}}}}\n"
    )
    world = World(tmp_path, {"SLIPWAY_WORKSPACE": str(tmp_path / "ws"), "RUN_EXPERIMENT": "x"})
    found = {one["name"]: one["found"] for one in world.json("config", "--config", str(tmp_path / "run.yaml"))}
    assert found == {
        "config": True, "persona": False, "identity": True, "phases.sft.mixture": False, "train shards": False,
        "val shards": False, "tokenizer": False,
    }  # fmt: skip
    shown = world.inv("config", "--config", str(tmp_path / "run.yaml"))
    assert f"empty    {tmp_path}/none.jsonl" in shown and f"missing  {tmp_path}/who.yaml" in shown
    world.inv("config", "--config", "nonsense", code=2)


@pytest.mark.process
def test_a_job_file_shows_its_variables_which_stand_in_its_paths(tmp_path):
    world, file = World(tmp_path), "examples/jobs/dlm_train.yaml"
    rows = world.json("config", "--config", file)
    assert {one["name"]: one["value"] for one in rows if "value" in one} == {
        "envs.MODEL": "qwen3_0_6b", "envs.INIT": "hf://Qwen/Qwen3-0.6B", "envs.TOKENS": "1000000000",
        "envs.BLOCK_SIZE": "32", "envs.BATCH_SIZE": "4", "envs.GRAD_ACCUM": "16",
    }  # fmt: skip
    assert [(one["name"], one["found"]) for one in rows if "path" in one] == [("config", True)]
    shown = world.inv("config", "--config", file)
    assert "envs.TOKENS      value  1000000000\n" in shown and "missing" not in shown and "$INIT" not in shown
    assert "missing" not in world.inv("config", "--config", "examples/jobs/train.yaml"), "`hub` is no folder"
    own = tmp_path / "job.yaml"
    own.write_text(
        f"envs: {{DATA: {tmp_path}/talk.jsonl, KEY: , MY_TOKEN: canary-77}}\n"
        "slipway: {train: {phase: sft, identity: $DATA}}\n"
    )
    shown = world.inv("config", "--config", str(own))
    assert f"slipway.train.identity  missing   {tmp_path}/talk.jsonl" in shown
    assert re.search(r"envs\.KEY +no value", shown) and "canary" not in shown


def test_lines_to_mend_are_bad_and_what_is_no_job_is_refused(tmp_path):
    (tmp_path / "job.yaml").write_text("run: ray stop\n")
    (one,) = doctor.lint(str(tmp_path / "job.yaml"))
    assert (one.name, one.state) == (f"{tmp_path}/job.yaml:1", "bad")
    for path in (tmp_path, tmp_path / "nowhere.yaml"):
        with pytest.raises(UsageError):
            doctor.lint(str(path))
    (tmp_path / "flags.yaml").write_text("gpu: H100\n")
    with pytest.raises(UsageError, match="it is no job file"):
        doctor.lint(str(tmp_path / "flags.yaml"))


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("config.toml", 'apiurl = "https://api.runpod.io/graphql"\napikey = "rpa_CANARY91"\n'),
        ("config.toml", "apiKey='rpa_CANARY91'"),
        ("../.runpod.yaml", "apiKey: rpa_CANARY91\n"),
    ],
)
def test_a_key_that_runpodctl_has_saved_is_found_and_not_used_by_itself(tmp_path, monkeypatch, file, text):
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / ".runpod").mkdir()
    (tmp_path / ".runpod" / file).write_text(text)
    assert first_keys.saved("runpod")[0] == "rpa_CANARY91" and first_keys.saved("lium") == ("", "")
    settings = Settings.load(Path(tmp_path), environ={"HOME": str(tmp_path)})
    assert settings.runpod_api_key == "" and settings.provider == "local"
    told = doctor._vendor("runpod", settings)
    assert told.state == "off" and "is taken by: inv init runpod" in told.detail and "CANARY" not in told.detail
