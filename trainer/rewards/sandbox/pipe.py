"""Pipe to the trainer from the side of a sandboxed process: one JSON value per line."""

import json
import os
from typing import Any


class JsonPipe:
    """Pair of descriptors: questions arrive on the first, answers leave on the second."""

    def __init__(self, questions: int, answers: int) -> None:
        self.questions, self.answers, self.rest = questions, answers, b""

    def read(self) -> Any:
        """Return the next value. Raises EOFError at the end of the questions."""
        while b"\n" not in self.rest:
            more = os.read(self.questions, 1 << 16)
            if not more:
                raise EOFError
            self.rest += more
        line, _, self.rest = self.rest.partition(b"\n")
        return json.loads(line)

    def write(self, value: Any) -> None:
        """Write a value as a JSON line."""
        words = json.dumps(value).encode() + b"\n"
        while words:
            words = words[os.write(self.answers, words) :]


def problem(error: BaseException) -> dict[str, str]:
    """Return the message and the class name of an exception, both shortened; both are untrusted text."""
    try:
        words = str(error)
    except BaseException:  # an exception class of the answer
        words = "it has no words"
    return {"error": f"{type(error).__name__}: {words}"[:200], "raised": type(error).__name__[:60]}
