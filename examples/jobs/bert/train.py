"""Train a BERT-like encoder to mark the answer in a text. The data are synthetic, without a download.

A text is a row of facts, `key value key value ...`. The question is a key; the answer is the position of the value.
Each process trains on different rows, and DDP averages the gradients. At a restart all ranks load the checkpoint.
"""

import argparse
import contextlib
import os
import sys

import torch
import torch.distributed as dist
from slipway import checkpoint
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

SIZES = {"toy": (64, 2, 2), "base": (768, 12, 12)}  # width, layers, heads
NUM_WORDS, NUM_FACTS = 32, 4


class Reader(nn.Module):
    """Encoder that maps words (B, T) to a score (B, T) of each position as the answer."""

    def __init__(self, width: int, layers: int, heads: int) -> None:
        super().__init__()
        self.words = nn.Embedding(NUM_WORDS, width)
        self.places = nn.Embedding(1 + 2 * NUM_FACTS, width)
        layer = nn.TransformerEncoderLayer(width, heads, 4 * width, dropout=0.0, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.score = nn.Linear(width, 1)

    def forward(self, words: Tensor) -> Tensor:
        places = torch.arange(words.shape[1], device=words.device)
        return self.score(self.encoder(self.words(words) + self.places(places))).squeeze(-1)


def rows(count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Return rows of a question and a text (B, 1 + 2 * facts), and the position of each answer (B,)."""
    dice = torch.Generator().manual_seed(seed)
    keys = torch.stack([torch.randperm(NUM_WORDS // 2, generator=dice)[:NUM_FACTS] for _ in range(count)])
    values = torch.randint(NUM_WORDS // 2, NUM_WORDS, (count, NUM_FACTS), generator=dice)
    asked = torch.randint(0, NUM_FACTS, (count,), generator=dice)
    text = torch.stack([keys, values], dim=2).flatten(1)
    return torch.cat([keys.gather(1, asked[:, None]), text], dim=1), 2 + 2 * asked


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--size", choices=SIZES, default="toy")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--batch", type=int, default=64, help="rows of each process")
    parser.add_argument("--save-every", type=int, default=50)
    parser.add_argument("--run-name", default="bert")
    args = parser.parse_args()
    device = f"cuda:{os.environ['LOCAL_RANK']}" if torch.cuda.is_available() else "cpu"
    dist.init_process_group("nccl" if device != "cpu" else "gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = DistributedDataParallel(Reader(*SIZES[args.size]).to(device))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3 if args.size == "toy" else 1e-4)
    saver, begin = checkpoint.Saver("bert"), 0
    found = saver.load_latest() if rank == 0 else None
    found = shared(found)
    if found:
        state, begin = found
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
    say(rank, f"{args.run_name}: {world} processes on {device}, begins at step {begin}")
    for step in range(begin + 1, args.steps + 1):
        words, answers = (one.to(device) for one in rows(args.batch, step * world + rank))
        loss = nn.functional.cross_entropy(model(words), answers)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % args.save_every == 0 or step == args.steps:
            saver.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, step, {"loss": loss.item()})
            say(rank, f"step {step}: loss {loss.item():.3f}")
    with torch.no_grad():
        words, answers = (one.to(device) for one in rows(512, 10**6 + rank))
        right = (model(words).argmax(1) == answers).float().mean()
    dist.all_reduce(right)
    say(rank, f"answers found: {right.item() / world:.0%}")
    # Skip dist.destroy_process_group() and the interpreter's shutdown: while other ranks disconnect, a gloo thread
    # sometimes aborts the process, and torchrun would report a finished training as failed.
    sys.stdout.flush()
    os._exit(0)


def shared(found: object) -> object:
    """Broadcast the checkpoint of rank 0 to all ranks; machines of other ranks may have no checkpoint."""
    held = [found]
    dist.broadcast_object_list(held)
    return held[0]


def say(rank: int, text: str) -> None:
    with contextlib.suppress(BrokenPipeError):
        if rank == 0:
            print(text, flush=True)


if __name__ == "__main__":
    main()
