"""Framing of a remote command's output between random marks, which excludes all other output of the machine.

A `sh` script becomes a line with the same meaning in every login shell, and the readers strip all output of start-up
files, wrappers and forced commands around the script's output. The line is a single quoted word of harmless characters,
so csh, fish and zsh read the line as `sh` does, and a wrapper may divide the line into words and join the words again.
The line contains each mark in two halves, so a shell that echoes commands prints no mark. The script's shell reports
its process id and exit code next to the marks.
"""

import re
import secrets
import threading
from dataclasses import dataclass, field

TALK_BYTES = 1 << 20  # limit before the first mark
SHOWN_BYTES = 300  # kept part of the output before the first mark
_LONGEST_LINE = 96 << 10  # systems accept words of 128 KiB
_LONGEST_NUMBER = 20
_LEAST_NUMBER = 2  # smaller ids are init, or signal many processes
# `eval $SSH_ORIGINAL_COMMAND` of a forced command joins the words by a single blank, so only the first blank is plain.
_ESCAPED = re.compile(rb"[^A-Za-z0-9_/.,:=+@ -]|(?<= ) ")


class NoFrame(Exception):
    """The login shell printed more than TALK_BYTES before the first mark, so no command has started."""


@dataclass(frozen=True)
class RemoteLine:
    """A line for a login shell, and the bytes that the line reads from stdin first."""

    line: str
    head: bytes = b""


@dataclass(frozen=True)
class Frame:
    """The marks of a command. Stderr has separate marks, since a wrapper may merge stderr into stdout."""

    begin: str = field(default_factory=lambda: secrets.token_hex(16))
    end: str = field(default_factory=lambda: secrets.token_hex(16))
    has_begun: threading.Event = field(default_factory=threading.Event, compare=False, repr=False)
    """Set after the first mark of stdout has arrived."""

    @property
    def opening(self) -> str:
        """Return the start of a script, which prints the first marks."""
        return f"echo {_halves(_turned(self.begin))} >&2; echo {_halves(self.begin)} $$\n"

    def closing(self, stderr: int = 2) -> str:
        """Return the end of a script, which prints the last marks to stdout and fd `stderr` and exits with `$code`."""
        return f"echo {_halves(self.end)} $code; echo {_halves(_turned(self.end))} >&{stderr}; exit $code\n"

    @property
    def stdout(self) -> "FramedStream":
        """Return a reader for stdout."""
        return FramedStream(self.begin, self.end, self.has_begun)

    @property
    def stderr(self) -> "FramedStream":
        """Return a reader for stderr."""
        return FramedStream(_turned(self.begin), _turned(self.end))

    def wrap(self, script: str) -> str:
        """Return a script, to run after `opening`, with the last marks. The outer shell stays to report a signal."""
        return f"(\n{script}\n)\ncode=$?\n{self.closing()}"


def login_line(script: str, opening: str = "") -> RemoteLine:
    """Return a line that runs `opening` and a `sh` script in any login shell; `opening` reads nothing from stdin."""
    line = f"""exec sh -c 'eval "$(printf "{_ESCAPED.sub(_escape, (opening + script).encode()).decode()}")"'"""
    if len(line) < _LONGEST_LINE:
        return RemoteLine(line)
    raw = f"{{ {script}\n}}".encode()  # the braces make a shortened script a syntax error
    # dd reads byte by byte and leaves the rest of stdin to the command.
    return RemoteLine(login_line(f'{opening}eval "$(dd bs=1 count={len(raw)} 2>/dev/null)"').line, raw)


class FramedStream:
    """A reader of a stream that accepts pieces and returns the bytes between the marks."""

    def __init__(self, begin: str, end: str, has_begun: threading.Event | None = None) -> None:
        self._has_begun = has_begun or threading.Event()
        self._begin, self._end = begin.encode(), end.encode()
        self._held = b""
        self._exit_code: int | None = None
        self._number = b""
        self.shell_banner = b""
        """Beginning of the output before the first mark."""
        self.is_open = False
        self.is_over = False

    @property
    def shell_pid(self) -> int | None:
        """Return the process id of the shell, which leads its process group; None without a safe id to signal."""
        return _whole(self._number, _LEAST_NUMBER)

    @property
    def exit_code(self) -> int | None:
        """Return the exit code after the last mark; None before the last mark."""
        return self._exit_code

    def feed(self, piece: bytes) -> bytes:
        """Return the bytes between the marks that `piece` adds. Raises NoFrame."""
        if self.is_over:
            return b""
        self._held += piece
        if not self.is_open and not self._find_begin_mark():
            return b""
        return self._payload()

    def _find_begin_mark(self) -> bool:
        at = self._held.find(self._begin)
        line = self._held.find(b"\n", at) if at >= 0 else -1
        self.shell_banner = self._held[: at if at >= 0 else len(self._held)][:SHOWN_BYTES]
        if line < 0:
            if len(self._held) > TALK_BYTES:
                raise NoFrame
            return False
        self._number = self._held[at + len(self._begin) : line].strip()
        self._held, self.is_open = self._held[line + 1 :], True
        self._has_begun.set()
        return True

    def _payload(self) -> bytes:
        at = self._held.find(self._end)
        if at < 0:
            at = len(self._held) - _overlap(self._held, self._end)
        else:
            line = self._held.find(b"\n", at)
            self.is_over = line >= 0
            self._exit_code = _whole(self._held[at + len(self._end) : line].strip(), 0) if self.is_over else None
        found, self._held = self._held[:at], b"" if self.is_over else self._held[at:]
        return found


def shown(talk: bytes) -> str:
    """Return the beginning of a shell's output as a single line without control characters."""
    text = talk.decode(errors="replace")
    return " ".join("".join(letter if letter.isprintable() else " " for letter in text).split())[:120]


def _halves(mark: str) -> str:
    return f"{mark[:16]}''{mark[16:]}"


def _turned(mark: str) -> str:
    return mark[16:] + mark[:16]


def _escape(found: "re.Match[bytes]") -> bytes:
    # `printf` may interpret the format twice, for escapes and for percent signs.
    return b"%%" if found[0] == b"%" else b"\\%03o" % found[0][0]


def _whole(text: bytes, least: int) -> int | None:
    is_number = text.isdigit() and len(text) < _LONGEST_NUMBER
    return int(text) if is_number and int(text) >= least else None


def _overlap(text: bytes, mark: bytes) -> int:
    """Return the number of bytes at the end of a text that may be the beginning of the mark."""
    return next((size for size in range(min(len(mark) - 1, len(text)), 0, -1) if text.endswith(mark[:size])), 0)
