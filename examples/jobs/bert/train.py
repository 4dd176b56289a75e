"""Train an encoder like BERT to mark the answer in a text: in a made-up world, so that nothing is downloaded.

A text is a row of facts, `key value key value ...`; the question is a key, the answer the position of its value. Each
process trains on rows of its own; DDP averages the gradients. What is saved is loaded by every rank of the next start.
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
    """Words (B, T) -> for each position a score (B, T) of whether the answer is there."""

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
    """Return questions with their texts (B, 1 + 2 * facts), and where each answer stands (B,)."""
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
    # Instead of dist.destroy_process_group(): while its peers leave, an interpreter that ends in order is sometimes
    # aborted by a thread of gloo's, and torchrun would call a finished training failed.
    sys.stdout.flush()
    os._exit(0)


def shared(found: object) -> object:
    """Return what rank 0 has loaded, on every rank: the others may be on machines that have no checkpoint."""
    held = [found]
    dist.broadcast_object_list(held)
    return held[0]


def say(rank: int, text: str) -> None:
    with contextlib.suppress(BrokenPipeError):
        if rank == 0:
            print(text, flush=True)


if __name__ == "__main__":
    main()
