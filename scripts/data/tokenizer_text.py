"""The text that a tokenizer is made of or measured on, and its usual folder."""

from pathlib import Path

from flows.planning.training_plan import text_steps
from infra.errors import UsageError
from infra.settings import Settings
from scripts.cli import local_step

DEFAULT_OUT = "var/tokenizer"


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
