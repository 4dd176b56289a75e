"""The command `tokenizer.train`: a byte-level BPE tokenizer, trained on text shards."""

from dataclasses import dataclass
from pathlib import Path

from infra.errors import UsageError
from infra.flags import flag
from infra.settings import Settings
from scripts.cli import context, local_step, render
from scripts.cli.command import command
from scripts.cli.flags import Output
from scripts.cli.render import print_json
from scripts.data.tokenizer_text import DEFAULT_OUT, text_folder
from store.artifacts.artifacts import Store

LEAST_VOCAB, DEFAULT_VOCAB, MOST_VOCAB = 256 + 9, 4096, 1 << 24


@dataclass(frozen=True, kw_only=True)
class TokenizerFlags(Output):
    source: str = flag("", "pydocs, fineweb, or a path; missing text is made in the store")
    text: str = flag("", "folder of text shards from `inv shard`, instead of --source", unit="FOLDER")
    partial: bool = flag(False, "use the complete shards of an interrupted --text folder")
    vocab_size: int | None = flag(
        None, "vocabulary size, including the 256 bytes and nine special tokens of chats (4096)"
    )
    retrain: bool = flag(False, "train again even if the tokenizer exists")
    tokenizer_json: str = flag(
        "",
        "use this tokenizer.json unchanged, without training; the last nine ids must be the special tokens of chats",
        unit="FILE",
    )
    out: str = flag(
        "", "folder for tokenizer.json, the related tokenizer files, training.yaml and training.toml", unit="FOLDER"
    )


@command(record=TokenizerFlags, world="", env=True, example="inv tokenizer --vocab-size 4096 --out var/tokenizer")
def train(spec: TokenizerFlags) -> None:
    """Train a byte-level BPE tokenizer on text shards.

    An existing tokenizer of the same text and settings is reused.
    """
    vocab_size = spec.vocab_size
    settings = context.settings(source=spec.source)
    folder = Path(spec.out or DEFAULT_OUT).absolute()
    if spec.tokenizer_json and (spec.text or spec.source or spec.retrain or vocab_size is not None):
        makers = "--text, --source, --vocab-size, --retrain"
        raise UsageError(f"--tokenizer-json uses a finished tokenizer, but {makers} train a tokenizer; choose one")
    vocab_size = DEFAULT_VOCAB if vocab_size is None else vocab_size
    if spec.tokenizer_json:
        config = {"out": str(folder), "spec": {"path": str(Path(spec.tokenizer_json).expanduser().absolute())}}
        result = local_step.run("tokenizer", ("-m", "data", "adopt"), config, settings, spec.json)
    else:
        check_size(vocab_size)
        inputs = {"text": str(text_folder(settings, spec.source, spec.text, spec.json))}
        made_by = {
            "vocab_size": vocab_size,
            "retrain": spec.retrain,
            "others": of_the_store(settings),
            "partial": spec.partial,
        }
        config = {"out": str(folder), "inputs": inputs, "spec": made_by}
        result = local_step.run("tokenizer", ("-m", "data", "tokenizer"), config, settings, spec.json)
    if spec.json:
        print_json(result)
    else:
        render.say(f"tokenizer: {'reused' if result['reused'] else 'made'}, {result['vocab_size']} ids")
        print(result["out"])


def check_size(vocab_size: int) -> None:
    """Raise UsageError for a vocabulary size out of range."""
    if not LEAST_VOCAB <= vocab_size <= MOST_VOCAB:
        seen = "the 256 bytes and nine special tokens need 265"
        raise UsageError(f"--vocab-size is {vocab_size}; {seen}, and the maximum is {MOST_VOCAB}")


def of_the_store(settings: Settings) -> list[str]:
    """Return a list with the store's local tokenizer folder, a candidate for reuse; [] without a tokenizer."""
    store = Store(settings.store)
    found = None if "://" in str(settings.store) else store.check("tokenizer")
    return [] if found is None or found.problem else [str(store.path("tokenizer", found.fingerprint))]
