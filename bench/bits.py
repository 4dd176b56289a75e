"""Measure file size and decoding speed of 1.58-bit models against other types, in llama.cpp and at real shapes.

Run in the environment `llama-cpp` (or any environment with xllamacpp and gguf): python -m bench.bits
--tokenizer FOLDER [--shapes 135m,0.6b] [--types tq2_0,q8_0,f16,bf16] [--new 64] [--rounds 3]. Weights are random,
because size and speed do not depend on values; for the quality of trained models see bench/engines/answers.py and the
sweep ablation_saliency_toy. The types take turns within each round. The table has CPU seconds, on which other programs
have little effect. --tokenizer is any folder with a tokenizer.json of Slipway; ids are padded to the size of the shape.
"""

import argparse
import json
import os
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from trainer.engines import gguf_file
from trainer.engines.llama_cpp import LlamaCpp
from trainer.model.huggingface import config_json, shapes
from trainer.records.model_config import ModelConfig, Ternary

PROMPT = 16  # ids


def shape(name: str) -> ModelConfig:
    """Return a shape with rows that TQ2_0 supports: Llama of some 135M with 32k ids, or Qwen3-0.6B."""
    same: dict[str, Any] = {"max_position_embeddings": 2048, "ternary": Ternary()}
    if name == "135m":
        return ModelConfig(
            vocab_size=32_768,
            hidden_size=768,
            intermediate_size=3072,
            num_hidden_layers=12,
            num_attention_heads=12,
            num_key_value_heads=12,
            head_dim=64,
            sub_norm=True,
            **same,
        )
    return ModelConfig(
        vocab_size=151_936,
        hidden_size=1024,
        intermediate_size=3072,
        num_hidden_layers=28,
        num_attention_heads=16,
        num_key_value_heads=8,
        head_dim=128,
        qk_norm=True,
        rope_theta=1e6,
        rms_norm_eps=1e-6,
        **same,
    )


def random_folder(config: ModelConfig, tokenizer: Path, folder: Path) -> None:
    """Write a Hugging Face folder of this shape with random master weights, in float16 to save disk."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config_json(config, "float16", 0, [0])))
    for name in ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja"):
        if (tokenizer / name).exists():
            (folder / name).symlink_to((tokenizer / name).absolute())
    header: dict[str, Any] = {}
    offset, chance = 0, np.random.default_rng(1)
    for name, sides in shapes(config):
        size = 2 * int(np.prod(sides))
        header[name] = {"dtype": "F16", "shape": list(sides), "data_offsets": [offset, offset + size]}
        offset += size
    words = json.dumps(header).encode()
    with (folder / "model.safetensors").open("wb") as file:
        file.write(struct.pack("<Q", len(words)) + words)
        for _, sides in shapes(config):
            spread = sides[-1] ** -0.5
            values = chance.standard_normal(sides, np.float32) * spread if len(sides) > 1 else np.ones(sides)
            file.write(values.astype(np.float16).tobytes())


def decoded(gguf: Path, config: ModelConfig, new: int) -> tuple[float, float]:
    """Return tokens per CPU second and tokens per wall-clock second for an answer."""
    engine = LlamaCpp(gguf, 512, temperature=0.0, top_k=1)
    prompt = list(range(100, 100 + PROMPT))
    list(engine.tokens(prompt, (), 2))  # Warm-up: maps the weights and caches the prompt.
    cpu, wall = time.process_time(), time.perf_counter()
    count = len(list(engine.tokens(prompt, (), new)))
    return count / (time.process_time() - cpu), count / (time.perf_counter() - wall)


def main() -> None:
    flags = argparse.ArgumentParser(description=__doc__)
    flags.add_argument("--tokenizer", type=Path, required=True)
    flags.add_argument("--shapes", default="135m,0.6b")
    flags.add_argument("--types", default="tq2_0,q8_0,f16,bf16")
    flags.add_argument("--new", type=int, default=64)
    flags.add_argument("--rounds", type=int, default=3)
    flags.add_argument("--one", type=Path, help="internal: only decode from this file")
    given = flags.parse_args()
    kinds = given.types.split(",")
    if given.one:
        print(json.dumps(decoded(given.one, shape(given.shapes), given.new)))
        return
    threads = os.environ.get("OMP_NUM_THREADS") or len(os.sched_getaffinity(0))
    for name in given.shapes.split(","):
        config = shape(name)
        with tempfile.TemporaryDirectory() as scratch:
            folder = Path(scratch) / "hf"
            random_folder(config, given.tokenizer, folder)
            files = {kind: Path(scratch) / f"{kind}.gguf" for kind in kinds}
            for kind, file in files.items():
                gguf_file.write(folder, file, kind)
            rates: dict[str, list[tuple[float, float]]] = {kind: [] for kind in kinds}
            for _ in range(given.rounds):
                for kind, file in files.items():
                    words = [sys.executable, "-m", "bench.bits", "--one", str(file), "--shapes", name]
                    words += ["--tokenizer", str(given.tokenizer), "--new", str(given.new)]
                    done = subprocess.run(words, capture_output=True, text=True, check=False)
                    if done.returncode:
                        raise SystemExit(f"{kind} of {name}: {done.stderr[-900:]}")
                    rates[kind].append(tuple(json.loads(done.stdout.splitlines()[-1])))
            sizes = {kind: file.stat().st_size for kind, file in files.items()}
        print(
            f"\n{name}: {config.num_params:,} parameters, {threads} threads, medians of {given.rounds} rounds, "
            f"load {os.getloadavg()[0]:.0f}\n"
        )
        print("| matrices | MB | of f16 | tokens per CPU s | of f16 | tokens/s |\n|---|---|---|---|---|---|")
        middle = {kind: [statistics.median(one) for one in zip(*some, strict=True)] for kind, some in rates.items()}
        for kind in kinds:
            of = (
                [f"{sizes[kind] / sizes['f16']:.2f}", f"{middle[kind][0] / middle['f16'][0]:.2f}"]
                if "f16" in kinds
                else ["", ""]
            )
            cpu, wall = middle[kind]
            print(f"| {kind} | {sizes[kind] / 1e6:.0f} | {of[0]} | {cpu:.1f} | {of[1]} | {wall:.1f} |", flush=True)


if __name__ == "__main__":
    main()
