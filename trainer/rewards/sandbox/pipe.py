"""The pipe between a sandboxed process and the trainer, as the sandboxed process has it: one JSON value a line."""

import json
import os
from typing import Any


class JsonPipe:
    """Questions come on one descriptor, answers go to another one."""

    def __init__(self, questions: int, answers: int) -> None:
        self.questions, self.answers, self.rest = questions, answers, b""

    def read(self) -> Any:
        """Return the next value. Raises EOFError at the end."""
        while b"\n" not in self.rest:
            more = os.read(self.questions, 1 << 16)
            if not more:
                raise EOFError
            self.rest += more
        line, _, self.rest = self.rest.partition(b"\n")
        return json.loads(line)

    def write(self, value: Any) -> None:
        """Write a value."""
        words = json.dumps(value).encode() + b"\n"
        while words:
            words = words[os.write(self.answers, words) :]


def problem(error: BaseException) -> dict[str, str]:
    """Return what an exception says, with the name of its class: both are the words of untrusted code."""
    try:
        words = str(error)
    except BaseException:  # a class of the answer's
        words = "it has no words"
    return {"error": f"{type(error).__name__}: {words}"[:200], "raised": type(error).__name__[:60]}
