"""Problems with verifiable answers for reinforcement learning, one per line of a .jsonl file.

This module reads and writes `Problem`s, and builds the prompt messages of a problem.
"""

import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from data.chat.conversations import Message
from data.chat.phrasing import write_lines
from data.errors import InputError
from store import untrusted_input

FILE_BYTES = 1 << 30


@dataclass(frozen=True, kw_only=True)
class Problem:
    question: str
    answer: str
    """The correct answer in the data set's format; the comparison depends on the task."""
    system: str = ""
    """System message before the question."""
    setup: str = ""
    """mbpp: code that runs before the tests."""
    tests: tuple[str, ...] = ()
    """mbpp: one assertion each."""

    def __post_init__(self) -> None:
        for name in ("question", "answer", "system", "setup"):
            if (said := getattr(self, name)) is None:
                raise ValueError(f"{name} is missing or null (NA and null in a CSV file are null)")
            if not isinstance(said, str):
                raise ValueError(f"{name} is {untrusted_input.printable_line(said)}, expected text")

    @property
    def messages(self) -> list[Message]:
        """Return the messages of the prompt."""
        system = [{"role": "system", "content": self.system}] if self.system else []
        return [*system, {"role": "user", "content": self.question}]


def write(path: Path, problems: Iterable[Problem]) -> int:
    """Write one problem per line, without empty fields; return the number of problems."""
    rows = ({key: value for key, value in asdict(one).items() if value} for one in problems)
    return write_lines(path, rows)


def read(path: Path) -> list[Problem]:
    """Return the problems of a file. Raises InputError with the number of an invalid line, or without problems."""
    found = []
    try:
        lines = untrusted_input.text_lines(path, FILE_BYTES)
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: {getattr(error, 'strerror', None) or error}") from None
    for number, line in enumerate(lines, 1):
        if line.strip():
            try:
                found.append(of_row(untrusted_input.row(line)))
            except (untrusted_input.UnusableDocument, ValueError) as error:
                raise InputError(f"{path}:{number}: {error}") from None
    if not found:
        raise InputError(f"{path}: the file holds no problems")
    return found


def of_row(row: object) -> Problem:
    """Return the problem of an untrusted row; a null field counts as absent. Raises ValueError."""
    if not isinstance(row, dict):
        raise ValueError(f"a problem must be an object with question and answer, got {type(row).__name__}")
    given: dict[str, Any] = {name: row.get(name) for name in ("question", "answer")}
    given |= {name: row[name] for name in ("system", "setup", "tests") if row.get(name) is not None}
    if type(given["answer"]) in (int, float):
        # pandas writes NaN for null.
        given["answer"] = str(given["answer"]) if math.isfinite(given["answer"]) else None
    tests = given.pop("tests", [])
    if not isinstance(tests, list) or not all(isinstance(one, str) for one in tests):
        raise ValueError("tests is not a list of texts")
    found = Problem(**given, tests=tuple(tests))
    if blank := [name for name in ("question", "answer") if not given[name].strip()]:
        raise ValueError(f"{blank[0]} is blank")
    return found
