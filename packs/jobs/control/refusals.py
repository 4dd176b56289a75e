"""Collector of the refusals of a job file: one answer names every line to correct."""

import contextlib
import re
from collections.abc import Iterator

from flows.runs.work_kinds import FileFinding
from infra.errors import UsageError


class Refusals:
    """The refused lines of a file."""

    def __init__(self, where: str) -> None:
        self.where = where
        """File name for error messages."""
        self.found: list[FileFinding] = []
        self.hidden: dict[str, str] = {}
        """Replacement text, such as `$HF_TOKEN`, by value of a secret."""

    def add(self, line: int, text: str) -> None:
        """Collect a refusal, with the names of secrets in place of the values."""
        for value in sorted(self.hidden, key=len, reverse=True):
            text = text.replace(value, self.hidden[value])
        if (one := FileFinding(line, text)) not in self.found:
            self.found.append(one)

    @contextlib.contextmanager
    def collecting(self) -> Iterator[None]:
        """Collect the UsageError of the body, with the line number at the beginning of the message."""
        try:
            yield
        except RefusedLines as error:
            for one in error.found:
                self.add(one.line, one.text)
        except UsageError as error:
            said = str(error).removeprefix(f"{self.where}: ")
            numbered = re.match(r"line (\d+): ", said)
            self.add(int(numbered[1]) if numbered else 1, said[numbered.end() :] if numbered else said)

    def raise_all(self) -> None:
        """Raise UsageError with all collected refusals, if any."""
        if self.found:
            raise RefusedLines(self.where, self.found)


class RefusedLines(UsageError):
    """The refusals of a file, ordered by line."""

    def __init__(self, where: str, found: list[FileFinding]) -> None:
        self.found = sorted(found, key=lambda one: one.line)
        lines = [f"line {one.line}: {one.text}" for one in self.found]
        many = f"{where}: {len(lines)} lines to correct\n  " + "\n  ".join(lines)
        super().__init__(many if lines[1:] else f"{where}: {lines[0]}")
