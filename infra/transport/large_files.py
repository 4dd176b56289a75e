"""Transfer of large files over SSH, resumed from the bytes already at the receiver.

`fetch` and `put` make a draft on the receiving side equal to the file on the other side; the caller checks the sha256.
The transfer uses rsync if both sides have a usable version, else 32 MiB pieces compared by checksum. Both methods leave
the same bytes.
"""

import hashlib
import os
import time
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from infra.errors import SlipwayError
from infra.transport import rsync
from infra.transport.protocol import READ_BYTES, ConnectionLost, Meter, Result, TimedOut, Transport, Unreachable
from infra.transport.ssh import Ssh
from infra.units import size as in_words
from store.backoff import Backoff

LARGE_BYTES = 32 << 20  # files above this size are compared with the receiver's draft before sending
PIECE_BYTES = 32 << 20
ASK_S = 60.0
SLOWEST_BYTES_PER_S = 100_000  # assumed minimum throughput
SLOWEST_DISK_BYTES_PER_S = 10e6
BACKOFF = Backoff(0.5, longest_s=10.0, certain=0.0)
FULL = "No space left on device"
SUMS = """
import hashlib, os, sys
path, size, piece = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
if os.path.exists(path):
    with open(path, "rb") as file:
        print(os.fstat(file.fileno()).st_size)
        for start in range(0, size, piece):
            left, sha = min(piece, size - start), hashlib.sha256()
            while left:
                part = file.read(min(left, 1 << 20))
                if not part:
                    sys.exit(0)
                sha.update(part)
                left -= len(part)
            print(sha.hexdigest())
"""
TAKE = """
import hashlib, os, sys
path, start, size, total, sha = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]), hashlib.sha256()
os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
try:
    with open(os.open(path, os.O_WRONLY | os.O_CREAT, 0o644), "wb") as file:
        if os.fstat(file.fileno()).st_size > total:
            os.ftruncate(file.fileno(), total)
        file.seek(start)
        for part in iter(lambda: sys.stdin.buffer.read(1 << 20), b""):
            sha.update(part)
            file.write(part)
            size -= len(part)
except OSError as error:
    sys.exit(error.strerror)
if size or sha.hexdigest() != sys.argv[5]:
    sys.exit("the piece was cut off")
"""

T = TypeVar("T")


@dataclass(frozen=True)
class TransferMethod:
    """The transfer method for large files to and from a machine."""

    program: str = ""
    """Path of rsync on the machine; "" = transfer in pieces."""
    compress: bool = False
    why: str = ""

    @property
    def name(self) -> str:
        return "rsync" if self.program else "pieces"


_ways: "weakref.WeakKeyDictionary[Ssh, TransferMethod]" = weakref.WeakKeyDictionary()


def transfer_method(transport: Transport) -> TransferMethod:
    """Return the transfer method for a machine; the machine is queried once per transport."""
    assert isinstance(transport, Ssh)
    if transport not in _ways:
        _ways[transport] = _choose(transport)
    return _ways[transport]


def _choose(transport: Ssh) -> TransferMethod:
    ours = rsync.local_version()
    if ours is None:
        return TransferMethod(why="this machine has no rsync 3.1 or later")
    program, theirs = rsync.remote_rsync(transport)
    if theirs is None:
        return TransferMethod(why="the remote machine has no rsync 3.1 or later")
    versions = f"{'.'.join(map(str, ours))} here, {'.'.join(map(str, theirs))} there"
    return TransferMethod(program, min(ours, theirs) >= rsync.OLDEST_FAST, versions)


def applies(transport: Transport, size: int) -> bool:
    """Return whether a file of `size` bytes is transferred by this module: SSH only, above LARGE_BYTES."""
    return isinstance(transport, Ssh) and size > LARGE_BYTES


def fetch(transport: Transport, source: str, draft: Path, size: int, meter: Meter) -> None:
    """Make the local `draft` equal to the first `size` bytes of the remote file `source`.

    `draft` may hold a part of these bytes, or different ones. Raises ConnectionLost when the connection breaks, with
    the progress kept in `draft`; FileNotFoundError for a missing source; and an error for a full disk after removing
    `draft`.
    """
    assert isinstance(transport, Ssh)
    draft.parent.mkdir(parents=True, exist_ok=True)
    meter.kept_bytes += draft.stat().st_size if draft.exists() else 0
    chosen = transfer_method(transport)
    meter.ways.add(chosen.name)
    try:
        if chosen.program:
            _fetch_by_rsync(transport, chosen, source, draft, size, meter)
        else:
            _fetch_pieces(transport, source, draft, size, meter)
    except (SlipwayError, OSError) as error:
        if FULL in str(error):
            draft.unlink(missing_ok=True)
        raise
    if draft.stat().st_size > size:  # the remote file grew meanwhile
        os.truncate(draft, size)


