"""The one rule for names that are untrusted input: of a pod, a store, a cluster's node, a control host, a record.

In: a name, a path with "/", or a listing whose entries end with NUL, as another machine gives them. Out: whether that
may name a file here, and which kind of file of a run. A name of one part holds letters, digits, ".", "_" and "-", and
begins with neither "." nor "-". A path stays in the folder that it is taken from.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

_PART = r"(?![.-])[A-Za-z0-9._-]{1,128}"
PART = re.compile(_PART)
CHECKPOINT = re.compile(rf"(work/checkpoints/{_PART})/step-([0-9]{{1,18}})")
FIGURES = re.compile(rf"work/runs/({_PART})/(metrics|samples)\.jsonl")
LOG = re.compile(rf"logs/{_PART}\.(log|times)")
MARK = re.compile(rf"state/marks/{_PART}\.json")
_SIZE = re.compile(r"[0-9]{1,18}")
LONGEST = 4096  # bytes of a path
SHOWN = 3


def is_part(name: str) -> bool:
    """Return whether a name has one part, and may be that of a file or a folder here."""
    return PART.fullmatch(name) is not None


def is_inside(path: str) -> bool:
    """Return whether a relative path stays inside of the folder that it is taken from."""
    is_short = len(path) <= LONGEST and "\0" not in path and "\\" not in path
    return is_short and all(part not in ("", ".", "..") for part in path.split("/"))


def is_of_checkpoint(path: str) -> bool:
    """Return whether a path is that of a file in a checkpoint of a run, which is no draft."""
    parts = path.split("/")
    is_kept = is_inside(path) and not any(part.startswith(".") for part in parts)
    return is_kept and len(parts) > 4 and CHECKPOINT.fullmatch("/".join(parts[:4])) is not None


def is_of_run(path: str) -> bool:
    """Return whether a path is that of a file which is kept of a run: a log, figures, a mark, part of a checkpoint."""
    return any(one.fullmatch(path) for one in (LOG, FIGURES, MARK)) or is_of_checkpoint(path)


@dataclass(frozen=True)
class NamedSizes:
    """The files that a listing names, by path, with their sizes in bytes."""

    sizes: Mapping[str, int] = field(default_factory=dict)
    num_refused: int = 0
    refused: tuple[str, ...] = ()
    """The first of the entries that are refused, as they were listed."""
    is_cut: bool = False
    """True if the listing was longer than what is read of one."""


def read_listing(text: str, most: int) -> NamedSizes:
    """Return the files of a listing: `<bytes> <path>`, each ended by NUL; at most so many, and of kept kinds only."""
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
    """Return the name of the log of which an earlier pod's part lies at that path; "" where none does."""
    name = path.removeprefix("state/earlier/")
    return f"logs/{name}" if name != path else ""
