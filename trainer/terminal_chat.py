"""The terminal chat: reads lines, runs slash commands, and streams the answers of a `Partner`.

Answers go to stdout, all other output to stderr. On a terminal, the user has line editing, a history across
conversations, and tokens per second after each answer; a pipe receives the answers only. Imports the standard library
and two modules of `store`, so engines without torch can use the module.
"""

import contextlib
import json
import os
import re
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from store import terminal

HELP = """/model [NAME]    show which model answers; with NAME: switch to NAME
/system [WORDS]  set the system prompt; /system - removes it
/save [FILE]     save the conversation in the format of training data (default: chat-DATE-TIME.jsonl)
/reset           start over: forget the conversation so far
/exit            end the conversation (or Ctrl-D); Ctrl-C ends an answer
/help            show this help
//word           say /word to the model"""
SAME = {"/?": "/help", "/new": "/reset", "/clear": "/reset", "/quit": "/exit", "/bye": "/exit"}
COMMAND = re.compile(r"/[^/\s]+(?!\S)")  # a question may begin with a path such as /etc/fstab
NO_SYSTEM = "-"
MOST_LINES = 1000  # maximum lines kept in the history


Said = Mapping[str, Any]  # role and content


class Partner(Protocol):
    """The model in a conversation."""

    name: str
    system: str
    """The system prompt, "" for none."""
    messages: list[Said]
    """The messages so far, without the system message."""
    tokens: int | None
    """Tokens of the last answer, or None if not counted."""
    recoverable_errors: tuple[type[Exception], ...]
    """Errors of `say` after which the conversation continues."""

    def stream_answer(self, words: str) -> Iterator[str]:
        """Yield the answer to a question, piece by piece; closing the iterator early keeps the partial answer."""
        ...

    def clear_history(self) -> None:
        """Clear the message history."""
        ...

    def describe(self) -> str:
        """Return a one-line description of the model."""
        ...

    def switch_model(self, name: str) -> str:
        """Switch to the model `name`; return a message about the outcome."""
        ...


@dataclass(frozen=True)
class ConversationFiles:
    """The files of a conversation: history and saved conversations."""

    history: str = ""
    """History file of typed lines; "" for none."""
    folder: str = ""
    """Folder in which /save resolves a relative path; "" for the current folder."""


NOWHERE = ConversationFiles()


def run_chat(partner: Partner, prompt: str | None = None, place: ConversationFiles = NOWHERE) -> None:
    """Ask a single `prompt`, or read questions and commands until the end of the input.

    With `prompt`, errors of `partner.say` propagate.
    """
    if prompt is not None:
        answer(partner, prompt, tells=sys.stderr.isatty())
        return
    is_typed = sys.stdin.isatty()
    lines = TypedLines(place.history)
    if is_typed:
        lines.load_history()
        print_status(f"{partner.describe()}; /help lists the commands; Ctrl-D ends the conversation")
    while (words := lines.read() if is_typed else sys.stdin.readline()) not in ("", None):
        assert words is not None
        words = words.strip()
        found = COMMAND.match(words)
        command = found and SAME.get(found[0].lower(), found[0].lower())
        if command == "/exit":
            return
        if found and command:
            run_command(partner, command, words[found.end() :].strip(), place)
        elif words:
            try:
                answer(partner, words.removeprefix("/") if words.startswith("//") else words, tells=is_typed)
            except partner.recoverable_errors as error:
                print_status(str(error))
            except KeyboardInterrupt:
                print(" ...", flush=True)


def answer(partner: Partner, words: str, tells: bool) -> None:
    """Stream the answer to stdout; if `tells`, report the speed on stderr."""
    asked = time.monotonic()
    first: float | None = None
    with contextlib.ExitStack() as reading, contextlib.closing(partner.stream_answer(words)) as pieces:  # type: ignore[type-var]
        reading.enter_context(terminal.show_while(f"{partner.name} reads"))
        for piece in pieces:
            if piece and first is None:
                first = time.monotonic()
                reading.close()
            print(piece, end="", flush=True)
    print(flush=True)
    if tells:
        now = time.monotonic()
        print_status(f"[{partner.name}: {pace(partner.tokens, now - asked, None if first is None else first - asked)}]")


