"""Records written during training: `metrics.jsonl`, `samples.jsonl` and progress records.

Each step appends a line to `metrics.jsonl`, read by `trainer.tracking`. At most a few `progress` records per second
carry a short curve of the loss (of the reward for rl) for `inv status`. The step's text log shows loss and tokens per
second every few steps.

Metrics of a step: `loss` (nats per counted token), `grad_norm`, `lr`, `tokens` (total so far, without padding),
`learnt_tokens` (total tokens in the loss so far), `tokens_per_s` and `mfu` of read tokens (over the last steps; the
first line of a process names the peak under `mfu_of`), `step_s`, `data_wait_s`, `memory_bytes` (maximum so far, of the
GPU or the process), `at` (UTC epoch seconds).

The first line of a run also has `config`, the whole configuration received by the trainer, as proof of the requested
settings, and `conversations`, counts of the training conversations.
"""

import os
import sys
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from data.chat.conversation_counts import ConversationCounts
from data.events import add_part, emit, enter_part
from trainer.config import PhaseConfig
from trainer.reporting.jsonl_log import FOLLOWED, SAID, StepLines, read
from trainer.reporting.peak_flops import Peak

RECORD_EVERY_S = 0.3
WAITED_S = 0.5  # waits for data are recorded in portions of this length
WINDOW = 20  # number of steps for averaging rates
POINTS = 32  # points of the short curve
LINES, MOST_STEPS = 100, 100  # log lines per phase, and the maximum steps between two log lines


@dataclass(frozen=True)
class StepTokens:
    """Token counts of a step."""

    read: int
    """Tokens in the rows, without padding."""
    learnt: int
    """Tokens in the loss."""
    row_len: int
    """Length of a row in attention."""


