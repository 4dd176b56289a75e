"""The records that a run writes while it trains: `metrics.jsonl`, `samples.jsonl`, progress records.

In: the figures of a step, and now and then what the model says. Out: one line per step in `metrics.jsonl`, which
`trainer.tracking` tells to others; at most a few `progress` records per second, which carry a short curve of the loss
(of rl the reward) for `inv status`. Figures of a step: `loss` (nats per counted token), `grad_norm`, `lr`, `tokens`
(all so far, without padding), `learnt_tokens` (those of them that the loss was computed over), `tokens_per_s` and `mfu`
of those that were read (over the last steps; the first line of a process says under `mfu_of` of what), `step_s`,
`data_wait_s`, `memory_bytes` (the most so far, of the GPU or of the process), `at` (UTC epoch seconds). The first line
of all has `config`, the whole configuration that the trainer has got: what was asked for has arrived; and
`conversations`, counts of those that it learns from. The log of the step has loss and tokens per second of every
few steps.
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

from data.chat.talk_counts import TalkCounts
from data.events import emit
from trainer.config import PhaseConfig
from trainer.reporting.jsonl_log import FOLLOWED, SAID, StepLines, read
from trainer.reporting.peak_flops import Peak

RECORD_EVERY_S = 0.3
WINDOW = 20  # steps that a rate is the mean of
POINTS = 32  # points of the short curve
LINES, MOST_STEPS = 100, 100  # lines of a phase in its log, and the steps between two of them at most


@dataclass(frozen=True)
class StepTokens:
    """The tokens of one step."""

    read: int
    """Tokens in its rows, without padding."""
    learnt: int
    """Tokens that the loss is computed over."""
    row_len: int
    """Length of a row, as attention sees it."""


class Metrics:
    """The figures of one run, from step `start` on; lines of later steps (a killed run's) are dropped."""

    def __init__(
        self,
        folder: Path,
        start: int,
        config: PhaseConfig,
        peak: Peak | None = None,
        devices: int = 1,
        conversations: TalkCounts | None = None,
    ) -> None:
        """Open the figures of a run. peak: of one device, None = not known, so there is no MFU."""
        folder.mkdir(parents=True, exist_ok=True)
        self.config, self.first = config, start
        self.peak_flops_per_s = peak.flops_per_s * devices if peak else 0.0
        self.lines = StepLines(folder / "metrics.jsonl", start)
        self.said = StepLines(folder / "samples.jsonl", start, SAID)
        self.tokens, self.learnt_tokens = token_counts(self.lines.kept)
        self.curve = Curve(config.steps)
        for one in self.lines.kept:
            self.curve.add(one["step"], one.get("reward", one["loss"]))
        self.told_at = self.asking_s = 0.0
        self.window = deque([(time.monotonic(), start, 0, 0.0)], maxlen=WINDOW + 1)  # (when, step, tokens, operations)
        self.peak_source = {"mfu_of": peak.source} if peak else {}
        self.arrived = {} if self.lines.kept else {"config": asdict(config)}
        if conversations is not None and self.arrived:
            self.arrived["conversations"] = asdict(conversations)

    def step(self, step: int, tokens: StepTokens, **figures: float) -> None:
        """Write that `step` steps are done, the last over so many tokens."""
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
        self.curve.add(step, figures.get("reward", figures["loss"]))  # the loss of rl says nothing
        self._log(step, figures)
        if now - self.told_at < RECORD_EVERY_S and step < config.steps:
            return
        self.told_at = now
        eta_s = spent_s / (step - self.window[0][1]) * (config.steps - step)
        if not config.reads_text:  # rows have different lengths
            count = {"done": step, "total": config.steps, "unit": "steps"}
        else:
            each = config.rows * config.sequence_len
            count = {"done": step * each, "total": config.steps * each, "unit": "tokens"}
        emit("progress", **count, step=step, eta_s=eta_s, **figures, curve=self.curve.points())

    def _log(self, step: int, figures: Mapping[str, float]) -> None:
        """Print the line of a step every few steps: `inv logs --tail`, the hub and `tail -f` over SSH show those."""
        steps = self.config.steps
        each = max(1, min(MOST_STEPS, steps // LINES))
        if os.environ.get(FOLLOWED) or (step % each and step not in (self.first + 1, steps)):
            return
        reward = f", reward {figures['reward']:.3f}" if "reward" in figures else ""
        rate = f"{figures['tokens_per_s']:,.0f} tokens/s"
        print(f"step {step} of {steps}: loss {figures['loss']:.4f}{reward}, {rate}", file=sys.stderr, flush=True)

    def samples(self, step: int, said: Sequence[dict[str, str]], took_s: float) -> None:
        """Write what the model says after `step` steps: prompts and texts. The time that it took is no training."""
        self.asking_s += took_s
        for one in said:
            self.said.add({"step": step, **one})

    def close(self) -> None:
        self.lines.close()
        self.said.close()


class Curve:
    """A figure over a whole run in a few numbers: the means of as many stretches of steps."""

    def __init__(self, steps: int) -> None:
        self.each = -(-steps // POINTS)
        self.sums: dict[int, tuple[float, int]] = {}

    def add(self, step: int, value: float) -> None:
        total, count = self.sums.get((step - 1) // self.each, (0.0, 0))
        self.sums[(step - 1) // self.each] = (total + value, count + 1)

    def points(self) -> list[float]:
        return [round(total / count, 3) for _, (total, count) in sorted(self.sums.items())]


def most_memory() -> int:
    """Return the bytes at the fullest moment; 0 = not known.

    They are those of the GPU's memory that tensors took, else of this process.
    """
    if torch.cuda.is_available():
        return torch.cuda.max_memory_allocated()
    try:
        with open("/proc/self/status", encoding="ascii") as file:
            return next((int(line.split()[1]) << 10 for line in file if line.startswith("VmHWM:")), 0)
    except OSError:  # not Linux
        return 0


def token_counts(lines: Sequence[Mapping[str, Any]]) -> tuple[int, int]:
    """Return how many tokens were read up to the last line, and over how many of them the loss was computed."""
    last = lines[-1] if lines else {}
    return last.get("tokens", 0), last.get("learnt_tokens", 0)


def last_loss(path: Path) -> float:
    """Return the nats per counted token of the last step."""
    found: list[dict[str, Any]] = read(path)
    return float(found[-1]["loss"])
