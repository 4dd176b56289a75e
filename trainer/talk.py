"""What is typed into a conversation, and which of it is no question. Standard library only."""

import contextlib
import re
import sys
from collections.abc import Callable, Iterator

HELP = """/reset  forget what was said until here
/exit   end the conversation (or Ctrl-D)
/help   this
//word  say /word to the model"""
SAME = {"/?": "/help", "/new": "/reset", "/clear": "/reset", "/quit": "/exit", "/bye": "/exit"}
COMMAND = re.compile(r"/[^/\s]+(?!\S)")  # /etc/fstab is none


def questions(forget: Callable[[], object]) -> Iterator[str]:
    """Yield what goes to the model, line by line, until the input ends or /exit. `forget` is called for /reset."""
    prompt = "> " if sys.stdin.isatty() else ""
    if prompt:
        with contextlib.suppress(ImportError):  # line editing; some Pythons are built without
            import readline  # noqa: F401
        _tell("/help says what else can be typed; Ctrl-D ends the conversation")
    while True:
        try:
            words = input(prompt).strip()
        except (EOFError, KeyboardInterrupt):
            if prompt:
                print()  # what comes next does not stand behind it
            return
        found = COMMAND.match(words)
        command = found and SAME.get(found[0].lower(), found[0].lower())
        if not command:
            if words:
                yield words.removeprefix("/") if words.startswith("//") else words
        elif command == "/exit":
            return
        elif command == "/reset":
            forget()
            _tell("what was said is forgotten")
        else:
            _tell(
                HELP
                if command == "/help"
                else f"{command} is no command, and was not sent to the model; there are:\n{HELP}"
            )


def _tell(said: str) -> None:
    print(said, file=sys.stderr, flush=True)
