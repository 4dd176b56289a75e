"""The validation of untrusted names from a pod, a store, a cluster node, a control host or a record.

The input is a name, a path with "/", or a listing with NUL-terminated entries from a remote machine. The functions
return whether a name is safe as a local file name, and the kind of run file. A single-part name has letters, digits,
".", "_" and "-", and starts with neither "." nor "-". A path must stay in its base folder.
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
LONGEST = 4096  # maximum characters of a path
SHOWN = 3


def is_part(name: str) -> bool:
    """Return whether a name is a single safe file or folder name."""
    return PART.fullmatch(name) is not None


def is_inside(path: str) -> bool:
    """Return whether a relative path stays inside its base folder."""
    is_short = len(path) <= LONGEST and "\0" not in path and "\\" not in path
    return is_short and all(part not in ("", ".", "..") for part in path.split("/"))


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
    is_cut: bool = False
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
