"""Push of a checkout's code onto a pod, over any transport.

A push takes two requests to `infra/agent/receive.py`, which is sent along: the listing of files, answered by the paths
of unknown files -> one stream with the inspected and hashed files. Files unchanged on both sides since the last push
are only listed. Without changes the second request is omitted.
"""

import hashlib
import itertools
import json
import logging
import os
import time
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from infra.agent import receive
from infra.agent.job import PodFolder
from infra.errors import SlipwayError, UsageError
from infra.transport import large_files, shipment
from infra.transport.protocol import Meter, ThisMachine, Transport, retry_once
from infra.transport.scan.inspector import FRESH_NS, FileInspector, pieces
from infra.transport.shipment import FileRefusal
from store import untrusted_input

BASE_S = 60.0
SLOWEST_BYTES_PER_S = 100_000
MEMORY_BYTES = 256 << 20  # list of a million files
MEMORY_VALUES = 16_000_000
ANSWER_BYTES = 64 << 20  # differing paths of half a million files
_CHUNK = 1 << 16
PATIENCE_S = 120.0  # seconds of retries while a large file cannot be sent
SLOWEST_DISK_BYTES_PER_S = 10e6
BASIS = """[ -e "$2" ] || [ ! -f "$1" ] || [ -L "$1" ] || { mkdir -p "${2%/*}" && cp -- "$1" "$2"; }"""


@dataclass(frozen=True)
class PushResult:
    """The result of a push, in numbers of files."""

    sent: int
    unchanged: int
    removed: int
    refused: tuple[FileRefusal, ...] = ()


def push(
    machine: Transport,
    root: Path,
    dest: str | Path,
    token: str,
    file: str = "",
    meter: Meter | None = None,
    anyway: Sequence[str] = (),
) -> PushResult:
    """Copy the code of `root` into `dest`: all files that git would keep except secrets, which are returned as refused.

    `file` limits the push to this file of `root`; `dest` then holds only this file. `anyway` lists apparent secrets to
    send on the user's request. `dest` must lie beside the marker of the pod with `token`. The push removes files of an
    earlier push if deleted in `root`, keeps files made by the pod, and does not touch unchanged files. Safe to repeat
    after any error.

    Large files are sent first and resume an interrupted attempt; `meter` counts their bytes.

    Raises UsageError for a refusal on either side.
    """
    used = meter or Meter()
    inspector = FileInspector.for_folder(root.resolve(), anyway)
    return retry_once(lambda: _push(machine, inspector, dest, token, file, used))


def _push(
    machine: Transport, inspector: FileInspector, dest: str | Path, token: str, only: str, meter: Meter
) -> PushResult:
    root = inspector.root
    now = time.time_ns()
    where = {"dest": str(dest), "token": token}
    found: dict[str, os.stat_result] = {}

    def question() -> Iterator[bytes]:  # consumed while the pod's interpreter starts
        found.update({only: os.lstat(root / only)} if only else shipment.survey(root))
        yield _packed({"listing": [[path, _stamp(seen), shipment.mode(seen)] for path, seen in found.items()]})

    answer = _exchange(machine, where, question(), BASE_S)
    keep, send, large, refused = [], [], [], []
    for path, held in answer["ask"].items():
        seen = found[path]
        sha, reason = inspector.inspect(path, seen)
        is_fresh = max(seen.st_mtime_ns, seen.st_ctime_ns) > now - FRESH_NS
        entry = [path, None if is_fresh else _stamp(seen), shipment.mode(seen), sha]
        if reason:
            refused.append(FileRefusal(path, reason))
        elif sha == held:
            keep.append(entry)
        elif entry[2] != "link" and large_files.applies(machine, seen.st_size):
            number = hashlib.sha256(os.fsencode(path)).hexdigest()[:8]  # two files may have the same content
            large.append([*entry, f"{sha}.{number}", seen.st_size])
        else:
            send.append([*entry, seen.st_size])
    if len(refused) == len(found):
        raise UsageError(f"{root}: no file to send")
    remove = answer["gone"] + [refusal.path for refusal in refused]
    removed = 0
    if keep or send or large or remove:
        for path, _, _, _, draft, size in large:
            _send_large(machine, root / path, Path(dest), path, f"{receive.INCOMING}/{draft}", size, meter)
        request = _packed({"remove": remove, "keep": keep, "send": send, "large": large})
        timeout_s = BASE_S + sum(entry[4] for entry in send) / SLOWEST_BYTES_PER_S
        level = 0 if isinstance(machine, ThisMachine) else 1  # a pipe is faster than any compression
        contents = _contents(root, [(entry[0], entry[4]) for entry in send], level)
        removed = _exchange(machine, where, itertools.chain([request], contents), timeout_s)["removed"]
    num_sent = len(send) + len(large)
    return PushResult(
        num_sent, len(found) - num_sent - len(refused), removed, tuple(sorted(refused, key=lambda one: one.path))
    )


