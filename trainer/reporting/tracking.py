"""Weights & Biases beside a run, for who asks for it. Nothing of a training depends on it.

In: figures and samples; `WANDB_API_KEY`, or `WANDB_PROJECT`, or `WANDB_MODE=offline`, in the environment. Out: one W&B
run for each phase of a run, the same one over all recoveries; without a key it is kept offline in the run's folder, to
be sent with `wandb sync`. What goes wrong with it is told, and the training goes on.
"""

import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from data.events import emit
from trainer.config import PhaseConfig

PROJECT = "slipway"
log = logging.getLogger(__name__)


class Tracker:
    """One W&B run at work; silent once something went wrong."""

    def __init__(self, run: Any) -> None:
        self.run = run
        self.link = "offline" if run.offline else run.url

    def log(self, step: int, figures: Mapping[str, float]) -> None:
        self._quietly(lambda: self.run.log(dict(figures), step=step))

    def samples(self, step: int, said: Sequence[Mapping[str, str]]) -> None:
        lines = "\n\n".join(f"{one['prompt']}\n{one['text']}" for one in said)
        self._quietly(lambda: self.run.log({"samples": lines}, step=step))

    def close(self) -> None:
        self._quietly(lambda: self.run.finish())

    def _quietly(self, action: Any) -> None:
        if self.run is None:
            return
        try:
            action()
        except Exception as error:  # a service beside the training must not end it, whatever its client raises
            self.run = None
            say(f"W&B has failed and is left alone: {type(error).__name__}: {error}", alarm=True)


def is_asked_for(environ: Mapping[str, str] = os.environ) -> bool:
    if environ.get("WANDB_MODE") == "disabled":
        return False
    return any(environ.get(name) for name in ("WANDB_API_KEY", "WANDB_PROJECT", "WANDB_MODE"))


def open_tracker(folder: Path, config: PhaseConfig, run: str) -> Tracker | None:
    """Return a tracker; None where nobody asked, or where it cannot be had, which is told.

    run: the id of the whole run, "" = none.
    """
    if not is_asked_for():
        return None
    try:
        import wandb
    except ImportError:
        where = "add wandb to the group train of pyproject.toml, and its pins to constraints/train.txt"
        say(f"W&B is asked for, and wandb is not in this environment; {where}", alarm=True)
        return None
    name = f"{run or f'alone-{config.digest()[:12]}'}-{config.phase}"
    mode = os.environ.get("WANDB_MODE") or ("online" if os.environ.get("WANDB_API_KEY") else "offline")
    try:
        tracker = Tracker(
            wandb.init(
                project=os.environ.get("WANDB_PROJECT") or PROJECT,
                id=name,
                name=name,
                group=run or None,
                resume="allow",
                mode=mode,  # type: ignore[arg-type]
                dir=str(folder),
                config=asdict(config),
                settings=wandb.Settings(console="off", silent=True, init_timeout=30),
            )
        )
    except Exception as error:  # see Tracker
        say(f"W&B is left out: {type(error).__name__}: {error}", alarm=True)
        return None
    say(f"W&B: {tracker.link}")
    return tracker


def say(text: str, **more: Any) -> None:
    log.info("%s", text)
    emit("note", text=text, **more)
