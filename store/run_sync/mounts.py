"""The folders that a job file mounts: `<store>/mounts/<name>/` beyond every run, or a folder of a bucket.

A pod has a local copy, `work/mounts/<name>/`: the uploader downloads the stored files before the job starts and uploads
changes of the job. A file is uploaded once unchanged between two looks, the oldest first, so that a marker written last
arrives last. Files that the job deletes are deleted in the store. If two runs write one file, the last write wins, as
in a bucket.

A bucket with the mode MOUNT is mounted by rclone during each script (`infra.agent.execution.bucket_mount`), if the
machine has rclone and FUSE; else the bucket is copied like the others. A record beside the folder keeps the decision.
"""

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from store import local_files
from store.backends.backend import ListedFile, open_place
from store.manifest import AccessDenied, check_name
from store.run_sync.run_folder import spool
from store.untrusted_input import is_inside

WORK = "work/mounts"
STILL, MOUNT = "still", "mount"  # kinds of folders, see `store.uploader.Config.mounts`
FUSE = "/dev/fuse"
TRY_S = 20.0  # for the mount of an empty folder, which takes 0.1 s

Stamp = tuple[int, int]  # size in bytes and mtime in ns


def fuse_problem() -> str:
    """Return the reason why rclone cannot mount a bucket on this machine, or ""."""
    missing = [
        name
        for name, tools in (("rclone", ("rclone",)), ("fuse3", ("fusermount3", "fusermount")))
        if not any(map(shutil.which, tools))
    ]
    if not sys.platform.startswith("linux"):
        return "rclone mounts buckets on Linux only"
    if missing:
        return f"this machine lacks {' and '.join(missing)} (Debian, Ubuntu: apt install {' '.join(missing)})"
    try:
        os.close(os.open(FUSE, os.O_RDWR))
    except OSError as error:
        return f"this machine gives no access to FUSE ({error})"
    return ""


