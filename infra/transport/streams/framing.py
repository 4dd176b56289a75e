"""Frames around the output of a machine: only what stands between random marks of ours is read.

In: a script of `sh`. Out: a line that every login shell takes for the same, and the script's output without what
start-up files, wrappers and forced commands print around it. The line has one quoted word of harmless characters, so
that csh, fish and zsh read it as `sh` does; the marks are in it in halves, so that a shell that repeats its commands
does not print a mark. The shell of the script tells its process number between the marks, and its exit code.
"""

import re
import secrets
from dataclasses import dataclass, field

TALK_BYTES = 1 << 20  # before the first mark
SHOWN_BYTES = 300  # kept of that
_LONGEST_LINE = 96 << 10  # a system takes words of 128 KiB
_LONGEST_NUMBER = 20
_LEAST_NUMBER = 2  # a smaller one is init, or stands for many processes
_PLAIN = re.compile(rb"[^A-Za-z0-9_/.,:=+@ -]")


class NoFrame(Exception):
    """A login shell has printed so much that no command can have begun."""


@dataclass(frozen=True)
class RemoteLine:
    """A line for a login shell, and what the line reads from its stdin before anything else does."""

    line: str
    head: bytes = b""


@dataclass(frozen=True)
class Frame:
    """The marks of one command. Those on stderr are others: a wrapper may join stderr with stdout."""

    begin: str = field(default_factory=lambda: secrets.token_hex(16))
    end: str = field(default_factory=lambda: secrets.token_hex(16))

    @property
    def opening(self) -> str:
        """Return the beginning of a script, which says the first marks."""
        return f"echo {_halves(_turned(self.begin))} >&2; echo {_halves(self.begin)} $$\n"

    def closing(self, stderr: int = 2) -> str:
        """Return the end of a script, which says the last marks and leaves with `$code`; `stderr` is its number."""
        return f"echo {_halves(self.end)} $code; echo {_halves(_turned(self.end))} >&{stderr}; exit $code\n"

    @property
    def stdout(self) -> "FramedStream":
        """Return the reader of stdout."""
        return FramedStream(self.begin, self.end)

    @property
    def stderr(self) -> "FramedStream":
        """Return the reader of stderr."""
        return FramedStream(_turned(self.begin), _turned(self.end))

    def around(self, script: str) -> str:
        """Return a script that runs another one between the marks. Its shell stays, to tell of a signal."""
        return f"{self.opening}(\n{script}\n)\ncode=$?\n{self.closing()}"


def login_line(script: str) -> RemoteLine:
    """Return the line of a login shell, whichever, that runs a script of `sh`."""
    raw = script.encode()
    line = f"""exec sh -c 'eval "$(printf "{_PLAIN.sub(_escape, raw).decode()}")"'"""
    if len(line) < _LONGEST_LINE:
        return RemoteLine(line)
    # Byte by byte, so that what follows is left to the command.
    return RemoteLine(f"""exec sh -c 'eval "$(dd bs=1 count={len(raw)} 2>/dev/null)"'""", raw)


class FramedStream:
    """A reader of one stream, which takes pieces and returns what stands between the marks."""

    def __init__(self, begin: str, end: str) -> None:
        self._begin, self._end = begin.encode(), end.encode()
        self._held = b""
        self._said_at_end: int | None = None
        self._number = b""
        self.talk = b""
        """The beginning of what came before the first mark."""
        self.is_open = False
        self.is_over = False

    @property
    def process(self) -> int | None:
        """Return the process number of the shell, which leads its process group; None = none that may be signalled."""
        return _whole(self._number, _LEAST_NUMBER)

    @property
    def code(self) -> int | None:
        """Return the exit code that was said with the last mark."""
        return self._said_at_end

    def feed(self, piece: bytes) -> bytes:
        """Return what a piece adds to what stands between the marks. Raises NoFrame."""
        if self.is_over:
            return b""
        self._held += piece
        if not self.is_open and not self._opened():
            return b""
        return self._payload()

    def _opened(self) -> bool:
        at = self._held.find(self._begin)
        line = self._held.find(b"\n", at) if at >= 0 else -1
        self.talk = self._held[: at if at >= 0 else len(self._held)][:SHOWN_BYTES]
        if line < 0:
            if len(self._held) > TALK_BYTES:
                raise NoFrame
            return False
        self._number = self._held[at + len(self._begin) : line].strip()
        self._held, self.is_open = self._held[line + 1 :], True
        return True

    def _payload(self) -> bytes:
        at = self._held.find(self._end)
        if at < 0:
            at = len(self._held) - _overlap(self._held, self._end)
        else:
            line = self._held.find(b"\n", at)
            self.is_over = line >= 0
            self._said_at_end = _whole(self._held[at + len(self._end) : line].strip(), 0) if self.is_over else None
        found, self._held = self._held[:at], b"" if self.is_over else self._held[at:]
        return found


def shown(talk: bytes) -> str:
    """Return the beginning of what a shell printed, in one line that steers no terminal."""
    text = talk.decode(errors="replace")
    return " ".join("".join(letter if letter.isprintable() else " " for letter in text).split())[:120]


def _halves(mark: str) -> str:
    return f"{mark[:16]}''{mark[16:]}"


def _turned(mark: str) -> str:
    return mark[16:] + mark[:16]


def _escape(found: "re.Match[bytes]") -> bytes:
    # `printf` may read its format twice, for escapes and for signs of percent.
    return b"%%" if found[0] == b"%" else b"\\%03o" % found[0][0]


def _whole(text: bytes, least: int) -> int | None:
    is_number = text.isdigit() and len(text) < _LONGEST_NUMBER
    return int(text) if is_number and int(text) >= least else None


def _overlap(text: bytes, mark: bytes) -> int:
    """Return how many bytes at the end of a text may be the beginning of the mark."""
    return next((size for size in range(min(len(mark) - 1, len(text)), 0, -1) if text.endswith(mark[:size])), 0)