class Metrics:
    """Metrics of a run from step `start` on; lines of later steps, from a killed run, are dropped."""

    def __init__(
        self,
        folder: Path,
        start: int,
        config: PhaseConfig,
        peak: Peak | None = None,
        devices: int = 1,
        conversations: ConversationCounts | None = None,
    ) -> None:
        """Open the metrics of a run. peak: peak speed per device; None = unknown, so no MFU is computed."""
        folder.mkdir(parents=True, exist_ok=True)
        self.config, self.first, self.steps = config, start, config.steps
        self.peak_flops_per_s = peak.flops_per_s * devices if peak else 0.0
        self.lines = StepLines(folder / "metrics.jsonl", start)
        self.said = StepLines(folder / "samples.jsonl", start, SAID)
        self.tokens, self.learnt_tokens = token_counts(self.lines.kept)
        self.curve = Curve(config.steps)
        for one in self.lines.kept:
            self.curve.add(one["step"], one.get("reward", one["loss"]))
        self.told_at = self.asking_s = self.waited_s = 0.0
        self.compiled_s = compiler_s()
        self.window = deque([(time.monotonic(), start, 0, 0.0)], maxlen=WINDOW + 1)  # (when, step, tokens, operations)
        self.peak_source = {"mfu_of": peak.source} if peak else {}
        self.arrived = {} if self.lines.kept else {"config": asdict(config)}
        if conversations is not None and self.arrived:
            self.arrived["conversations"] = asdict(conversations)

    def begin(self) -> None:
        """Measure rates from now on: loading and preparing belong to no step."""
        self.window[-1] = (time.monotonic(), self.first, 0, 0.0)
        enter_part("steps")

    def step(self, step: int, tokens: StepTokens, **figures: float) -> None:
        """Write the metrics after `step` steps; `tokens` are the counts of the last step."""
        self._add_parts(figures.get("data_wait_s", 0.0), is_last=step == self.steps)
        self.tokens += tokens.read
        self.learnt_tokens += tokens.learnt
        now, config = time.monotonic() - self.asking_s, self.config
        began_at, _, _, _ = self.window[-1]
        flops = tokens.read * config.flops_per_token(tokens.row_len)
        self.window.append((now, step, tokens.read, flops))
        spent_s = max(now - self.window[0][0], 1e-9)
        counted = list(self.window)[1:]
        rates = {"tokens_per_s": round(sum(one[2] for one in counted) / spent_s, 1)}
        if self.peak_flops_per_s:
            rates["mfu"] = round(sum(one[3] for one in counted) / spent_s / self.peak_flops_per_s, 4)
        if memory_bytes := most_memory():
            rates["memory_bytes"] = memory_bytes
        figures = {**figures, **rates, "step_s": round(now - began_at, 6)}
        once = self.peak_source if len(counted) == 1 else {}
        self.lines.add(
            {
                "step": step,
                "tokens": self.tokens,
                "learnt_tokens": self.learnt_tokens,
                **figures,
                "at": round(time.time(), 3),
                **once,
                **self.arrived,
            }
        )
        self.arrived = {}
        self.curve.add(step, figures.get("reward", figures["loss"]))  # rl's loss is uninformative
        self._log(step, figures)
        if now - self.told_at < RECORD_EVERY_S and step < self.steps:
            return
        self.told_at = now
        eta_s = spent_s / (step - self.window[0][1]) * (self.steps - step)
        if not config.reads_text:  # row lengths vary
            count = {"done": step, "total": self.steps, "unit": "steps"}
        else:
            each = config.rows * config.sequence_len
            count = {"done": step * each, "total": self.steps * each, "unit": "tokens"}
        emit("progress", **count, step=step, eta_s=eta_s, **figures, curve=self.curve.points())

    def _log(self, step: int, figures: Mapping[str, float]) -> None:
        """Print a line every few steps, for `inv logs --tail`, the hub and `tail -f` over SSH."""
        steps = self.steps
        each = max(1, min(MOST_STEPS, steps // LINES))
        if os.environ.get(FOLLOWED) or (step % each and step not in (self.first + 1, steps)):
            return
        reward = f", reward {figures['reward']:.3f}" if "reward" in figures else ""
        if "margin" in figures:
            reward = f", margin {figures['margin']:.3f}, accuracy {figures['accuracy']:.2f}"
        rate = f"{figures['tokens_per_s']:,.0f} tokens/s"
        print(f"step {step} of {steps}: loss {figures['loss']:.4f}{reward}, {rate}", file=sys.stderr, flush=True)

    def log_samples(self, step: int, said: Sequence[dict[str, str]], took_s: float) -> None:
        """Write the model's samples after `step` steps: prompts and texts. `took_s` does not count as training time."""
        self.asking_s += took_s
        add_part("evaluation", took_s)
        for one in said:
            self.said.add({"step": step, **one})

    def _add_parts(self, waited_s: float, is_last: bool) -> None:
        """Record the seconds since the last call that belong to the compiler, and the waits for data."""
        compiled_s, self.waited_s = compiler_s(), self.waited_s + waited_s
        add_part("compile", compiled_s - self.compiled_s)
        self.compiled_s = compiled_s
        if self.waited_s >= WAITED_S or is_last:
            add_part("data", self.waited_s)
            self.waited_s = 0.0

    def close(self) -> None:
        enter_part("saves")  # the trainer checks the last checkpoint
        self.lines.close()
        self.said.close()


class Curve:
    """Summary of a metric over a whole run: the means of at most POINTS stretches of steps."""

    def __init__(self, steps: int) -> None:
        self.each = -(-steps // POINTS)
        self.sums: dict[int, tuple[float, int]] = {}

    def add(self, step: int, value: float) -> None:
        total, count = self.sums.get((step - 1) // self.each, (0.0, 0))
        self.sums[(step - 1) // self.each] = (total + value, count + 1)

    def points(self) -> list[float]:
        return [round(total / count, 3) for _, (total, count) in sorted(self.sums.items())]


def compiler_s() -> float:
    """Return the seconds that this process has spent on compilation; 0 before the first compilation."""
    dynamo = sys.modules.get("torch._dynamo.utils")  # loading the module takes a second, also without a compilation
    return float(dynamo.calculate_time_spent()["total_wall_time"]) if dynamo else 0.0


def most_memory() -> int:
    """Return the peak memory in bytes; 0 = unknown.

    The value is the peak GPU memory allocated by tensors, or without a GPU the peak resident memory of the process.
    """
    if torch.cuda.is_available():
        return torch.cuda.max_memory_allocated()
    try:
        with open("/proc/self/status", encoding="ascii") as file:
            return next((int(line.split()[1]) << 10 for line in file if line.startswith("VmHWM:")), 0)
    except OSError:  # not Linux
        return 0


def token_counts(lines: Sequence[Mapping[str, Any]]) -> tuple[int, int]:
    """Return the numbers of read tokens and of tokens in the loss, up to the last line."""
    last = lines[-1] if lines else {}
    return last.get("tokens", 0), last.get("learnt_tokens", 0)


def last_loss(path: Path) -> float:
    """Return the loss of the last step, in nats per counted token."""
    found: list[dict[str, Any]] = read(path)
    return float(found[-1]["loss"])
