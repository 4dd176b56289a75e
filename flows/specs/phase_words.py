"""The parser of phase options: `sft.optimizer.lr=1e-3` on the command line, or nested in a file.

Both forms become the text of each option by path. `trainer.records.phase_options` parses the texts by the record of the
phase.
"""

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from infra.errors import UsageError


def read(words: Sequence[str]) -> Mapping[str, str]:
    """Return the text of each option by path; the last of repeated options wins. Raise UsageError."""
    found: dict[str, str] = {}
    for word in words:
        path, equals, text = word.partition("=")
        if not equals or "." not in path.strip(".") or "" in path.split("."):
            raise UsageError(f"--set {word}: expected PHASE.FIELD=VALUE, such as sft.optimizer.lr=1e-3")
        found[path] = text
    return MappingProxyType(found)


def flatten(where: str, nested: Any) -> list[str]:
    """Return the options nested under `phases` in a file as words. Raise UsageError with the location."""
    return list(_words(where, "", nested))


def _words(where: str, path: str, value: Any) -> Iterable[str]:
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _words(f"{where}.{key}", f"{path}.{key}" if path else str(key), inner)
    elif "." not in path:
        raise UsageError(f"{where}: expected options by their names, such as `phases: {{sft: {{steps: 100}}}}`")
    elif isinstance(value, list) and all(isinstance(one, (int, float, str)) for one in value):
        yield f"{path}={','.join(map(str, value))}"
    elif value is None or isinstance(value, (bool, int, float, str)):
        yield f"{path}={'null' if value is None else value}"
    else:
        raise UsageError(f"{where}: expected a word, a number or a list of them, not {value!r}")
