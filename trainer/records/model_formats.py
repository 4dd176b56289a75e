"""Formats of checkpoint folders that packs import, in addition to the Hugging Face folders that the core reads.

    packs.entries("model_formats")  ->  ModelFormat: inspects a folder, and names the converter

Light to import: no torch here. Planning inspects folders; the step `import` loads the converter by name.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from data.errors import ConfigError
from store import packs
from trainer.records.model_config import ModelConfig

KIND = "model_formats"


@dataclass(frozen=True, kw_only=True)
class ModelFormat:
    """A format of checkpoint folders. The functions take a folder, and the file name returned by `find`."""

    about: str
    """Phrase for messages: the format, and in parentheses the files by which the format is recognized."""
    find: Callable[[Path], str]
    """Returns the name of the weights file in a folder; "" = the folder has a different format."""
    shape: Callable[[Path, str], ModelConfig]
    """Returns the shape of the model. Raises ConfigError for a model that the project's decoder does not support."""
    tokenizer: Callable[[Path], Path | None]
    """Returns the tokenizer file of a folder; None = no tokenizer."""
    content: Callable[[Path, str], str]
    """Returns a digest of the content of a folder."""
    convert: str
    """Name of the function `(ImportSpec, folder, out) -> out` as "module:attribute"; writes a Hugging Face folder."""
    tokenizer_file: str
    """Name of a tokenizer file in this format."""
    tokenizer_places: str
    """Phrase for messages: the places of the tokenizer file."""
    convert_tokenizer: str
    """Name of the function `(file, out) -> out` as "module:attribute"; writes a folder with `tokenizer.json`."""


def installed() -> dict[str, ModelFormat]:
    """Return the formats of the installed packs by name."""
    return {name: packs.load(where) for name, where in packs.entries(KIND).items()}


def find_format(name: str) -> ModelFormat:
    """Return the format of this name. Raises ConfigError with the name of a missing pack."""
    where = packs.entries(KIND).get(name)
    if where is None:
        raise ConfigError(packs.missing_pack_message(KIND, name) or f"no pack has the model format {name!r}")
    found: ModelFormat = packs.load(where)
    return found


def detect(folder: Path) -> tuple[str, str]:
    """Return the format of a folder and the name of the weights file, or ("", "") for an unknown folder."""
    return next(((name, file) for name, one in installed().items() if (file := one.find(folder))), ("", ""))


def absent() -> Sequence[str]:
    """Return a message for each format of a pack not installed, with the name of the pack."""
    names = [name for words in packs.known().values() for name in words.get(KIND, ())]
    return [said for name in names if (said := packs.missing_pack_message(KIND, name))]


def code_of(name: str) -> tuple[str, ...]:
    """Return the folder with the import code for this format; () for "". Raises ConfigError."""
    if not name:
        return ()
    find_format(name)
    return ("/".join(packs.entries(KIND)[name].split(".")[:2]),)
