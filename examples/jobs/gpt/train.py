"""Train a small GPT on the bytes of this file, in plain PyTorch, with checkpoints for a restart.

A step depends only on the step number, the parameters and the optimizer state. Therefore an interrupted training
reaches the same losses as an uninterrupted training.
"""

import argparse
import os
import signal
from pathlib import Path

import torch
from slipway import checkpoint
from torch import Tensor, nn

CONTEXT, BATCH, WIDTH, HEADS, LAYERS = 64, 8, 64, 4, 2


class Block(nn.Module):
    """Transformer block on rows (B, T, width): causal attention, then an MLP of two matrices."""

    def __init__(self) -> None:
        super().__init__()
        self.before_attention, self.before_matrices = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.mixed, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.matrices = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, rows: Tensor) -> Tensor:
        size = (*rows.shape[:2], HEADS, WIDTH // HEADS)
        query, key, value = (
            one.view(size).transpose(1, 2) for one in self.mixed(self.before_attention(rows)).split(WIDTH, 2)
        )
        seen = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        rows = rows + self.out(seen.transpose(1, 2).flatten(2))
        return rows + self.matrices(self.before_matrices(rows))


class Gpt(nn.Module):
    """Decoder that maps bytes (B, T) to logits of the next byte (B, T, 256)."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes, self.places = nn.Embedding(256, WIDTH), nn.Embedding(CONTEXT, WIDTH)
        for table in (self.bytes, self.places):
            nn.init.normal_(table.weight, std=0.02)  # nearly equal first logits; positions do not drown bytes
        self.blocks, self.norm = nn.Sequential(*(Block() for _ in range(LAYERS))), nn.LayerNorm(WIDTH)

    def forward(self, ids: Tensor) -> Tensor:
        rows = self.bytes(ids) + self.places(torch.arange(ids.shape[1]))
        return self.norm(self.blocks(rows)) @ self.bytes.weight.T


def batch(text: Tensor, step: int) -> tuple[Tensor, Tensor]:
    """Return the input bytes (B, T) of a step and the target bytes (B, T), one position later."""
    begins = torch.randint(0, len(text) - CONTEXT - 1, (BATCH,), generator=torch.Generator().manual_seed(step))
    rows = torch.stack([text[begin : begin + CONTEXT + 1] for begin in begins.tolist()])
    return rows[:, :-1], rows[:, 1:]


@torch.no_grad()
def said(model: Gpt, begin: str, length: int) -> str:
    """Return a text with `length` greedily decoded bytes after the text."""
    ids = torch.tensor([list(begin.encode())])
    for _ in range(length):
        ids = torch.cat([ids, model(ids[:, -CONTEXT:])[:, -1:].argmax(-1)], dim=1)
    return bytes(ids[0].tolist()).decode(errors="replace")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--save-every", type=int, default=30)
    args = parser.parse_args()
    told = []
    signal.signal(signal.SIGTERM, lambda number, frame: told.append(number))
    torch.set_num_threads(1)  # Threads do not pay off at this size.
    torch.manual_seed(0)
    text = torch.tensor(list(Path(__file__).read_bytes()))
    model = Gpt()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    saver, begin = checkpoint.Saver("gpt", keep=3), 0
    if found := saver.load_latest():
        state, begin = found
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
    print(f"{os.environ.get('SKYPILOT_TASK_ID', 'gpt')} begins at step {begin}", flush=True)
    for step in range(begin + 1, args.steps + 1):
        ids, after = batch(text, step)
        loss = nn.functional.cross_entropy(model(ids).flatten(0, 1), after.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % args.save_every == 0 or step == args.steps or told:
            saver.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, step, {"loss": loss.item()})
            print(f"step {step}: loss {loss.item():.6f}", flush=True)
        if told:
            raise SystemExit(checkpoint.RESUME_ME)
    print(said(model, "def main", 60), flush=True)


if __name__ == "__main__":
    main()
