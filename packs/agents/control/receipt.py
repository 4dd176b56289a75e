"""The receipt of an allowance: a line per call, in a chain of digests, and a mark of the newest line in a second file.

<journal>-allowances/<name>.receipt       a line per call; each line holds the digest of the line before
<journal>-allowances/<name>.newest        number and digest of the newest line

`Receipt.add` appends a line, and then replaces the mark. After a kill in between, the file has a line more than the
mark counts, which follows the chain and is valid. A kill during the append leaves a line cut off; the next line
continues the chain. `Receipt.read` returns every readable line, and a sentence for each lost, changed or cut line.
"""

import contextlib
import fcntl
import hashlib
import json
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from infra.settings import Settings
from packs.agents.control.place import folder
from store import local_files, untrusted_input

AMOUNT = re.compile(r"[0-9]{1,7}(\.[0-9]{1,9})?")
END_OF_TIME = 1e11  # UTC epoch seconds
FIRST = "0" * 64  # digest before the first line
BEGUN = "begun"  # outcome of the line that is written before a machine is rented
CUT_OFF = "the broker was killed, or the disk was full, while the broker wrote the line"


@dataclass(frozen=True, kw_only=True)
class ReceiptLine:
    """A line of the file."""

    number: int
    digest: str
    said: dict[str, Any]
    """The record of the line; {} for a line that cannot be read."""


@dataclass(frozen=True, kw_only=True)
class ReceiptCalls:
    """The calls of an allowance, oldest first, and the damage of the file in words.

    A call that starts something has two lines in the file; after a kill in between, its outcome is BEGUN.
    """

    calls: tuple[dict[str, Any], ...]
    problems: tuple[str, ...] = ()


class Receipt:
    """The file of the receipt of an allowance."""

    def __init__(self, name: str, settings: Settings) -> None:
        self.path = folder(settings) / f"{name}.receipt"
        self.mark = self.path.with_suffix(".newest")

    def add(self, entry: Mapping[str, Any]) -> None:
        """Append a line, durably."""
        with self._locked(fcntl.LOCK_EX) as file:
            written = file.read()
            # After a loss of the last lines, the new line continues the lost lines, so that the loss still shows.
            number, before = max(self._marked()[0], end_of(numbered(written)), key=lambda one: one[0])
            line = json.dumps({**entry, "number": number + 1, "before": before}, sort_keys=True).encode()
            file.write((b"" if written.endswith(b"\n") or not written else b"\n") + line + b"\n")
            file.flush()
            os.fsync(file.fileno())
            mark = {"number": number + 1, "sha256": digest_of(line)}
            local_files.replace(self.mark, json.dumps(mark).encode(), 0o600)

    def read(self) -> ReceiptCalls:
        """Return all readable calls, and the damage of the file in words."""
        if not self.path.exists() and not self.mark.exists():
            return ReceiptCalls(calls=())
        with self._locked(fcntl.LOCK_SH) as file:
            lines = numbered(file.read())
            marked, unmarked = self._marked()
        problems = [*unmarked, *_problems(lines), *_end_problems(lines, *marked)]
        calls: dict[Any, dict[str, Any]] = {}
        for line in lines:
            if line.said:
                key = line.said.get("call", line.number)
                calls[key] = {"at": 0.0, **calls.get(key, {}), **line.said}
        return ReceiptCalls(calls=tuple(calls.values()), problems=tuple(f"{self.path}: {one}" for one in problems))

    def _marked(self) -> tuple[tuple[int, str], list[str]]:
        """Return number and digest of the newest line as marked, and the problem of an unreadable mark."""
        try:
            said = untrusted_input.load(self.mark)
            return (int(said["number"]), str(said["sha256"])), []
        except (OSError, ValueError, KeyError, TypeError) as error:
            return (0, FIRST), [f"the mark of the newest line cannot be read, and lost last lines do not show: {error}"]

    @contextlib.contextmanager
    def _locked(self, how: int) -> Iterator[Any]:
        descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "r+b") as file:
            fcntl.flock(file, how)
            yield file


def numbered(written: bytes) -> list[ReceiptLine]:
    """Return the lines of a file with their own numbers; an unreadable line counts from the line before."""
    found, number = [], 0
    for line in written.splitlines():
        said = _record(line)
        number = said.get("number", number + 1)
        found.append(ReceiptLine(number=number, digest=digest_of(line), said=said))
    return found


def end_of(lines: list[ReceiptLine]) -> tuple[int, str]:
    """Return number and digest of the last line."""
    return (lines[-1].number, lines[-1].digest) if lines else (0, FIRST)


def digest_of(line: bytes) -> str:
    return hashlib.sha256(line).hexdigest()


def _record(line: bytes) -> dict[str, Any]:
    """Return the record of a line; {} for a line that is cut off or changed."""
    with contextlib.suppress(ValueError, RecursionError):
        said = json.loads(line)
        if isinstance(said, dict) and _is_call(said):
            return said
    return {}


def _is_call(said: Mapping[str, Any]) -> bool:
    """Return whether a record has the fields of a call, each of its kind."""
    texts = [said.get(name, "") for name in ("call", "run", "machine", "why", "for_the_owner")]
    texts += [said.get("tool"), said.get("outcome")]
    amounts = [said.get(name, "0") for name in ("limit_usd", "usd_per_hour")]
    is_timed = type(said.get("number")) is int and type(said.get("at", 0)) in (int, float)
    return (
        all(isinstance(one, str) for one in (*texts, *amounts))
        and all(AMOUNT.fullmatch(one) for one in amounts)
        and (is_timed and 0 <= said.get("at", 0) < END_OF_TIME)
    )


def _problems(lines: list[ReceiptLine]) -> Iterator[str]:
    before = ReceiptLine(number=0, digest=FIRST, said={"number": 0})
    for line in lines:
        if not line.said:
            yield f"line {line.number} cannot be read: {CUT_OFF}"
        elif line.said.get("before") != before.digest:
            is_next = line.number == before.number + 1
            yield f"line {before.number} was changed" if is_next else _lost(before.number + 1, line.number - 1)
        before = line


def _end_problems(lines: list[ReceiptLine], number: int, digest: str) -> Iterator[str]:
    """Yield the damage at the end. number, digest: of the newest line, as marked."""
    last = end_of(lines)[0]
    if last < number:
        yield _lost(last + 1, number)
    elif not any(line.digest == digest for line in lines) and number:
        yield f"line {number} was changed"


def _lost(first: int, last: int) -> str:
    return f"line {first} is lost" if last <= first else f"the lines {first} to {last} are lost"
