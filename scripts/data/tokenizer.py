"""The commands `tokenizer.train` and `tokenizer.eval`: a tokenizer in a folder, and how well it compresses text."""

from pathlib import Path

from flows.planning.training_plan import text_steps
from infra.errors import UsageError
from infra.settings import Settings
from scripts.cli import context, local_step, render
from scripts.cli.invoke_patch import print_json
from scripts.data.flags import TokenizerEvalFlags, TokenizerFlags
from scripts.models import scores_text
from store.artifacts.artifacts import Store

LEAST_VOCAB, DEFAULT_VOCAB, MOST_VOCAB = 256 + 9, 4096, 1 << 24
DEFAULT_OUT = "var/tokenizer"


def tokenizer(spec: TokenizerFlags) -> None:
    vocab_size = spec.vocab_size
    settings = context.settings(source=spec.source)
    folder = Path(spec.out or DEFAULT_OUT).absolute()
    if spec.tokenizer_json and (spec.text or spec.source or spec.retrain or vocab_size is not None):
        makers = "--text, --source, --vocab-size, --retrain"
        raise UsageError(f"--tokenizer-json takes what was made elsewhere; {makers} make; choose one")
    vocab_size = DEFAULT_VOCAB if vocab_size is None else vocab_size
    if spec.tokenizer_json:
        config = {"out": str(folder), "spec": {"path": str(Path(spec.tokenizer_json).expanduser().absolute())}}
        result = local_step.run("tokenizer", ("-m", "data", "adopt"), config, settings, spec.json)
    else:
        check_size(vocab_size)
        inputs = {"text": str(text_folder(settings, spec.source, spec.text, spec.json))}
        made_by = {"vocab_size": vocab_size, "retrain": spec.retrain, "others": of_the_store(settings),
                   "partial": spec.partial}  # fmt: skip
        config = {"out": str(folder), "inputs": inputs, "spec": made_by}
        result = local_step.run("tokenizer", ("-m", "data", "tokenizer"), config, settings, spec.json)
    if spec.json:
        print_json(result)
    else:
        render.say(f"tokenizer: {'reused' if result['reused'] else 'made'}, {result['vocab_size']} ids")
        print(result["out"])


def check_size(vocab_size: int) -> None:
    """Raise UsageError for a size that a vocabulary cannot have."""
    if not LEAST_VOCAB <= vocab_size <= MOST_VOCAB:
        seen = "the 256 bytes and the nine chat specials alone are 265"
        raise UsageError(f"--vocab-size is {vocab_size}; {seen}, and {MOST_VOCAB} is the most")


def of_the_store(settings: Settings) -> list[str]:
    """Return the folder of the tokenizer that `inv launch` has made here of the same text and settings, as a list."""
    store = Store(settings.store)
    found = None if "://" in str(settings.store) else store.check("tokenizer")
    return [] if found is None or found.problem else [str(store.path("tokenizer", found.fingerprint))]


def tokenizer_eval(spec: TokenizerEvalFlags) -> None:
    settings = context.settings(source=spec.source)
    folder = tokenizer_folder(settings, spec.tokenizer)
    inputs = {"tokenizer": str(folder), "text": str(text_folder(settings, spec.source, spec.text, spec.json))}
    given = str(Path(spec.peers).expanduser().absolute()) if spec.peers else ""
    compared = {"peers": given, "download": spec.download, "partial": spec.partial}
    config = {"out": inputs["tokenizer"], "inputs": inputs, "spec": compared}
    found = local_step.run("compression", ("-m", "data", "compression"), config, settings, spec.json)
    if spec.json:
        print_json(found)
    else:
        scores_text.show_compression(found)


def text_folder(settings: Settings, source: str, text: str, quiet: bool) -> Path:
    """Return the text shards that are meant: a folder, or the store's of the source, made when they are missing."""
    if text and source:
        raise UsageError("--text and --source are two texts; choose one")
    if text:
        return Path(text).expanduser().absolute()
    artifact, due = text_steps(settings)
    for step in due:
        local_step.run(step.name, step.words, step.config, settings, quiet)
    return local_step.artifact(settings, artifact, "./inv launch --phase base")


def tokenizer_folder(settings: Settings, folder: str) -> Path:
    """Return the tokenizer that is meant. Raises UsageError when there is none."""
    if folder:
        return Path(folder).expanduser().absolute()
    made = Path(DEFAULT_OUT).absolute()
    return (
        made if (made / "tokenizer.json").is_file() else local_step.artifact(settings, "tokenizer", "./inv tokenizer")
    )
