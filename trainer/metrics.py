"""What a run tells while it trains: `metrics.jsonl`, TensorBoard beside it, and progress records.

In: the figures of a step. Out: one line per step in `metrics.jsonl`; the same as TensorBoard scalars; at most a few
`progress` records per second.
"""

import json
import time
from pathlib import Path
from typing import Any

from data.report import emit

RECORD_EVERY_S = 0.3


class Metrics:
    """The figures of one run, from step `start` on; lines of later steps (a killed run's) are dropped."""

    def __init__(self, folder: Path, start: int, steps: int, tokens_per_step: int | None) -> None:
        """tokens_per_step: None when it differs from step to step; progress then counts steps."""
        from torch.utils.tensorboard import SummaryWriter

        folder.mkdir(parents=True, exist_ok=True)
        self.path = folder / "metrics.jsonl"
        self.tokens = _keep_before(self.path, start)
        self.file = self.path.open("a", encoding="utf-8")
        self.board = SummaryWriter(str(folder), purge_step=start + 1)
        self.steps, self.tokens_per_step = steps, tokens_per_step
        self.first, self.began, self.told_at = start, time.monotonic(), 0.0
        self.new_tokens = 0

    def step(self, step: int, tokens: int, **figures: float) -> None:
        """`step` steps are done, the last over so many tokens."""
        self.tokens += tokens
        self.new_tokens += tokens
        now = time.monotonic()
        spent_s = now - self.began
        tokens_per_s = self.new_tokens / max(spent_s, 1e-9)
        line: dict[str, Any] = {"step": step, "tokens": self.tokens, "tokens_per_s": round(tokens_per_s, 1), **figures}
        self.file.write(json.dumps(line) + "\n")
        self.file.flush()
        for name, value in figures.items():
            self.board.add_scalar(name, value, step)
        if now - self.told_at < RECORD_EVERY_S and step < self.steps:
            return
        self.told_at = now
        eta_s = spent_s / (step - self.first) * (self.steps - step)
        if self.tokens_per_step:
            count = {"done": step * self.tokens_per_step, "total": self.steps * self.tokens_per_step, "unit": "tokens"}
        else:
            count = {"done": step, "total": self.steps, "unit": "steps"}
        emit("progress", **count, step=step, tokens_per_s=tokens_per_s, eta_s=eta_s, **figures)

    def close(self) -> None:
        self.file.close()
        self.board.close()


def last_loss(path: Path) -> float:
    """Nats per counted token of the last step."""
    return float(json.loads(path.read_text(encoding="utf-8").splitlines()[-1])["loss"])


def _keep_before(path: Path, start: int) -> int:
    """Cut the file after step `start`; how many tokens were seen until there."""
    kept, tokens = [], 0
    if path.exists():
        for line in path.read_text(encoding="utf-8").splitlines(keepends=True):
            if not line.endswith("\n"):
                break  # a kill cut it
            figures = json.loads(line)
            if figures["step"] <= start:
                kept.append(line)
                tokens = figures["tokens"]
    draft = path.with_suffix(".draft")
    draft.write_text("".join(kept), encoding="utf-8")
    draft.replace(path)
    return tokens
