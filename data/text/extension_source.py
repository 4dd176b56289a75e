"""Documents of a user's extension: texts, or dicts of FineWeb's columns, yielded by its function `source()`.

A single process reads all documents from the first, in every run. The order must be the same each time, because a
resumed run skips documents by count.
"""

import difflib
from collections.abc import Iterator, Mapping
from typing import Any

from data.errors import DataError, InputError
from data.text.documents import COLUMNS, Document
from store.extensions import Extension, ExtensionError, of_text
from store.extensions.run import error_with_line, function


def documents(name: str, code: str) -> Iterator[Document]:
    """Yield the documents. Raises InputError, with the extension's line, for an error or an invalid document."""
    extension = of_text(code, name)
    try:
        made = function(extension, "source")()
        for number, one in enumerate(_iterated(extension, made)):
            yield _document(extension, number, one)
    except ExtensionError as error:
        raise InputError(str(error)) from error
    except (DataError, KeyboardInterrupt, GeneratorExit):
        raise
    except BaseException as error:  # includes SystemExit: a source that exits early must not look complete
        raise InputError(error_with_line(extension, error)) from error


def _iterated(extension: Extension, made: Any) -> Iterator[Any]:
    if isinstance(made, (str, bytes, Mapping)) or not hasattr(made, "__iter__"):
        kind = type(made).__name__
        raise InputError(
            f"{extension.place('source')}: source() returned {kind}; expected texts, one at a time: use yield"
        )
    return iter(made)


def _document(extension: Extension, number: int, one: Any) -> Document:
    row = {"text": one} if isinstance(one, str) else one
    if not isinstance(row, Mapping) or not isinstance(row.get("text"), str):
        said = "a mapping without a text" if isinstance(row, Mapping) else f"a {type(one).__name__}"
        raise InputError(
            f"{extension.place('source')}: document {number + 1} of source() is {said}; expected a text, or a "
            "dictionary with `text`"
        )
    if unknown := [str(key) for key in row if key not in ("text", *COLUMNS)]:
        near = difflib.get_close_matches(unknown[0], COLUMNS, 1)
        hint = f"did you mean {near[0]!r}?" if near else f"known: text, {', '.join(COLUMNS)}"
        raise InputError(f"{extension.place('source')}: document {number + 1} of source() has {unknown[0]!r}; {hint}")
    values = dict(row)
    values["id"] = values.get("id") or f"{extension.name}:{number}"
    return Document(**values)
