"""W&B, MLflow and TensorBoard in plans: requested by flag or by their own variables, with their secrets."""

import pytest

from flows.installation import doctor
from flows.planning import extensions
from infra import job_environment
from infra.errors import UsageError
from infra.settings import Settings
from packs.trackers.control.settings import TrackerSettings
from store import packs
from tests.world import ROOT, World

KEYS = {"WANDB_API_KEY": "w-canary", "MLFLOW_TRACKING_PASSWORD": "p-canary", "MLFLOW_TRACKING_TOKEN": "t-canary"}


@pytest.mark.process
def test_plan_with_a_tracker_names_the_place_of_the_run(tmp_path):
    def plan_text(**asked: str) -> list[doctor.DoctorLine]:
        return doctor.tracking(Settings.load(tmp_path, environ=asked))

    assert (
        plan_text()
        == plan_text(WANDB_API_KEY="k", WANDB_MODE="disabled")
        == plan_text(WANDB_API_KEY="k", SLIPWAY_TRACK="none")
        == []
    )
    (line,) = plan_text(WANDB_API_KEY="k")
    assert line.state == "ok" and line.detail == "wandb by the tracker's own variables"
    (line,) = plan_text(SLIPWAY_TRACK="mlflow,wandb")
    assert "without MLFLOW_TRACKING_URI" in line.detail and "wandb sync" in line.detail
    with pytest.raises(UsageError, match="did you mean 'wandb'"):
        plan_text(SLIPWAY_TRACK="wanbd")
    world = World(tmp_path, {"WANDB_PROJECT": "ours"})
    planned = world.json("launch", "--phase", "base", "--dry-run")
    assert [note for note in planned["notes"] if "W&B" in note]


def test_keys_of_trackers_are_sent_with_a_job_and_shown_nowhere(tmp_path):
    settings = Settings.load(tmp_path, environ=KEYS)
    assert job_environment.secrets(settings) == KEYS
    shown = settings.list_settings(), settings.for_pack(TrackerSettings), extensions.tracker_variables(settings)
    assert "canary" not in repr(shown)


def test_variables_of_trackers_are_sent_and_an_address_with_a_password_is_refused(tmp_path):
    given = {"WANDB_PROJECT": "ours", "MLFLOW_TRACKING_URI": "http://me@127.0.0.1:5000"}
    settings = Settings.load(ROOT, {}, ("WANDB_PROJECT=typed",), given)
    assert extensions.tracker_variables(settings) == {**given, "WANDB_PROJECT": "typed"}
    assert settings.for_pack(TrackerSettings).sources["wandb_project"] == "-e"
    with pytest.raises(UsageError, match="holds a password"):
        extensions.tracker_variables(
            Settings.load(tmp_path, environ={"MLFLOW_TRACKING_URI": "http://me:word@127.0.0.1:5000"})
        )


def test_plan_of_a_sweep_names_the_projects_of_its_runs(tmp_path):
    (wandb, *_) = packs.named_trackers().values()
    settings, runs = Settings.load(tmp_path, environ={}), [{"WANDB_PROJECT": "a"}, {}, {"WANDB_PROJECT": "a"}]
    assert wandb.describe_runs(runs, settings).startswith("W&B project a; WANDB_API_KEY is not set")
    assert wandb.describe_runs(runs, Settings.load(tmp_path, environ=KEYS)) == "W&B project a"
    assert wandb.describe_runs([{}], settings) == ""


@pytest.mark.parametrize("name", packs.named_trackers())
def test_sidecar_of_a_tracker_starts_in_an_existing_environment_with_an_existing_class(name):
    one = packs.named_trackers()[name]
    module, _, kind = one.opened_by.partition(":")
    assert f"class {kind}:" in (ROOT / f"{module.replace('.', '/')}.py").read_text()
    assert (ROOT / "constraints" / f"{one.environment}.txt").exists()
    assert not one.page or (ROOT / f"{one.page.replace('.', '/')}.py").exists()
