"""Options of phases in words: `sft.optimizer.lr=1e-3` as it is typed, or nested as a file has them.

Both become the same: the text of each option by its path. What the texts mean is told by the phase's record, which
`trainer.records.phase_options` reads.
"""

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from infra.errors import UsageError


def read(words: Sequence[str]) -> Mapping[str, str]:
    """Return the text of each option by its path; of an option that is given twice, the last. Raises UsageError."""
    found: dict[str, str] = {}
    for word in words:
        path, equals, text = word.partition("=")
        if not equals or "." not in path.strip(".") or "" in path.split("."):
            raise UsageError(f"--set {word}: expected PHASE.FIELD=VALUE, such as sft.optimizer.lr=1e-3")
        found[path] = text
    return MappingProxyType(found)


def flatten(where: str, nested: Any) -> list[str]:
    """Return the words of the options that a file has under `phases`. Raises UsageError, with the place."""
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
