"""What the commands of `data.py` do: text shards and a tokenizer in a folder of the user's choice."""

from pathlib import Path
from typing import Any

from infra.errors import UsageError
from scripts import steps, words
from scripts.program import print_json

MODES = {"smoke": 2_000, "prod": None}  # documents; None = all
MAX_VOCAB = 1 << 24


def shard(mode, source, packages, take, out, json, **spec):
    if mode not in MODES:
        raise UsageError(f"unknown mode {mode!r}; known: {', '.join(MODES)}")
    settings = words.settings(source=source)
    spec |= {
        "source": settings.source,
        "packages": list(filter(None, packages.split(","))),
        "take": MODES[mode] if take is None else take,
    }
    folder = Path(out or f"var/datasets/{mode}").absolute()
    tell(steps.run("shard", ("-m", "data", "text"), {"out": str(folder), "spec": spec}, settings, json), json)


def tokenizer(text, vocab_size, out, json):
    settings = words.settings()
    if not 512 <= vocab_size <= MAX_VOCAB:
        raise UsageError(f"--vocab-size is {vocab_size}; it must lie between 512 and {MAX_VOCAB}")
    if text:
        source = Path(text).expanduser().absolute()
    else:
        from trainer.plan import source_slug

        source = steps.artifact(settings, f"datasets/{source_slug(settings.source)}/text", "./inv shard --out DIR")
    folder = Path(out or "var/tokenizer").absolute()
    config = {"out": str(folder), "inputs": {"text": str(source)}, "spec": {"vocab_size": vocab_size}}
    tell(steps.run("tokenizer", ("-m", "data", "tokenizer"), config, settings, json), json)


def tell(result: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print_json(result)
    else:
        print(result["out"])
