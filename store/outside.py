"""The readers of untrusted input: JSON within bounds, regular files only, paths that stay in their folder.

In: bytes, or a file of this machine. Out: plain values that are safe to walk, to write again and to print: at most
`DEPTH` levels, no key twice, numbers that are finite and fit 64 bits, text that is UTF-8. Everything else is
`Unreadable`, and no reader waits for a pipe or fills the memory. `infra/agent/outside.py` does the same with what a
pod's Python has.
"""

import json
import math
import os
import stat
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

MIB = 1 << 20
DEPTH = 32
VALUES = 1_000_000
INTEGER_DIGITS, HUGE_DIGITS = 20, 400
NAME_BYTES = 255
PATH_BYTES = 2048

T = TypeVar("T")


class Unreadable(ValueError):
    """An untrusted document cannot be used; the message says why."""


def parse(
    raw: bytes | str,
    most_bytes: int = 16 * MIB,
    most_values: int = VALUES,
    nan_is_null: bool = False,
    half_pairs: str = "strict",
    integer: Callable[[str], Any] | None = None,
) -> Any:
    """Return the value of a JSON document. Raises Unreadable.

    nan_is_null: for what Python's own writers have written. half_pairs: "surrogateescape" where names of files stand,
    which need not be UTF-8 and come as `os.fsdecode` gives them. integer: reads whole numbers; by default those that
    fit 64 bits.
    """
    if len(raw) > most_bytes:
        raise Unreadable(f"it has {len(raw)} bytes, at most {most_bytes} are read")
    try:
        text = raw if isinstance(raw, str) else raw.decode()
        if text.count("[") + text.count("{") + text.count(",") > most_values:
            raise Unreadable(f"it has more than {most_values} values")
        value = json.loads(
            text,
            object_pairs_hook=_pairs,
            parse_constant=_null if nan_is_null else _constant,
            parse_float=_float,
            parse_int=integer or _integer,
        )
        if "\\u" in text:  # half of a pair cannot be written anywhere
            json.dumps(value, ensure_ascii=False).encode(errors=half_pairs)
    except Unreadable:
        raise
    except RecursionError:
        raise Unreadable(f"it is nested deeper than {DEPTH} levels") from None
    except ValueError as error:
        raise Unreadable(str(error)) from None
    _refuse_depth(value)
    return value


def mapping(
    raw: bytes | str,
    most_bytes: int = 16 * MIB,
    most_values: int = VALUES,
    nan_is_null: bool = False,
    half_pairs: str = "strict",
    integer: Callable[[str], Any] | None = None,
) -> dict[str, Any]:
    """Return the object that a JSON document holds, as `parse` does. Raises Unreadable."""
    value = parse(raw, most_bytes, most_values, nan_is_null, half_pairs, integer)
    if type(value) is not dict:
        raise Unreadable(f"it is a {type(value).__name__}, expected an object")
    return value


def row(raw: bytes | bytearray | str) -> Any:
    """Return the value of one line of data: quicker than `parse`, no deeper, and of any numbers. Raises Unreadable."""
    try:
        value = json.loads(raw)
    except RecursionError:
        raise Unreadable(f"it is nested deeper than {DEPTH} levels") from None
    except ValueError as error:
        raise Unreadable(str(error)) from None
    _refuse_depth(value)
    return value


def content(path: str | os.PathLike[str], most_bytes: int = 16 * MIB) -> bytes:
    """Return the bytes of a regular file. Raises Unreadable when it is none or larger, OSError."""
    with opened(path) as file:
        size = os.fstat(file.fileno()).st_size
        read = b"" if size > most_bytes else file.read(size + 1)  # a read of so many bytes takes a buffer of that size
        if size < len(read) <= most_bytes:  # it grows, or its file system tells no size
            read += file.read(most_bytes + 1 - len(read))
        if max(size, len(read)) > most_bytes:
            raise Unreadable(f"it has {max(size, len(read))} bytes, at most {most_bytes} are read")
        return read


