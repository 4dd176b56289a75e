"""The tokenizer and the chat template of an adapter, compared with those of the served model.

An engine serves each adapter with the tokenizer and the chat template of the model, so an adapter of other ones would
answer wrongly without an error.
"""

import re
import tempfile
from collections.abc import Iterable
from pathlib import Path

from data.errors import ConfigError
from packs.adapters.control.imported_adapter import OURS, inner_folder
from serve.engine import models
from store.artifacts import tokenizer_files, vocabulary
from store.artifacts.tokenizer_files import TOKENIZER_CONFIG
from store.artifacts.vocabulary import TOKENIZER
from store.backends.backend import open_place
from store.untrusted_input import UnusableDocument

# Marks of the answers of an assistant, for the loss of a training. They render as nothing.
_MARKS = re.compile(r"{%-?\s*(end)?generation\s*-?%}")


def check(adapter: str, model: str) -> None:
    """Raise ConfigError for an adapter with another vocabulary or chat template than the model.

    Both are folders or addresses. Files that an adapter lacks are not compared. Raises UnusableDocument, StoreError.
    """
    with tempfile.TemporaryDirectory(prefix="slipway-") as scratch:
        theirs = _words(adapter, Path(scratch, "adapter"))
        template = tokenizer_files.template_of(theirs)
        if not template and not (theirs / TOKENIZER).is_file():
            return
        ours = _words(model, Path(scratch, "model"))
        if wrong := vocabulary.difference(theirs, ours):
            wrong = wrong.replace(str(ours), model)
            raise ConfigError(
                f"the adapter was trained with another vocabulary: {wrong}. An engine uses the vocabulary of the "
                "model; serve the model of the training, or the merged model (inv export NAME --merge)"
            )
        own = tokenizer_files.template_of(ours)
    if template and _plain(template) != _plain(own):
        raise ConfigError(
            f"the adapter has another chat template than {model}{'' if own else ', which has none'}. An engine uses "
            "the template of the model; serve the model of the training, or the merged model (inv export NAME "
            "--merge). If the difference is harmless, serve a copy of the adapter without the template"
        )


def _plain(template: str) -> str:
    return _MARKS.sub("", template).strip()


def _words(place: str, scratch: Path) -> Path:
    """Return a folder with the tokenizer and the templates of a folder or an address."""
    if "://" not in place:
        return Path(place)
    there = open_place(place)
    at = there.current_revision()
    listed = there.listing(at=at)
    inside = inner_folder(listed) or (f"{OURS}/" if f"{OURS}/{models.CONFIG}" in listed else "")
    for name in _files(one.removeprefix(inside) for one in listed if one.startswith(inside)):
        content = b""
        for piece in there.read_chunks(f"{inside}{name}", at):
            content += piece
            if len(content) > vocabulary.MOST_BYTES:
                raise UnusableDocument(f"{place}: {name} has more than {vocabulary.MOST_BYTES} bytes")
        path = scratch / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return scratch


def _files(names: Iterable[str]) -> list[str]:
    there = set(names)
    wanted = [TOKENIZER, TOKENIZER_CONFIG, *tokenizer_files.template_paths(there).values()]
    return [one for one in wanted if one in there]
