"""Copying what is kept of runs, between a laptop and a control host.

Of a run at work that is its code as it was launched, with which it goes on elsewhere, and its logs; of one that is over
its logs and last words. In: the folders with the logs of runs, here and there, and the names of runs.
"""

import contextlib
import io
import json
import logging
import os
import secrets
import tarfile
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO

from infra.errors import SlipwayError, UsageError
from infra.ledger.journal import Journal
from infra.runs.pods import folder_of
from infra.runs.sync import mirror
from infra.runs.sync.snapshot import CARRIED
from infra.transport import large_files
from infra.transport.meter import Meter
from infra.transport.protocol import ThisMachine, Transport

BASE_S = 60.0
SLOWEST_BYTES_PER_S = 100_000
KEPT_BYTES = 256 << 20  # of the packed logs of all runs
TAKE = 'mkdir -p -- "$1" && tar -xzf - -C "$1"'
# Whole folders by their names as words, only the files that lie in them by their names on stdin.
GIVE = """
cd -- "$1" 2>/dev/null || exit 0; draft=$2; shift 2
{ for one in "$@"; do [ ! -d "$one" ] || printf '%s\\n' "$one"; done
  while read -r one; do [ ! -d "$one" ] || find "$one" -maxdepth 1 -type f; done; } > "$draft.list"
[ ! -s "$draft.list" ] || tar -czf "$draft" -T "$draft.list"
code=$?; rm -f "$draft.list"; exit $code
"""
# A file or a folder as an archive of all that is not large, which is listed with its size.
PACK = """
import json, os, sys, tarfile
top, draft, least, large = sys.argv[1], sys.argv[2], int(sys.argv[3]), []
if not os.path.exists(top):
    sys.exit(3)
with tarfile.open(draft, "w:gz", compresslevel=1) as tar:
    def small(one):
        tar.inodes = {}  # a second name of a file is a file
        if not one.isfile() or one.size <= least:
            return one
        large.append([one.name, one.size, one.mode & 0o777])
    tar.add(os.path.realpath(top), os.path.basename(top), filter=small)
print(json.dumps({"is_folder": os.path.isdir(top), "large": large, "bytes": os.path.getsize(draft)}))
"""
NOT_THERE = 3


def gather(journal: Journal, here: Path) -> None:
    """Copy the logs and last words of runs on this machine to what is kept, which is read wherever the journal is."""
    for run in journal.runs():
        op = journal.ops(run=run)[-1]
        if op.vendor == "local" and op.address and folder_of(op).logs.is_dir():
            mirror.bring_logs(op, ThisMachine(), here / run)
            mirror.bring_words(op, ThisMachine(), here / run)


def send(machine: Transport, there: Path, here: Path, runs: Sequence[str], over: Sequence[str]) -> None:
    """Copy the kept files of these runs there; of those that are over no folders. Raises SlipwayError."""
    names = [name for name in runs if (here / name).is_dir()]
    files = [one for name in over if (here / name).is_dir() for one in sorted((here / name).iterdir()) if one.is_file()]
    if not (names or files):
        return
    with tempfile.TemporaryFile() as file:
        with tarfile.open(fileobj=file, mode="w:gz", compresslevel=1) as tar:
            for name in names:
                tar.add(here / name, name, filter=lambda one: None if one.name == f"{name}/{CARRIED}" else one)  # noqa: B023
                if (here / name / CARRIED).is_file():
                    _add(tar, f"{name}/{CARRIED}", _moved((here / name / CARRIED).read_bytes(), there / name))
            for one in files:
                tar.add(one, one.relative_to(here))
        limit_s = BASE_S + file.tell() / SLOWEST_BYTES_PER_S
        file.seek(0)
        done = machine.run(["sh", "-c", TAKE, "sh", str(there)], stdin=_pieces(file), timeout_s=limit_s)
    if done.exited != 0:
        raise SlipwayError(
            f"what is kept of {', '.join(names) or 'earlier runs'} cannot be sent: {done.stderr.strip()}"
        )


