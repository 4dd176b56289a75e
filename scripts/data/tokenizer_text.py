"""Input text for training or measuring a tokenizer, and the default tokenizer folder."""

from pathlib import Path

from flows.planning.training_plan import text_steps
from infra.errors import UsageError
from infra.settings import Settings
from scripts.cli import local_step

DEFAULT_OUT = "var/tokenizer"


def text_folder(settings: Settings, source: str, text: str, quiet: bool) -> Path:
    """Return a folder of text shards: `text`, or the store's shards of the source, made if missing.

    Raises UsageError if both `text` and `source` are given.
    """
    if text and source:
        raise UsageError("--text and --source exclude each other; choose one")
    if text:
        return Path(text).expanduser().absolute()
    artifact, due = text_steps(settings)
    for step in due:
        local_step.run(step.name, step.words, step.config, settings, quiet)
    return local_step.require_artifact(settings, artifact, "./inv launch --phase base")
