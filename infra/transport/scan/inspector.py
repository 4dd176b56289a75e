"""Inspection of each file before an upload: its sha256, or the reason to keep the file here.

The receiver compares the received content with the sha256, so a change between inspection and upload is detected.
"""

import hashlib
import os
import stat
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from infra.errors import UsageError
from infra.transport.scan import git_files, names, own_keys, own_records
from infra.transport.scan.contents import ContentScanner, SearchedTexts, needles
from infra.transport.scan.own_records import OwnRecords

PIECE_BYTES = 1 << 20
MOST_KNOWN = 200_000  # limit of cached inspections in this process
FRESH_NS = 1_000_000_000  # a file changed this recently may change again without a new time stamp
Stamp = tuple[str, int, int, int, int, SearchedTexts]
_known: dict[Stamp, tuple[str, str]] = {}


@dataclass(frozen=True)
class FileInspector:
    """The inspection of the files of a folder.

    `anyway`: apparent secrets to send on the user's request, relative to the folder.
    """

    root: Path
    own: SearchedTexts
    records: OwnRecords
    anyway: tuple[str, ...] = ()

    @staticmethod
    def of(root: Path, anyway: Sequence[str] = ()) -> "FileInspector":
        """Return the inspector of a folder, with the keys and records of this installation.

        Raises UsageError for an invalid `.env`.
        """
        own = needles(own_keys.of_installation())
        return FileInspector(root, own, own_records.in_folder(root), named(root, anyway))

    def inspect(self, path: str, seen: os.stat_result) -> tuple[str, str]:
        """Return (sha256 of the content to send, reason not to send the file); exactly one of them is "".

        Results for unchanged files are cached in this process.
        """
        if reason := self.records.reason(path) or why_unfit(self.root, path, seen):
            return "", reason
        sha, reason = self._remembered(path, seen)
        if reason and path in self.anyway:
            if git_files.is_checkout(self.root) and not git_files.tracks(self.root, path):
                return "", f"{reason}; --send-anyway is for files that git tracks, and git does not track this file"
            return _sha256(self.root, path), ""
        return sha, reason

    def _remembered(self, path: str, seen: os.stat_result) -> tuple[str, str]:
        key = (f"{self.root}/{path}", seen.st_size, seen.st_mtime_ns, seen.st_ctime_ns, seen.st_ino, self.own)
        is_settled = time.time_ns() - max(seen.st_mtime_ns, seen.st_ctime_ns) > FRESH_NS
        if is_settled and key in _known:
            return _known[key]
        found = self._scanned(path)
        if is_settled:
            if len(_known) >= MOST_KNOWN:
                _known.clear()
            _known[key] = found
        return found

    def _scanned(self, path: str) -> tuple[str, str]:
        name = os.path.basename(path)
        if reason := names.reason(name):
            return "", reason
        digest, scanner = hashlib.sha256(), ContentScanner(self.own, names.secret_lines(name))
        for piece in pieces(self.root, path):
            digest.update(piece)
            scanner.feed(piece)
            if scanner.reason:
                return "", scanner.reason
        scanner.feed(b"", is_last=True)
        return ("", scanner.reason) if scanner.reason else (digest.hexdigest(), "")


def named(root: Path, typed: Sequence[str]) -> tuple[str, ...]:
    """Return the user's named files relative to `root`; accepts `~` and absolute paths within `root`."""
    found = []
    for name in typed:
        path = Path(name).expanduser()
        if not path.is_absolute():
            found.append(os.path.normpath(name))
        elif path.is_relative_to(root):
            found.append(str(path.relative_to(root)))
    return tuple(found)


def pieces(root: Path, path: str) -> Iterator[bytes]:
    """Yield the content of a file, or the target of a link.

    Raises UsageError for an unreadable file.
    """
    full = f"{root}/{path}"
    try:
        if os.path.islink(full):
            yield os.fsencode(os.readlink(full))
            return
        with open(full, "rb", buffering=0) as file:
            while piece := file.read(PIECE_BYTES):
                yield piece
    except OSError as error:
        raise UsageError(f"{full} cannot be read for sending: {error.strerror}") from None


def why_unfit(root: Path, path: str, seen: os.stat_result) -> str:
    """Return why `path` cannot be sent; "" for a regular file, or for a link to a target within the folder."""
    if stat.S_ISLNK(seen.st_mode):
        target = os.readlink(root / path)
        is_inside = Path(os.path.realpath(root / path)).is_relative_to(root) and not os.path.isabs(target)
        return "" if is_inside else f"a link out of the folder, to {target}"
    if stat.S_ISDIR(seen.st_mode):
        return "a separate git repository"
    if not stat.S_ISREG(seen.st_mode):
        return "not a regular file"
    return ""


def _sha256(root: Path, path: str) -> str:
    digest = hashlib.sha256()
    for piece in pieces(root, path):
        digest.update(piece)
    return digest.hexdigest()
