"""The readers of untrusted input: JSON within limits, regular files only, and safe names of files and folders.

The input is bytes, a local file, a name or a listing. The result is plain values that are safe to traverse, serialize
and print: at most `DEPTH` levels, no duplicate keys, finite numbers within 64 bits, valid UTF-8 text. Any other input
raises `UnusableDocument`. No reader blocks on a pipe or exhausts memory. A single-part name has letters, digits, ".",
"_" and "-", and starts with neither "." nor "-"; a path stays in its base folder. `infra/agent/untrusted_json.py` does
the same with the Python of a pod.
"""

import json
import math
import os
import re
import stat
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

MIB = 1 << 20
DEPTH = 32
VALUES = 1_000_000
INTEGER_DIGITS, HUGE_DIGITS = 20, 400
NAME_BYTES = 255
PATH_BYTES = 2048

T = TypeVar("T")
_PART = r"(?![.-])[A-Za-z0-9._-]{1,128}"
PART = re.compile(_PART)
CHECKPOINT = re.compile(rf"(work/checkpoints/{_PART})/step-([0-9]{{1,18}})")
FIGURES = re.compile(rf"work/runs/({_PART})/(metrics|samples)\.jsonl")
LOG = re.compile(rf"logs/{_PART}\.(log|times)")
MARK = re.compile(rf"state/marks/{_PART}\.json")
_SIZE = re.compile(r"[0-9]{1,18}")
LONGEST = 4096  # maximum characters of a path
SHOWN = 3


class UnusableDocument(ValueError):
    """An unusable untrusted document; the message gives the reason."""


def parse(
    raw: bytes | str,
    most_bytes: int = 16 * MIB,
    most_values: int = VALUES,
    nan_is_null: bool = False,
    half_pairs: str = "strict",
    integer: Callable[[str], Any] | None = None,
) -> Any:
    """Return the value of a JSON document. Raise UnusableDocument.

    nan_is_null: accept the NaN and Infinity constants of Python's writers as None. half_pairs: "surrogateescape" for
    documents with file names that may not be UTF-8, as `os.fsdecode` returns them. integer: parser of integers; the
    default accepts integers that fit 64 bits.
    """
    if len(raw) > most_bytes:
        raise UnusableDocument(f"it has {len(raw)} bytes, at most {most_bytes} are read")
    try:
        text = raw if isinstance(raw, str) else raw.decode()
        if text.count("[") + text.count("{") + text.count(",") > most_values:
            raise UnusableDocument(f"it has more than {most_values} values")
        value = json.loads(
            text,
            object_pairs_hook=_pairs,
            parse_constant=_null if nan_is_null else _constant,
            parse_float=_float,
            parse_int=integer or _integer,
        )
        if "\\u" in text:  # a lone surrogate cannot be encoded
            json.dumps(value, ensure_ascii=False).encode(errors=half_pairs)
    except (RecursionError, ValueError) as error:
        raise _unusable(error) from None
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
    """Return the object in a JSON document; the parameters are those of `parse`. Raise UnusableDocument."""
    value = parse(raw, most_bytes, most_values, nan_is_null, half_pairs, integer)
    if type(value) is not dict:
        raise UnusableDocument(f"it is a {type(value).__name__}, expected an object")
    return value


def row(raw: bytes | bytearray | str) -> Any:
    """Return the value of a line of data: as `parse`, but faster, with any numbers. Raise UnusableDocument."""
    try:
        value = json.loads(raw)
    except (RecursionError, ValueError) as error:
        raise _unusable(error) from None
    _refuse_depth(value)
    return value