def adopt(machine: Transport, dest: str | Path, token: str) -> str:
    """Fill `dest` with the content of the newest push on the machine into a folder of the same name, in any pod.

    Returns the source pod's folder, or "" without such a push. Raises UsageError for a refusal.
    """
    return str(
        retry_once(lambda: _exchange(machine, {"dest": str(dest), "token": token}, [_packed({"adopt": True})], BASE_S))[
            "of"
        ]
    )


def differences(
    machine: Transport, root: Path, dest: str | Path, token: str, file: str = "", anyway: Sequence[str] = ()
) -> list[str]:
    """Return the paths to send or remove in a push with these arguments, as of now."""
    inspector = FileInspector.for_folder(root.resolve(), anyway)
    found: dict[str, os.stat_result] = {}

    def ask() -> Any:
        found.update({file: os.lstat(root / file)} if file else shipment.survey(root.resolve()))
        listing = [[path, _stamp(seen), shipment.mode(seen)] for path, seen in found.items()]
        return _exchange(machine, {"dest": str(dest), "token": token}, [_packed({"listing": listing})], BASE_S)

    answer = retry_once(ask)
    differ = list(answer["gone"])
    for path, held in answer["ask"].items():
        sha, reason = inspector.inspect(path, found[path])
        differ += [path] if sha != held and not reason else []
    return sorted(differ)


def pushed(machine: Transport, dest: str | Path) -> dict[str, str]:
    """Return the sha256 by path of the last push into `dest`, or an empty dict without a push."""
    try:
        raw = machine.get(PodFolder(Path(dest).parent).state / receive.MEMORY, MEMORY_BYTES)
        memory = untrusted_input.mapping(raw, MEMORY_BYTES, MEMORY_VALUES, half_pairs="surrogateescape")
    except FileNotFoundError:
        return {}
    except untrusted_input.UnusableDocument as error:
        raise SlipwayError(f"the list of the last push to {dest} cannot be read: {error}") from None
    known = {path: entry for path, entry in memory.items() if entry is None or type(entry) is list and len(entry) > 2}
    return {path: str(entry[2]) if entry else "" for path, entry in known.items()}


def _exchange(machine: Transport, where: dict[str, str], request: Iterable[bytes], timeout_s: float) -> Any:
    code = Path(receive.__file__).read_bytes()
    # Isolated mode without `site` halves the start-up, and settings of the pod cannot change the executed code.
    words = [machine.python, "-ISX", "utf8", "-c", f"import sys; exec(sys.stdin.buffer.read({len(code)}))"]
    stdin = itertools.chain([code + json.dumps(where).encode() + b"\n"], request)
    done = machine.run(words, stdin=stdin, timeout_s=timeout_s, limit_bytes=ANSWER_BYTES)
    if done.exited == receive.REFUSED:
        raise UsageError(done.stderr.strip())
    if done.exited != 0:
        raise SlipwayError(f"push to {where['dest']}: {done.stderr.strip() or f'exit code {done.exited}'}")
    return json.loads(done.stdout)


def _send_large(machine: Transport, path: Path, dest: Path, name: str, draft: str, size: int, meter: Meter) -> None:
    """Upload a large file to a draft on the pod, based on the pod's current version of the file.

    Raises UsageError if the local size changed meanwhile.
    """
    draft = f"{dest.parent}/{draft}"
    words = ["sh", "-c", BASIS, "sh", f"{dest}/{name}", draft]
    done = machine.run(words, timeout_s=BASE_S + size / SLOWEST_DISK_BYTES_PER_S)
    if done.exited != 0:
        raise SlipwayError(f"push of {name}: {done.stderr.strip() or f'exit code {done.exited}'}")
    warn = logging.getLogger(__name__).warning
    large_files.retry_while_progressing(
        lambda: large_files.put(machine, path, draft, size, meter), meter, PATIENCE_S, warn
    )
    if path.stat().st_size != size:
        raise UsageError(f"{name} changed during the transfer; push again")


def _packed(request: dict[str, Any]) -> bytes:
    text = zlib.compress(json.dumps(request).encode(), 1)
    return b"%d\n" % len(text) + text


def _stamp(seen: os.stat_result) -> list[int]:
    return [seen.st_size, seen.st_mtime_ns, seen.st_ctime_ns, seen.st_ino]


def _contents(root: Path, files: list[tuple[str, int]], level: int) -> Iterator[bytes]:
    """Yield one zlib stream of the files, in chunks. Raises UsageError if the size of a file has changed."""
    deflate = zlib.compressobj(level)
    held: list[bytes] = []
    num_held = 0
    for path, size in files:
        left = size
        for piece in pieces(root, path):
            left -= len(piece)
            held.append(deflate.compress(piece))
            num_held += len(held[-1])
            if num_held >= _CHUNK:
                yield b"".join(held)
                held, num_held = [], 0
        if left:
            raise UsageError(f"{path} changed during the transfer; push again")
    yield b"".join(held) + deflate.flush()
