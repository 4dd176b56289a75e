"""The trackers of a run, in words: `wandb,mlflow,tensorboard`, or a Python file of the user's.

In: what `--track` or SLIPWAY_TRACK says, and the settings of each. Out: the sidecars of a job. Each of ours has an
environment of its own, which its own process makes, so that nothing of it can fail the run.
"""

import difflib
import os
import re
from collections.abc import Sequence
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from infra.agent.job import Step
from infra.errors import UsageError
from infra.providers import extensions
from infra.settings import Settings
from store.extensions import is_file, use, used

NAMES = ("wandb", "mlflow", "tensorboard")
MODULE = "trainer.tracking"
OFF = "none"


def asked(words: str, settings: Settings) -> tuple[str, ...]:
    """Return the names and files of the trackers that are asked for. Raises UsageError for an unknown one.

    Where nobody says anything, W&B is told when one of its own variables is set.
    """
    said = words or settings.track or ("wandb" if _is_wandb_meant(settings) else "")
    if said == OFF:
        return ()
    found = tuple(dict.fromkeys(filter(None, (one.strip() for one in said.split(",")))))
    for one in found:
        if is_file(one):
            extensions.of_file("--track", one, "tracker")
        elif own := extensions.find("tracker", one, settings, (*NAMES, OFF)):
            use(own)
        elif one not in NAMES:
            near = difflib.get_close_matches(one, NAMES, 1)
            hint = f"did you mean {near[0]!r}? " if near else ""
            listed = f"{', '.join(NAMES)}, a .py file of yours, or {OFF}{extensions.named(settings)}"
            raise UsageError(f"--track {one}: {hint}known: {listed}")
    names = [step_name(one) for one in found]
    if twice := [one for one in names if names.count(one) > 1]:
        both = " and ".join(one for one in found if step_name(one) == twice[0])
        raise UsageError(f"--track {both}: two trackers have one name; rename one of the files")
    return found


def _is_wandb_meant(settings: Settings) -> bool:
    is_off = settings.wandb_mode == "disabled"
    return not is_off and bool(settings.wandb_api_key or settings.wandb_project or settings.wandb_mode)


def steps(names: Sequence[str], work: Sequence[Step]) -> tuple[Step, ...]:
    """Return the sidecars of a job with these steps; () where none of them trains. Raises UsageError."""
    configs = {one.name: _plain(one.config["spec"]) for one in work if "keeping" in one.config}
    if not configs:
        return ()
    return tuple(_step(name, configs) for name in names)


def _step(name: str, configs: dict[str, Any]) -> Step:
    if name in NAMES:
        words = ("-m", "infra.agent.own_environment", f"track-{name}", MODULE)
        return Step(f"track-{name}", words, config={"tracker": name, "configs": configs})
    own = extensions.of_file("--track", name, "tracker") if is_file(name) else used(name)
    assert own is not None, "asked() has found it"
    called = step_name(name)
    config = {"tracker": called.removeprefix("track-"), "configs": configs, "code": use(own).text}
    return Step(called, ("-m", MODULE), "train", config)


def step_name(tracker: str) -> str:
    """Return the name of a tracker's sidecar; for a file, in letters that any folder can have."""
    stem = Path(tracker).name.removesuffix(".py") if is_file(tracker) else tracker
    return f"track-{re.sub('[^A-Za-z0-9_-]', '-', stem)}"


def _plain(spec: Any) -> Any:
    return asdict(spec) if is_dataclass(spec) and not isinstance(spec, type) else spec


def variables(settings: Settings) -> dict[str, str]:
    """Return the settings for trackers, but for secrets. Raises UsageError for a password in an address.

    An address of this machine is taken as it is: it is of use to runs on this machine.
    """
    if urlsplit(settings.mlflow_tracking_uri).password:
        raise UsageError(
            "MLFLOW_TRACKING_URI holds a password, which everybody who sees the job could read; "
            "write it into MLFLOW_TRACKING_PASSWORD, and the name into MLFLOW_TRACKING_USERNAME"
        )
    found = {
        "WANDB_PROJECT": settings.wandb_project,
        "WANDB_MODE": settings.wandb_mode,
        "MLFLOW_TRACKING_URI": settings.mlflow_tracking_uri,
        "MLFLOW_EXPERIMENT_NAME": settings.mlflow_experiment_name,
        "MLFLOW_TRACKING_USERNAME": settings.mlflow_tracking_username,
        "WANDB_BASE_URL": os.environ.get("WANDB_BASE_URL", ""),
    }
    return {name: value for name, value in found.items() if value}


def notes(names: Sequence[str], settings: Settings) -> tuple[str, ...]:
    """Return where each tracker will keep the run, in words, where that is not obvious."""
    found = []
    for name in names:
        if name == "wandb" and not settings.wandb_api_key:
            found.append("W&B: without WANDB_API_KEY the run is kept offline on its machine, for: wandb sync")
        if name == "mlflow" and not settings.mlflow_tracking_uri:
            found.append("MLflow: without MLFLOW_TRACKING_URI the run is kept in a folder of its machine")
    return tuple(found)