def opened(path: str | os.PathLike[str]) -> BinaryIO:
    """Open a regular file to be read, without waiting for anything. Raises Unreadable when it is none, OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # opening a pipe would wait for its writer
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        return open(descriptor, "rb")
    os.close(descriptor)
    raise Unreadable(f"{path} is no regular file")


def load(
    path: str | os.PathLike[str],
    most_bytes: int = 16 * MIB,
    most_values: int = VALUES,
    half_pairs: str = "strict",
    integer: Callable[[str], Any] | None = None,
) -> dict[str, Any]:
    """Return the object in a JSON file. Raises Unreadable, OSError."""
    return mapping(content(path, most_bytes), most_bytes, most_values, half_pairs=half_pairs, integer=integer)


def within(folder: str | os.PathLike[str], path: str) -> Path:
    """Return the file at `path` under `folder`, wherever links lead. Raises Unreadable when that is outside of it."""
    try:
        base, found = os.path.realpath(folder), os.path.realpath(os.path.join(folder, path))
    except ValueError as error:  # a null byte
        raise Unreadable(f"{path!r}: {error}") from None
    if not found.startswith(base.rstrip("/") + "/"):
        raise Unreadable(f"{path!r} leads out of {folder}")
    return Path(found)


def relative(path: str) -> str:
    """Return `path` itself, the name of something under a folder, whatever links lie there. Raises Unreadable."""
    parts = path.split("/")
    if "\0" in path or any(part in ("", ".", "..") for part in parts):
        raise Unreadable(f"{shown(path)} is no name under a folder")
    try:
        longest = max(len(os.fsencode(part)) for part in parts)
    except UnicodeEncodeError:
        raise Unreadable(f"{shown(path)} cannot name a file") from None
    if longest > NAME_BYTES or len(path) > PATH_BYTES:
        raise Unreadable(f"{shown(path)} is too long for a name")
    return path


def typed(said: Mapping[str, Any], key: str, kind: type[T], default: T | None = None) -> T:
    """Return the value of `key`, of exactly that type (a float may be written as an integer). Raises Unreadable."""
    value = said.get(key, default)
    if kind is float and type(value) is int:
        value = float(value)
    if type(value) is not kind:
        raise Unreadable(f"its {key} is of the wrong kind: {shown(value)}, expected {kind.__name__}")
    return value


def shown(value: object) -> str:
    """Return an untrusted value for a message: short, on one line, printable."""
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:76]} ..."


def printable(text: str) -> str:
    """Return an untrusted name, with an escape in place of whatever a terminal or an encoder would trip over."""
    return "".join(one if one.isprintable() else repr(one)[1:-1] for one in text)


def _refuse_depth(value: Any) -> None:
    level = [value]
    for _ in range(DEPTH + 1):
        below = [one for one in level if type(one) in (dict, list)]
        if not below:
            return
        level = [inner for one in below for inner in (one.values() if type(one) is dict else one)]
    raise Unreadable(f"it is nested deeper than {DEPTH} levels")


def _pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise Unreadable(f"{shown(twice)} is given twice")
    return found


def _constant(word: str) -> Any:
    raise Unreadable(f"{word} is no number")


def _null(word: str) -> Any:
    return None


def _float(word: str) -> float:
    if not math.isfinite(number := float(word)):
        raise Unreadable(f"{shown(word)} is no finite number")
    return number


def clamped(word: str) -> int:
    """Return a whole number, the largest of 64 bits in place of a larger one: "no limit" is written as int(1e30).

    Raises Unreadable for one of very many digits.
    """
    if len(word) > HUGE_DIGITS:
        raise Unreadable(f"{shown(word)} has more than {HUGE_DIGITS} digits")
    return max(-(2**63), min(int(word), 2**63 - 1))


def _integer(word: str) -> int:
    if len(word) > INTEGER_DIGITS + 1 or not -(2**63) <= (number := int(word)) < 2**64:
        raise Unreadable(f"{shown(word)} does not fit 64 bits")
    return number