def mount_problem() -> str:
    """Return the reason why rclone cannot mount an empty folder of this machine, or "": containers often refuse."""
    with tempfile.TemporaryDirectory(prefix="slipway-") as folder:
        source, point = Path(folder, "source"), Path(folder, "point")
        source.mkdir()
        point.mkdir()
        words = ["rclone", "mount", str(source), str(point), "--config", os.devnull]
        with subprocess.Popen(words, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
            deadline = time.monotonic() + TRY_S
            while process.poll() is None and not os.path.ismount(point) and time.monotonic() < deadline:
                time.sleep(0.05)
            is_mounted = os.path.ismount(point)
            process.terminate()
            said = process.communicate()[1].strip().splitlines()
    return "" if is_mounted else f"rclone cannot mount on this machine ({said[-1] if said else 'no reason given'})"


class MountFolder:
    """A mounted folder, on the pod and in a store. All methods may raise StoreError and OSError."""

    def __init__(self, store: str, name: str, root: Path, place: str = "", kind: str = "") -> None:
        """Open the folder. `place`: address of a folder or file of a bucket, "" = the folder `name` of the store."""
        self.kind, self._mount_path = kind, root / WORK / f".{name}.mount"
        self.name, self.under = check_name(name), "" if place else f"mounts/{check_name(name)}"
        self.here = root / WORK / name
        self.place, self.uri = place, place or f"{store}/{self.under}"
        self._place = open_place(place or str(store))
        self._record_path = self.here.parent / f".{name}.kept"  # record of files in sync with the store
        self._seen: dict[str, Stamp] = {}
        self._synced: dict[str, Stamp] = self._read_record()

    def leave_to_rclone(self) -> str:
        """Decide whether rclone mounts the bucket; return "", or the reason for a copy. The decision of a pod stays."""
        if self.kind != MOUNT:
            why = "the job asks for a copy"
        elif self.here.is_dir():
            why = "the files are on the pod already"
        elif self._mount_path.exists():
            return ""
        else:
            why = fuse_problem() or mount_problem() or self._file_problem()
        if why:
            self._mount_path.unlink(missing_ok=True)
        else:
            local_files.replace(self._mount_path, f"{self.place}\n".encode())
        return why

    def _file_problem(self) -> str:
        """Return why the address cannot be mounted: rclone mounts folders only."""
        above, _, last = self.place.rpartition("/")
        if above.endswith("/"):  # a whole bucket
            return ""
        try:
            open_place(above).get(last, 0, 1)
        except (FileNotFoundError, AccessDenied):  # a service may deny the question about a missing file
            return ""
        return f"{self.place} is a file"

    def download_missing(self, told: Callable[[int, int], object]) -> int:
        """Download all stored files missing on the pod; return their number.

        The callback `told` receives the bytes so far and the total bytes.
        """
        there = self._stored_files()
        missing = {name: one for name, one in there.items() if not (self.here / name).exists()}
        total, done = sum(one.size for one in missing.values()), 0
        self.here.mkdir(parents=True, exist_ok=True)
        for name in missing:
            path = self.here / name
            path.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile(dir=self.here.parent, prefix=".tmp-", delete=False) as draft:
                try:
                    for piece in self._place.read_chunks(self._at(name), self._place.current_revision()):
                        draft.write(piece)
                        told(done + draft.tell(), total)
                    draft.flush()
                    done += draft.tell()
                    Path(draft.name).replace(path)
                except BaseException:
                    Path(draft.name).unlink(missing_ok=True)
                    raise
            self._synced[name] = stamp_of(path)
        self._write_record()
        return len(missing)

    def pending(self) -> list[str]:
        """Return the files to upload, oldest first, then the files to delete in the store."""
        now = self._local_stamps()
        new = sorted((one for one, stamp in now.items() if self._synced.get(one) != stamp), key=lambda one: now[one][1])
        # Without the folder itself, a cleanup of the pod and no job has removed the files.
        return [*new, *(name for name in self._synced if name not in now and self.here.is_dir())]

    def upload_changes(self, last: bool = False) -> list[str]:
        """Upload files unchanged since the last look, or all files if `last`; return the names still pending."""
        now = self._local_stamps()
        for name in self.pending():
            if name not in now:
                self._place.put({}, [self._at(name)])
                del self._synced[name]
            elif last or self._seen.get(name) == now[name]:
                self._put(name, now[name])
        self._seen = now
        self._write_record()
        return self.pending()

    def _put(self, name: str, stamp: Stamp) -> None:
        path = self.here / name
        with tempfile.TemporaryDirectory(prefix="slipway-") as folder, contextlib.suppress(FileNotFoundError):
            source, digest = spool(_pieces(path), Path(folder, "0"))
            if stamp_of(path) != stamp:
                return  # still being written; retry at the next look
            at = self._at(name)
            self._place.put({at: source})
            if self._place.sha256(at, self._place.current_revision()) == digest:
                self._synced[name] = stamp

    def _local_stamps(self) -> dict[str, Stamp]:
        found = {}
        for path in self.here.rglob("*"):
            with contextlib.suppress(FileNotFoundError):
                if path.is_file() and not path.is_symlink():
                    found[path.relative_to(self.here).as_posix()] = stamp_of(path)
        return found

    def _at(self, name: str) -> str:
        return f"{self.under}/{name}" if self.under else name

    def _stored_files(self) -> dict[str, ListedFile]:
        listed = self._place.listing(self.under)
        above, _, last = self.uri.rstrip("/").rpartition("/")
        if not listed and not self.under and not above.endswith("/"):  # The address may name a file.
            place = open_place(above)
            if last in (found := place.listing()):
                self._place, listed = place, {last: found[last]}
        named = {path.removeprefix(f"{self.under}/"): one for path, one in listed.items()}
        return {name: one for name, one in named.items() if is_inside(name)}

    def _read_record(self) -> dict[str, Stamp]:
        try:
            lines = self._record_path.read_text(encoding="utf-8").splitlines()
            found = {name: (int(size), int(at)) for size, at, name in (line.split(" ", 2) for line in lines)}
        except (OSError, ValueError):
            return {}
        return found

    def _write_record(self) -> None:
        text = "".join(f"{size} {at} {name}\n" for name, (size, at) in self._synced.items() if "\n" not in name)
        local_files.replace(self._record_path, text.encode())


def stamp_of(path: Path) -> Stamp:
    found = path.stat()
    return found.st_size, found.st_mtime_ns


def _pieces(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while piece := file.read(1 << 20):
            yield piece