def put(transport: Transport, path: Path, draft: str, size: int, meter: Meter) -> None:
    """Make the remote `draft` equal to the first `size` bytes of the local file; errors as in `fetch`."""
    assert isinstance(transport, Ssh)
    chosen = transfer_method(transport)
    meter.ways.add(chosen.name)
    try:
        if chosen.program:
            _run(transport, ["mkdir", "-p", "--", os.path.dirname(draft)], ASK_S)
            rsync.copy(transport, chosen.program, str(path), rsync.place(draft), meter, chosen.compress)
        else:
            _put_pieces(transport, path, draft, size, meter)
    except (SlipwayError, OSError) as error:
        if FULL in str(error):
            _run(transport, ["rm", "-f", "--", draft], ASK_S)
        raise


def retry_while_progressing(
    action: Callable[[], T], meter: Meter, patience_s: float, tell: Callable[[str], object]
) -> T:
    """Retry a resumable transfer until success, or until no bytes arrived for `patience_s` seconds.

    Retries Lost, Unreachable and TimedOut with backoff, and reports each retry to `tell`.
    """
    since, seen, failures = time.monotonic(), meter.num_bytes, 0
    while True:
        try:
            return action()
        except (ConnectionLost, Unreachable, TimedOut) as error:
            if meter.num_bytes > seen:
                since, seen, failures = time.monotonic(), meter.num_bytes, 0
            if time.monotonic() - since > patience_s:
                raise
            meter.interruptions += 1
            failures += 1
            tell(f"{error}; {in_words(meter.num_bytes)} were transferred; resuming the transfer")
            time.sleep(BACKOFF.wait_s(failures))


def _fetch_by_rsync(transport: Ssh, chosen: TransferMethod, source: str, draft: Path, size: int, meter: Meter) -> None:
    """Fetch with rsync; fetch the first `size` bytes in pieces if the remote file is longer."""
    if draft.exists() and draft.stat().st_size > size:
        os.truncate(draft, size)
    try:
        rsync.copy(transport, chosen.program, rsync.place(source), str(draft), meter, chosen.compress, size)
    except rsync.LongerThanPromised:
        _fetch_pieces(transport, source, draft, size, meter)


def _fetch_pieces(transport: Ssh, source: str, draft: Path, size: int, meter: Meter) -> None:
    here = list(_sums(draft, size)) if draft.exists() else []
    there = _sums_there(transport, source, len(here) * PIECE_BYTES)[1] if here else []
    with open(os.open(draft, os.O_WRONLY | os.O_CREAT, 0o644), "wb") as file:
        for number, start in enumerate(range(0, size, PIECE_BYTES)):
            if number < min(len(here), len(there)) and here[number] == there[number]:
                continue
            file.seek(start)
            end = min(start + PIECE_BYTES, size)
            while file.tell() < end:
                piece = transport.read(source, file.tell())[: end - file.tell()]
                if not piece:
                    raise SlipwayError(f"{source} has shrunk during the transfer")
                file.write(piece)
                file.flush()
                meter.count(len(piece))


def _put_pieces(transport: Ssh, path: Path, draft: str, size: int, meter: Meter) -> None:
    held, there = _sums_there(transport, draft, size)
    meter.kept_bytes += held
    here = list(_sums(path, size))
    todo = [number for number, sha in enumerate(here) if number >= len(there) or there[number] != sha]
    if held > size and not todo:
        todo = [len(here) - 1]  # sending the last piece also truncates the draft
    for number in todo:
        start = number * PIECE_BYTES
        num_bytes = min(PIECE_BYTES, size - start)
        words = [transport.python, "-IS", "-c", TAKE, draft, str(start), str(num_bytes), str(size), here[number]]
        timeout_s = ASK_S + num_bytes / min(SLOWEST_BYTES_PER_S, meter.bytes_per_s or SLOWEST_BYTES_PER_S)
        _run(transport, words, timeout_s, _parts(path, start, num_bytes, meter))


def _parts(path: Path, start: int, num_bytes: int, meter: Meter) -> Iterator[bytes]:
    with path.open("rb") as file:
        file.seek(start)
        while num_bytes > 0 and (part := file.read(min(num_bytes, READ_BYTES >> 4))):
            num_bytes -= len(part)
            meter.count(len(part))
            yield part


def _sums(path: Path, size: int) -> Iterator[str]:
    """Yield the sha256 of each complete piece of a local file."""
    with path.open("rb") as file:
        for start in range(0, size, PIECE_BYTES):
            left, sha = min(PIECE_BYTES, size - start), hashlib.sha256()
            while left and (part := file.read(min(left, 1 << 20))):
                sha.update(part)
                left -= len(part)
            if left:
                return
            yield sha.hexdigest()


def _sums_there(transport: Ssh, path: str, size: int) -> tuple[int, list[str]]:
    """Return the size of a remote file and the sha256 of each complete piece; (0, []) for a missing file."""
    words = [transport.python, "-IS", "-c", SUMS, path, str(size), str(PIECE_BYTES)]
    held, *sums = _run(transport, words, ASK_S + size / SLOWEST_DISK_BYTES_PER_S).stdout.split() or ["0"]
    return int(held), sums


def _run(transport: Ssh, words: list[str], timeout_s: float, stdin: Iterator[bytes] | None = None) -> Result:
    done = transport.run(words, stdin=stdin, timeout_s=timeout_s)
    if done.exited != 0:
        raise SlipwayError(
            f"{words[-1] if stdin is None else words[4]}: {done.stderr.strip() or f'exit code {done.exited}'}"
        )
    return done
