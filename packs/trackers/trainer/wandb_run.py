"""Weights & Biases tracker: each run of ours is a W&B run, over all phases and recoveries.

The W&B run has the id of our run. Online, the tracker asks the server for the last logged steps on a resume. Offline,
the files stay beside the run for `wandb sync`; the files of a killed process may lack the last lines, so the next
process deletes them and writes all figures again. Each phase has a separate step counter, so several phases, and steps
after a recovery, fit into the same run.
"""

import os
import shutil
from collections.abc import Sequence

import wandb

from trainer.tracking.tracker import LastSent, Line, TrackedRun, flat, numbers

PROJECT = "slipway"
ASK_S = 5


class WandbRun:
    def __init__(self, run: TrackedRun) -> None:
        mode = os.environ.get("WANDB_MODE") or ("online" if os.environ.get("WANDB_API_KEY") else "offline")
        if mode == "offline":
            shutil.rmtree(run.folder / "wandb", ignore_errors=True)
        self.run = wandb.init(
            project=os.environ.get("WANDB_PROJECT") or PROJECT,
            id=run.run,
            name=run.run,
            resume="allow",
            mode=mode,  # type: ignore[arg-type]
            dir=str(run.folder),
            config={phase: flat(config) for phase, config in run.configs.items()},
            settings=wandb.Settings(console="off", silent=True, init_timeout=60, x_disable_stats=True),
        )
        for phase in run.configs:
            self.run.define_metric(f"{phase}/step", hidden=True)
            self.run.define_metric(f"{phase}/*", step_metric=f"{phase}/step")
        self.is_offline = is_offline = bool(self.run.offline or self.run.disabled)
        """True if the run exists on no server."""
        self.handed: dict[str, int] = {}
        """Last step handed to the library, by phase."""
        self.due: dict[str, int] = {}
        """Steps that the server should have by now: those handed over before the last question."""
        self.link = (
            "nothing is kept: WANDB_MODE is disabled"
            if self.run.disabled
            else "offline, for: wandb sync work/tracking/wandb/wandb/offline-run-*"
            if is_offline
            else str(self.run.url)
        )
        self.last_sent = LastSent() if is_offline else self._read_last_sent(list(run.configs))

    def _read_last_sent(self, phases: Sequence[str]) -> LastSent:
        """Return the last steps that the server has recorded from earlier processes of this run."""
        told, summary = LastSent(), self.run.summary
        for phase in phases:
            told.figures[phase] = int(summary.get(f"{phase}/step") or 0)
            told.samples[phase] = int(summary.get(f"{phase}/samples_step") or 0)
        return told

    def send_metrics(self, phase: str, lines: Sequence[Line]) -> None:
        for line in lines:
            named = {f"{phase}/{name}": value for name, value in numbers(line).items()}
            self.run.log({**named, f"{phase}/step": line["step"]})
            self.handed[phase] = line["step"]

    def send_samples(self, phase: str, said: Sequence[Line]) -> None:
        text = "\n\n".join(f"{one['prompt']}\n{one['text']}" for one in said)
        self.run.log({f"{phase}/samples": text, f"{phase}/samples_step": said[0]["step"]})

    def problem(self) -> str:
        """Return why the server lacks metrics, by the server's own record: `log` only queues them."""
        if self.is_offline:
            return ""
        try:
            summary = wandb.Api(timeout=ASK_S).run(self.run.path).summary
        except Exception as error:
            return f"no answer from the server ({type(error).__name__})"
        due, self.due = self.due, dict(self.handed)
        late = {phase: int(summary.get(f"{phase}/step") or 0) for phase in due}
        behind = [f"{phase}: step {late[phase]} of {step}" for phase, step in due.items() if late[phase] < step]
        return f"the server has {', '.join(behind)}" if behind else ""

    def close(self) -> None:
        self.run.finish()