def pace(tokens: int | None, took_s: float, first_s: float | None) -> str:
    """Return the speed of an answer as text.

    took_s: seconds from the question to the end; first_s: seconds to the first token, or None.
    """
    said = [f"{took_s:.2f} s"]
    if tokens is not None:
        said = [f"{tokens} token{'' if tokens == 1 else 's'} in {took_s:.2f} s"]
        said += [f"{tokens / took_s:.1f} tok/s"] if tokens and took_s > 0 else []
    return ", ".join([*said, *([] if first_s is None else [f"the first after {first_s:.2f} s"])])


def run_command(partner: Partner, command: str, rest: str, place: ConversationFiles) -> None:
    """Run a slash command and report the outcome on stderr."""
    if command == "/help":
        print_status(HELP)
    elif command == "/reset":
        partner.clear_history()
        print_status("the conversation starts over")
    elif command == "/model":
        try:
            print_status(partner.switch_model(rest) if rest else partner.describe())
        except partner.recoverable_errors as error:
            print_status(str(error))
    elif command == "/system":
        if rest:
            partner.system = "" if rest == NO_SYSTEM else rest
        system = partner.system or "none"
        print_status(f"system prompt: {system}")
    elif command == "/save":
        print_status(save(partner, rest, place.folder))
    else:
        print_status(f"{command} is not a command; the line was not sent to the model. Commands:\n{HELP}")


def save(partner: Partner, name: str, folder: str) -> str:
    """Write the conversation to a new file with mode 0600; return a message about the outcome."""
    if not partner.messages:
        return "the conversation is empty, so no file was written"
    target = Path(folder or os.curdir, Path(name or time.strftime("chat-%Y%m%d-%H%M%S.jsonl")).expanduser())
    head = [{"role": "system", "content": partner.system}] if partner.system else []
    row = json.dumps({"messages": [*head, *partner.messages]}, ensure_ascii=False) + "\n"
    try:
        descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with open(descriptor, "wb") as file:
            file.write(row.encode("utf-8", "replace"))
    except FileExistsError:
        return f"{target} already exists and was not changed. Choose a different name: /save FILE"
    except OSError as error:
        return f"{target} was not written: {error.strerror}"
    return f"{len(partner.messages)} messages saved to {target}"


class TypedLines:
    """A reader of typed lines with a persistent history file of mode 0600."""

    def __init__(self, history: str) -> None:
        self.history = history
        self.last = ""

    def load_history(self) -> None:
        """Load the history for the arrow keys, truncating a file of more than twice MOST_LINES lines."""
        try:
            import readline  # optional in some Python builds
        except ImportError:
            return
        if not self.history:
            return
        try:
            with open(self.history, encoding="utf-8", errors="surrogateescape") as file:
                known = file.read().splitlines()
        except OSError:  # first conversation; other errors are reported on the first write
            return
        if len(known) > 2 * MOST_LINES:
            known = known[-MOST_LINES:]
            self._run_history_operation(lambda: self._begin(known))
        readline.clear_history()
        for line in known[-MOST_LINES:]:
            readline.add_history(line)

    def read(self) -> str | None:
        """Return the next line, or None at the end of the input, and append the line to the history."""
        try:
            if sys.stdout.isatty():
                words = input("> ")
            else:  # keep the prompt out of stdout
                print("> ", end="", file=sys.stderr, flush=True)
                words = sys.stdin.readline()
                if not words:
                    raise EOFError
        except (EOFError, KeyboardInterrupt):
            print(file=sys.stderr, flush=True)  # end the prompt line
            return None
        line = words.strip()
        if line and line != self.last and self.history:
            self.last = line
            self._run_history_operation(lambda: self._append(line))
        return words + "\n"  # distinguishes an empty line from the end of the input

    def _append(self, line: str) -> None:
        Path(self.history).parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
        descriptor = os.open(self.history, flags, 0o600)
        with open(descriptor, "wb", buffering=0) as file:
            os.fchmod(descriptor, 0o600)
            file.write(f"{line}\n".encode("utf-8", "surrogateescape"))

    def _begin(self, lines: Sequence[str]) -> None:
        draft = f"{self.history}.{os.getpid()}.draft"
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with open(descriptor, "wb") as file:
            file.write("".join(f"{line}\n" for line in lines).encode("utf-8", "surrogateescape"))
        os.replace(draft, self.history)

    def _run_history_operation(self, act: Any) -> None:
        """Run a history operation; on OSError, report once and disable the history."""
        try:
            act()
        except OSError as error:
            print_status(f"the history of typed lines is not saved: {self.history}: {error.strerror}")
            self.history = ""


def print_status(said: str) -> None:
    terminal.clear()
    print(terminal.wrap_text(said, sys.stderr), file=sys.stderr, flush=True)
