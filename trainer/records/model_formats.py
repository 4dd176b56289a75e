"""Formats of checkpoint folders that packs import, beside the Hugging Face folders that the core reads.

    packs.entries("model_formats")  ->  ModelFormat: inspects a folder, and names its converter

Light to import: no torch here. Planning inspects folders; the step `import` loads the converter by its name.
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
    """A format of checkpoint folders. Its functions get a folder, and the name of the file that `find` returned."""

    about: str
    """Phrase for messages: the format, and in parentheses the files by which a folder of this format is known."""
    find: Callable[[Path], str]
    """Returns the name of the file of weights in a folder; "" = the folder has another format."""
    shape: Callable[[Path, str], ModelConfig]
    """Returns the shape of the model. Raises ConfigError for a model that our decoder cannot represent."""
    tokenizer: Callable[[Path], Path | None]
    """Returns the file of the tokenizer that belongs to a folder; None = there is none."""
    content: Callable[[Path, str], str]
    """Returns a digest of the content of a folder."""
    convert: str
    """Name of the function `(ImportSpec, folder, out) -> out` as "module:attribute"; makes a Hugging Face folder."""
    tokenizer_file: str
    """Name of a file that holds a tokenizer of this format."""
    tokenizer_places: str
    """Phrase for messages: the places of that file."""
    convert_tokenizer: str
    """Name of the function `(file, out) -> out` as "module:attribute"; makes a folder with `tokenizer.json`."""


def installed() -> dict[str, ModelFormat]:
    """Return the formats of the installed packs by name."""
    return {name: packs.load(where) for name, where in packs.entries(KIND).items()}


def known(name: str) -> ModelFormat:
    """Return the format of this name. Raises ConfigError with the name of the pack that is not there."""
    where = packs.entries(KIND).get(name)
    if where is None:
        raise ConfigError(packs.lacking(KIND, name) or f"no pack has the model format {name!r}")
    found: ModelFormat = packs.load(where)
    return found


def detect(folder: Path) -> tuple[str, str]:
    """Return the format of a folder and its file of weights; ("", "") = no installed pack knows the folder."""
    return next(((name, file) for name, one in installed().items() if (file := one.find(folder))), ("", ""))


def absent() -> Sequence[str]:
    """Return for each format whose pack is not there which pack that is, in words."""
    names = [name for words in packs.known().values() for name in words.get(KIND, ())]
    return [said for name in names if (said := packs.lacking(KIND, name))]


def code_of(name: str) -> tuple[str, ...]:
    """Return the folder with the code that imports models of this format, () for "". Raises ConfigError."""
    if not name:
        return ()
    known(name)
    return ("/".join(packs.entries(KIND)[name].split(".")[:2]),)
