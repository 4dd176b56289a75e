"""Declarations of W&B, MLflow and TensorBoard for a plan: environment, class on the pod, variables, secrets, notes.

The core reaches the declarations through `store.packs.named_trackers()`; each method reads the settings. The classes of
`packs.trackers.trainer` are referenced as strings, because their libraries are installed only in separate environments
on the pod.
"""

import os
from collections.abc import Mapping, Sequence
from urllib.parse import urlsplit

from infra.errors import UsageError
from infra.settings import Settings
from packs.trackers.control.settings import TrackerSettings
from store.packs import NamedTracker


class Wandb(NamedTracker):
    title = "W&B"
    environment = "track-wandb"
    opened_by = "packs.trackers.trainer.wandb_run:WandbRun"
    sent_later_by = "inv track.send"

    def is_enabled(self, settings: Settings) -> bool:
        ours = settings.for_pack(TrackerSettings)
        return ours.wandb_mode != "disabled" and bool(ours.wandb_api_key or ours.wandb_project or ours.wandb_mode)

    def variables(self, settings: Settings) -> Mapping[str, str]:
        ours = settings.for_pack(TrackerSettings)
        return {
            "WANDB_PROJECT": ours.wandb_project,
            "WANDB_MODE": ours.wandb_mode,
            "WANDB_BASE_URL": os.environ.get("WANDB_BASE_URL", ""),
        }

    def secrets(self, settings: Settings) -> Mapping[str, str]:
        return {"WANDB_API_KEY": settings.for_pack(TrackerSettings).wandb_api_key}

    def describe_location(self, settings: Settings) -> str:
        is_online = bool(settings.for_pack(TrackerSettings).wandb_api_key)
        return (
            ""
            if is_online
            else "W&B: without WANDB_API_KEY the machine keeps the metrics of the run offline, for: wandb sync"
        )

    def describe_runs(self, environs: Sequence[Mapping[str, str]], settings: Settings) -> str:
        projects = list(dict.fromkeys(one["WANDB_PROJECT"] for one in environs if "WANDB_PROJECT" in one))
        if not projects:
            return ""
        without = "; WANDB_API_KEY is not set, so each machine keeps the metrics of the run, for: wandb sync"
        return f"W&B project {', '.join(projects)}{'' if settings.for_pack(TrackerSettings).wandb_api_key else without}"


class Mlflow(NamedTracker):
    title = "MLflow"
    environment = "track-mlflow"
    opened_by = "packs.trackers.trainer.mlflow_run:MlflowRun"
    sent_later_by = "inv track.send"

    def variables(self, settings: Settings) -> Mapping[str, str]:
        """Return address, experiment and user name. Raises UsageError when the address contains a password.

        An address of this machine is accepted unchanged: runs on this machine can use such an address.
        """
        ours = settings.for_pack(TrackerSettings)
        if urlsplit(ours.mlflow_tracking_uri).password:
            raise UsageError(
                "MLFLOW_TRACKING_URI holds a password that every reader of the job could see; put the "
                "password into MLFLOW_TRACKING_PASSWORD, and the name into MLFLOW_TRACKING_USERNAME"
            )
        return {
            "MLFLOW_TRACKING_URI": ours.mlflow_tracking_uri,
            "MLFLOW_EXPERIMENT_NAME": ours.mlflow_experiment_name,
            "MLFLOW_TRACKING_USERNAME": ours.mlflow_tracking_username,
        }

    def secrets(self, settings: Settings) -> Mapping[str, str]:
        ours = settings.for_pack(TrackerSettings)
        return {
            "MLFLOW_TRACKING_PASSWORD": ours.mlflow_tracking_password,
            "MLFLOW_TRACKING_TOKEN": ours.mlflow_tracking_token,
        }

    def describe_location(self, settings: Settings) -> str:
        has_server = bool(settings.for_pack(TrackerSettings).mlflow_tracking_uri)
        return (
            ""
            if has_server
            else "MLflow: without MLFLOW_TRACKING_URI the machine keeps the metrics of the run in a folder"
        )


class Tensorboard(NamedTracker):
    title = "TensorBoard"
    environment = "track-tensorboard"
    opened_by = "packs.trackers.trainer.tensorboard_files:TensorboardFiles"
    page = "packs.trackers.trainer.board"
    port = 6006
