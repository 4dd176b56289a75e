"""The child side of untrusted input: resource limits and the question-answer loop. Imports few modules.

A message is an 8-byte big-endian length and the payload; an answer starts with GOOD, BAD or LAST.
"""

import os
import resource
import signal
import sys
from collections.abc import Callable

HEAD_BYTES = 8
GOOD, BAD, LAST = b"+", b"-", b"!"  # an answer; a refusal; a refusal before the child exits
WORDS = 300  # maximum characters of a refusal


class ChildRefusal(Exception):
    """A refused question; the message gives the reason."""


def framed(words: bytes) -> bytes:
    return len(words).to_bytes(HEAD_BYTES, "big") + words


def answer_all(answer: Callable[[bytes], bytes]) -> None:
    """Answer questions within the limits on the command line until the input ends or a question breaks a limit."""
    room_bytes, cpu_s = int(sys.argv[1]), float(sys.argv[2])
    source, out = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    limit(room_bytes)
    said = GOOD
    while said[:1] != LAST and len(head := source.read(HEAD_BYTES)) == HEAD_BYTES:
        question = source.read(int.from_bytes(head, "big"))
        # SIGPROF kills the process even inside native code.
        signal.setitimer(signal.ITIMER_PROF, cpu_s)
        said = answered(answer, question)
        signal.setitimer(signal.ITIMER_PROF, 0)
        out.write(framed(said))
        out.flush()


def answered(answer: Callable[[bytes], bytes], question: bytes) -> bytes:
    """Return the answer with its mark; every error becomes a refusal."""
    try:
        return GOOD + answer(question)
    except MemoryError:
        return LAST + b"takes more memory than it may have"
    except RecursionError:
        return LAST + b"is nested too deeply"
    except ChildRefusal as refusal:
        return BAD + in_short(str(refusal))
    except BaseException as error:  # including panics of native libraries
        return LAST + in_short(f"fails: {type(error).__name__}: {error}")


def in_short(words: str) -> bytes:
    return " ".join(words.split())[:WORDS].encode("utf-8", "replace")


def limit(room_bytes: int) -> None:
    """Limit the additional address space of this process to `room_bytes`, and forbid core dumps and file writes."""
    if sys.platform == "linux":  # macOS does not enforce RLIMIT_AS
        with open("/proc/self/statm", encoding="ascii") as file:
            taken = int(file.read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (taken + room_bytes,) * 2)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