def content(path: str | os.PathLike[str], most_bytes: int = 16 * MIB) -> bytes:
    """Return the bytes of a regular file.

    Raise UnusableDocument for other file types or too many bytes, and OSError.
    """
    with opened(path) as file:
        size = os.fstat(file.fileno()).st_size
        # Do not pass `most_bytes` to `read`, which would allocate a buffer of this size.
        read = b"" if size > most_bytes else file.read(size + 1)
        if size < len(read) <= most_bytes:  # the file grows, or its file system reports no size
            read += file.read(most_bytes + 1 - len(read))
        if max(size, len(read)) > most_bytes:
            raise UnusableDocument(f"the file has {max(size, len(read))} bytes; at most {most_bytes} are read")
        return read


def text_lines(path: str | os.PathLike[str], most_bytes: int) -> list[str]:
    """Return the lines of a UTF-8 file, ended by LF or CRLF, without a byte order mark.

    JSON texts may contain the other line separators of Unicode. Raise UnusableDocument, UnicodeDecodeError or OSError.
    """
    return [line.removesuffix("\r") for line in content(path, most_bytes).decode("utf-8-sig").split("\n")]


def opened(path: str | os.PathLike[str]) -> BinaryIO:
    """Open a regular file for reading without blocking. Raise UnusableDocument for other file types, and OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # opening a pipe would block
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        return open(descriptor, "rb")
    os.close(descriptor)
    raise UnusableDocument(f"{path} is not a regular file")


def load(
    path: str | os.PathLike[str],
    most_bytes: int = 16 * MIB,
    most_values: int = VALUES,
    half_pairs: str = "strict",
    integer: Callable[[str], Any] | None = None,
) -> dict[str, Any]:
    """Return the object in a JSON file. Raise UnusableDocument or OSError."""
    return mapping(content(path, most_bytes), most_bytes, most_values, half_pairs=half_pairs, integer=integer)


def resolve_within(folder: str | os.PathLike[str], path: str) -> Path:
    """Return the resolved path of `path` under `folder`. Raise UnusableDocument if the path or a link leads outside."""
    try:
        base, found = os.path.realpath(folder), os.path.realpath(os.path.join(folder, path))
    except ValueError as error:  # a null byte
        raise UnusableDocument(f"{path!r}: {error}") from None
    if not found.startswith(base.rstrip("/") + "/"):
        raise UnusableDocument(f"{path!r} leads out of {folder}")
    return Path(found)


def relative(path: str) -> str:
    """Return `path` unchanged if it is a valid relative path; links are not resolved. Raise UnusableDocument."""
    parts = path.split("/")
    if "\0" in path or any(part in ("", ".", "..") for part in parts):
        raise UnusableDocument(f"{printable_line(path)} is not a path inside a folder")
    try:
        longest = max(len(os.fsencode(part)) for part in parts)
    except UnicodeEncodeError:
        raise UnusableDocument(f"{printable_line(path)} cannot name a file") from None
    if longest > NAME_BYTES or len(path) > PATH_BYTES:
        raise UnusableDocument(f"{printable_line(path)} is too long for a file name")
    return path


def typed(said: Mapping[str, Any], key: str, kind: type[T], default: T | None = None) -> T:
    """Return the value of `key`, of exactly type `kind` (a float may be written as an integer).

    Raise UnusableDocument.
    """
    value = said.get(key, default)
    if kind is float and type(value) is int:
        value = float(value)
    if type(value) is not kind:
        raise UnusableDocument(f"{key} is of the wrong kind: {printable_line(value)}, expected {kind.__name__}")
    return value


def printable_line(value: object) -> str:
    """Return an untrusted value for a message: a printable line of at most 80 characters."""
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:76]} ..."


def printable(text: str) -> str:
    """Return an untrusted name with escapes for all characters that are not printable."""
    return "".join(one if one.isprintable() else repr(one)[1:-1] for one in text)


def _refuse_depth(value: Any) -> None:
    level = [value]
    for _ in range(DEPTH + 1):
        below = [one for one in level if type(one) in (dict, list)]
        if not below:
            return
        level = [inner for one in below for inner in (one.values() if type(one) is dict else one)]
    raise UnusableDocument(f"it is nested deeper than {DEPTH} levels")


def _unusable(error: Exception) -> UnusableDocument:
    if isinstance(error, (UnusableDocument, RecursionError)):
        return error if isinstance(error, ValueError) else UnusableDocument(f"it is nested deeper than {DEPTH} levels")
    is_joined = isinstance(error, json.JSONDecodeError) and error.doc[: error.pos].endswith("\r")
    return UnusableDocument(f"{error}{'; a carriage return alone ends no line' if is_joined else ''}")


def _pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise UnusableDocument(f"{printable_line(twice)} is given twice")
    return found


def _constant(word: str) -> Any:
    raise UnusableDocument(f"{word} is no number")


def _null(word: str) -> Any:
    return None


def _float(word: str) -> float:
    if not math.isfinite(number := float(word)):
        raise UnusableDocument(f"{printable_line(word)} is no finite number")
    return number


def clamped(word: str) -> int:
    """Return an integer clamped to the signed 64-bit range, since some files write int(1e30) for "no limit".

    Raise UnusableDocument for an integer with more than HUGE_DIGITS digits.
    """
    if len(word) > HUGE_DIGITS:
        raise UnusableDocument(f"{printable_line(word)} has more than {HUGE_DIGITS} digits")
    return max(-(2**63), min(int(word), 2**63 - 1))


def _integer(word: str) -> int:
    if len(word) > INTEGER_DIGITS + 1 or not -(2**63) <= (number := int(word)) < 2**64:
        raise UnusableDocument(f"{printable_line(word)} does not fit 64 bits")
    return number


def is_part(name: str) -> bool:
    """Return whether a name is a single safe file or folder name."""
    return PART.fullmatch(name) is not None


def is_inside(path: str) -> bool:
    """Return whether a relative path can be a file inside its base folder."""
    parts = path.split("/")
    is_short = len(path) <= LONGEST and max(len(part.encode(errors="surrogatepass")) for part in parts) <= NAME_BYTES
    return is_short and "\0" not in path and "\\" not in path and not {"", ".", ".."} & set(parts)


def is_of_checkpoint(path: str) -> bool:
    """Return whether a path names a file in a checkpoint of a run; drafts are excluded."""
    parts = path.split("/")
    is_kept = is_inside(path) and not any(part.startswith(".") for part in parts)
    return is_kept and len(parts) > 4 and CHECKPOINT.fullmatch("/".join(parts[:4])) is not None


def is_of_run(path: str) -> bool:
    """Return whether a path names a kept file of a run: a log, metrics, a mark or part of a checkpoint."""
    return any(one.fullmatch(path) for one in (LOG, FIGURES, MARK)) or is_of_checkpoint(path)


@dataclass(frozen=True)
class NamedSizes:
    """The files in a listing by path, with sizes in bytes."""

    sizes: Mapping[str, int] = field(default_factory=dict)
    num_refused: int = 0
    refused: tuple[str, ...] = ()
    """First SHOWN rejected entries, unchanged."""
    is_truncated: bool = False
    """True if the listing was truncated or exceeded the maximum number of entries."""


def read_listing(text: str, most: int) -> NamedSizes:
    """Return the kept run files of a listing of NUL-terminated `<bytes> <path>` entries, at most `most` files."""
    *entries, rest = text.split("\0")
    sizes: dict[str, int] = {}
    refused = []
    for entry in entries:
        size, _, path = entry.partition(" ")
        if not _SIZE.fullmatch(size) or not (is_of_run(path) or is_of_run(of_earlier_pod(path))):
            refused.append(entry)
        elif len(sizes) < most:
            sizes[path] = int(size)
    is_cut = bool(rest) or len(entries) - len(refused) > most
    return NamedSizes(sizes, len(refused), tuple(refused[:SHOWN]), is_cut)


def of_earlier_pod(path: str) -> str:
    """Return the log name for a path under `state/earlier/` (the part of an earlier pod); "" for other paths."""
    name = path.removeprefix("state/earlier/")
    return f"logs/{name}" if name != path else ""
