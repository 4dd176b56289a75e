"""Problems with verifiable answers for reinforcement learning, one per line of a .jsonl file.

This module reads and writes `Problem`s, and builds the prompt messages of a problem.
"""

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

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
    """Return the problem of an untrusted row. Raises ValueError."""
    if not isinstance(row, dict) or not {"question", "answer"} <= row.keys():
        raise ValueError("a problem must be an object with question and answer")
    words = {name: row[name] for name in ("question", "answer", "system", "setup") if name in row}
    if type(words["answer"]) in (int, float):
        words["answer"] = str(words["answer"])
    if odd := [name for name, one in words.items() if not isinstance(one, str)]:
        raise ValueError(f"{odd[0]} is no text")
    tests = row.get("tests", [])
    if not isinstance(tests, list) or not all(isinstance(one, str) for one in tests):
        raise ValueError("tests is not a list of texts")
    return Problem(**words, tests=tuple(tests))
