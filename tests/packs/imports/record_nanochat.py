"""Record a small checkpoint of nanochat, with the logits, the loss and the answer of nanochat's own code.

Run: python -m tests.packs.imports.record_nanochat --nanochat DIR [--out FOLDER] [--seed N]

DIR is a git checkout of karpathy/nanochat. The model has random weights: depth 4, windows, a padded vocabulary, shared
key/value heads. The tokenizer is trained by nanochat's code on the README of this project. Without the package
tiktoken, a class with the same pickled state takes the place of its encoding.
"""

import argparse
import importlib.machinery
import json
import os
import pickle
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import torch

from trainer import tensor_file

ROOT = Path(__file__).parents[3]
FOLDER = Path(__file__).with_name("nanochat_2026")
SIZES = {"sequence_len": 512, "vocab_size": 300, "n_layer": 4, "n_head": 4, "n_kv_head": 2, "n_embd": 32}
LENGTH, EVERY = 400, 9  # recorded tokens; recorded positions
LONG = 700  # tokens of a row that is longer than the context, as in CORE
PROMPT, ANSWER = 200, 40
STEP = 10
TEXT = 500  # recorded characters


class Encoding:
    """The pickled state of a tiktoken encoding."""

    def __init__(self, name: str, *, pat_str: str, mergeable_ranks: dict[bytes, int], special_tokens: dict[str, int]):
        self.state = {
            "name": name,
            "pat_str": pat_str,
            "mergeable_ranks": mergeable_ranks,
            "special_tokens": special_tokens,
        }

    def encode_single_token(self, text: str) -> int:
        return self.state["special_tokens"][text]

    def __getstate__(self) -> dict[str, Any]:
        return self.state


def stand_in() -> None:
    """Provide `tiktoken`, with the class above, if the package is missing."""
    try:
        import tiktoken  # noqa: F401
    except ImportError:
        Encoding.__module__, Encoding.__qualname__ = "tiktoken.core", "Encoding"
        for name in ("tiktoken", "tiktoken.core"):
            module = types.ModuleType(name)
            module.__spec__ = importlib.machinery.ModuleSpec(name, None)
            module.Encoding = Encoding  # type: ignore[attr-defined]
            sys.modules[name] = module


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--nanochat", type=Path, required=True, help="git checkout of karpathy/nanochat")
    options.add_argument("--out", type=Path, default=FOLDER)
    options.add_argument("--seed", type=int, default=3)
    given = options.parse_args()
    os.environ |= {"NANOCHAT_DTYPE": "float32", "NANOCHAT_BASE_DIR": str(given.out)}
    sys.path.insert(0, str(given.nanochat))
    stand_in()
    import rustbpe
    from nanochat import checkpoint_manager, engine, gpt, tokenizer

    text = (ROOT / "README.md").read_text(encoding="utf-8")
    words = tokenizer.RustBPETokenizer.train_from_iterator(iter([text]), SIZES["vocab_size"])
    (given.out / "tokenizer").mkdir(parents=True, exist_ok=True)
    (given.out / "tokenizer" / "tokenizer.pkl").write_bytes(pickle.dumps(words.enc))

    config = gpt.GPTConfig(**SIZES)
    model = gpt.GPT(config).eval()
    model.init_weights()
    generator = torch.Generator().manual_seed(given.seed)
    with torch.no_grad():
        for one in model.parameters():
            one.copy_(torch.randn(one.shape, generator=generator) * (0.2 if one.dim() > 1 else 0.5))
    folder = given.out / "base_checkpoints" / "d4"
    checkpoint_manager.save_checkpoint(
        str(folder), STEP, model.state_dict(), None, {"step": STEP, "model_config": {**SIZES, "window_pattern": "SSSL"}}
    )

    ids = torch.randint(0, SIZES["vocab_size"], (1, LENGTH + 1), generator=generator)
    with torch.no_grad():
        logits = model(ids[:, :-1])[0, ::EVERY].contiguous()
        loss = model(ids[:, :-1], ids[:, 1:]).item()
    prompt = ids[0, :PROMPT].tolist()
    silent = types.SimpleNamespace(encode_special=lambda text: -1, get_bos_token_id=lambda: -1)  # no stop token
    answers, _ = engine.Engine(model, silent).generate_batch(prompt, max_tokens=ANSWER, temperature=0.0)
    long_ids = torch.randint(0, SIZES["vocab_size"], (1, LONG), generator=generator)
    with torch.no_grad():
        long_logits = model(long_ids)[0, SIZES["sequence_len"] + 1 :: EVERY].contiguous()
    (given.out / "logits.safetensors").unlink(missing_ok=True)
    tensor_file.write(given.out / "logits.safetensors", {"logits": logits, "long_logits": long_logits})
    commit = subprocess.check_output(["git", "-C", str(given.nanochat), "rev-parse", "HEAD"], text=True).strip()
    plain = rustbpe.Tokenizer()  # the trained tokenizer again, because only tiktoken encodes with the stored one
    plain.train_from_iterator(
        iter([text]), SIZES["vocab_size"] - len(tokenizer.SPECIAL_TOKENS), pattern=tokenizer.SPLIT_PATTERN
    )
    recorded = {
        "commit": commit,
        "loss": loss,
        "ids": ids[0].tolist(),
        "long_ids": long_ids[0].tolist(),
        "answer": answers[0][PROMPT:],
        "text": text[:TEXT],
        "text_ids": plain.encode(text[:TEXT]),
    }
    (given.out / "recorded.json").write_text(json.dumps(recorded) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