def fetch(machine: Transport, there: Path, here: Path, runs: Sequence[str], over: Sequence[str]) -> None:
    """Bring what is kept there of these runs; of those that are over no folders. Raises SlipwayError."""
    draft = f"{there}/.{secrets.token_hex(4)}.tgz"
    done = machine.run(["sh", "-c", GIVE, "sh", str(there), draft, *runs], timeout_s=BASE_S * 10,
                       stdin="".join(f"{name}\n" for name in over).encode())  # fmt: skip
    if done.exited != 0:
        raise SlipwayError(f"what is kept of {', '.join(runs) or 'earlier runs'} cannot be packed there: "
                           f"{done.stderr.strip()}")  # fmt: skip
    try:
        content = machine.get(draft, KEPT_BYTES)
    except FileNotFoundError:
        return
    machine.run(["rm", "-f", draft], timeout_s=BASE_S)
    _extract(io.BytesIO(content), _made(here))
    for path in here.glob(f"*/{CARRIED}"):
        if path.parent.name in runs:
            path.write_bytes(_moved(path.read_bytes(), path.parent))


def fetch_path(machine: Transport, there: Path, here: Path, drafts: Path) -> Path:
    """Bring a file or a folder; return where it is. One that is here is replaced file by file.

    A file goes into `here` where that is a folder. `drafts`: a folder there that is ours. Raises SlipwayError.
    """
    draft = f"{drafts}/.{secrets.token_hex(4)}.tgz"
    try:
        words = [machine.python, "-c", PACK, str(there), draft, str(large_files.LARGE_BYTES)]
        done = machine.run(words, timeout_s=BASE_S * 10)
        if done.exited == NOT_THERE:
            raise UsageError(f"there is no {there} on the control host")
        if done.exited != 0:
            raise SlipwayError(f"{there} cannot be copied: {(done.stderr.strip().splitlines() or ['?'])[-1]}")
        packed = json.loads(done.stdout)
        target = here if packed["is_folder"] or not here.is_dir() else here / there.name
        if target.exists() and target.is_dir() is not packed["is_folder"]:
            kinds = ("a folder", "a file") if target.is_dir() else ("a file", "a folder")
            raise UsageError(f"{target} is {kinds[0]}, and {there} is {kinds[1]}; name another place: --to PATH")
        with tempfile.TemporaryDirectory(dir=_made(target.parent), prefix=".slipway-") as name:
            folder = Path(name)
            _fetch_whole(machine, draft, folder / "small", packed["bytes"])
            with (folder / "small").open("rb") as file:
                _extract(file, folder / "all")
            for path, size, mode in packed["large"]:
                _fetch_whole(machine, str(there.parent / path), folder / "all" / path, size)
                (folder / "all" / path).chmod(mode)
            _put(folder / "all" / there.name, target)
    finally:
        with contextlib.suppress(SlipwayError):  # a connection that is lost has been told already
            machine.run(["rm", "-f", draft], timeout_s=BASE_S)
    return target


def _fetch_whole(machine: Transport, source: str, path: Path, size: int) -> None:
    """Copy a file, also over a connection that is cut on the way."""
    meter = Meter()
    large_files.persist(lambda: mirror.fetch(machine, source, path, size, meter), meter, mirror.PATIENCE_S, _log)


def _log(words: str) -> None:
    logging.getLogger(__name__).warning("%s", words)


def _put(source: Path, target: Path) -> None:
    if source.is_dir():
        for one in source.iterdir():
            _put(one, _made(target) / one.name)
    else:
        os.replace(source, target)


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _extract(file: IO[bytes], folder: Path) -> None:
    with tarfile.open(fileobj=file, mode="r:gz") as tar:
        if hasattr(tarfile, "tar_filter"):
            tar.extraction_filter = staticmethod(tarfile.tar_filter)  # nothing lands outside of the folder
        tar.extractall(folder)


def _moved(carried: bytes, folder: Path) -> bytes:
    """Return the list of files that go along with the code of a run, with paths in `folder`."""
    found = json.loads(carried)
    return json.dumps([{**one, "source": str(folder / os.path.basename(one["source"]))} for one in found]).encode()


def _add(tar: tarfile.TarFile, name: str, content: bytes) -> None:
    about = tarfile.TarInfo(name)
    about.size = len(content)
    tar.addfile(about, io.BytesIO(content))


def _pieces(file: IO[bytes]) -> Iterator[bytes]:
    while piece := file.read(1 << 20):
        yield piece
