"""Buckets that rclone mounts as file systems while a script of a job file runs.

    records of the uploader in `work/mounts` -> `mounted` -> folders with the contents of buckets, until the script ends

The uploader decides, before the job, which buckets are mounted and which are copied (`store.run_sync.mounts`); the
record of a mounted bucket has its address. The mount points are outside of the folder of the pod, so that the removal
of a folder of a pod never reaches a bucket. rclone ends with this process: the kernel sends SIGTERM, and rclone
unmounts. A mount whose rclone was killed answers ENOTCONN; the next script of this user removes the mount.

Standard library only, and syntax that Python 3.9 accepts, because this module runs on any machine. Linux only.
"""

import contextlib
import ctypes
import errno
import hashlib
import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Iterator, List, Mapping, Sequence, Tuple

KIND = "mount"  # of an entry of `Script.kept`
POLL_S = 0.1
START_S = 30.0
END_S = 10.0  # rclone needs less than a second to unmount
LOOK_S = 0.5
REPORT_S = 30.0  # between two reports of pending files
STILL_S = 300.0  # without a byte read or written by rclone, the pending files are given up
DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG of sys/prctl.h
TOOLS = ("fusermount3", "fusermount")
# A job may read and write anywhere in a file; rclone writes a closed file to the bucket after a second, and then keeps
# the copy on the disk for a minute.
OF_MOUNT = (
    *("--vfs-cache-mode", "writes", "--vfs-write-back", "1s", "--vfs-cache-max-age", "1m"),
    *("--dir-cache-time", "10s"),
)
ALWAYS = ("--config", "/dev/null", "--s3-env-auth", "--s3-no-check-bucket")
FAILED = "failed to upload try #"  # in rclone's log; rclone itself tries for ever
MOST_TRIES = 5
# rclone's library for S3 refuses this variable; rclone has a flag instead.
OWN_AUTHORITIES = "AWS_CA_BUNDLE"


class MountError(Exception):
    """rclone cannot mount a bucket."""


@contextlib.contextmanager
def mounted(root: Path, kept: Sequence[Sequence[str]], environ: Mapping[str, str]) -> "Iterator[List[BucketMount]]":
    """Mount the buckets of a script, and unmount the buckets at the end.

    root: folder of the pod. kept: as in `Script.kept`. Raises MountError.
    """
    records = {name: root / "work" / "mounts" / f".{name}.mount" for name, _, _, _, kind in kept if kind == KIND}
    addresses = {name: path.read_text(encoding="utf-8").strip() for name, path in records.items() if path.exists()}
    made: List[BucketMount] = []
    if addresses:
        remove_dead()
    try:
        for name, address in addresses.items():
            one = BucketMount(root, name, address)
            one.start(environ)
            made.append(one)
        yield made
    finally:
        for one in made:
            one.end()


def await_uploads(buckets: "Sequence[BucketMount]") -> List[str]:
    """Wait until every written file is in its bucket; return a problem per bucket with files that did not arrive."""
    return [why for why in (one.await_uploads() for one in buckets) if why]


class BucketMount:
    """A mounted bucket, or a folder of a bucket, and its rclone."""

    def __init__(self, root: Path, name: str, address: str) -> None:
        """Prepare. address: `s3://bucket/folder`."""
        self.name, self.address = name, address
        self.remote = ":s3:" + address.partition("://")[2]
        self.point = points_folder() / f"{hashlib.sha256(str(root).encode()).hexdigest()[:12]}-{name}"
        # The cache is a folder of the pod: after a kill, the next script of the pod uploads the rest.
        self.cache = root / "work" / "mounts" / f".{name}.cache"
        self.log = root / "work" / "mounts" / f".{name}.log"

    def start(self, environ: Mapping[str, str]) -> None:
        """Start rclone and wait until the bucket is mounted. Raises MountError."""
        remove_point(self.point)  # left by a killed script of this pod
        open_points_folder()
        for folder in (self.point, self.cache):
            folder.mkdir(parents=True, exist_ok=True)
        # Variables of rclone would change flags that are not in the words.
        self.environ = {
            key: value for key, value in environ.items() if key != OWN_AUTHORITIES and not key.startswith("RCLONE_")
        }
        self.words = [*ALWAYS, *service_words(environ)]
        libc = ctypes.CDLL(None)

        def begin() -> None:
            os.setsid()  # the signals of the script must not end rclone before the last upload
            libc.prctl(DEATH_SIGNAL, signal.SIGTERM)

        with open(self.log, "wb") as log:
            words = ["rclone", "mount", self.remote, str(self.point), *self.words]
            words += [*OF_MOUNT, "--cache-dir", str(self.cache)]
            try:
                self.process = subprocess.Popen(
                    words, env=self.environ, stdin=subprocess.DEVNULL, stdout=log, stderr=log, preexec_fn=begin
                )
            except OSError as error:
                raise MountError(f"{self.address}: rclone does not start: {error}; install rclone again") from None
        deadline = time.monotonic() + START_S
        while not os.path.ismount(self.point):
            if self.process.poll() is not None or time.monotonic() > deadline:
                said = self.last_words()
                self.end()
                raise MountError(
                    f"{self.address}: rclone could not mount the bucket: {said}; log: {self.log}; "
                    "write mode: MOUNT_CACHED for a copy on the disk of the pod"
                )
            time.sleep(POLL_S)

    def await_uploads(self) -> str:
        """Wait until every written file is in the bucket; report pending files. Return the problem, or ""."""
        said_at = moved_at = time.monotonic()
        moved, calm = self._moved_bytes(), 0
        while calm < 2 and self.process.poll() is None:  # a file that has just been closed shows at the second look
            pending, now = self.pending(), time.monotonic()
            calm = 0 if pending else calm + 1
            if self._moved_bytes() != moved:
                moved, moved_at = self._moved_bytes(), now
            if pending and (now > moved_at + STILL_S or self._tries() >= MOST_TRIES):
                return f"{_files(pending)} did not reach {self.address}: {self.last_words()}"
            if pending and now > said_at + REPORT_S:
                print(f"waiting for {_files(pending)} to reach {self.address}", flush=True)
                said_at = now
            time.sleep(LOOK_S)
        if self.process.poll() is None:
            return ""
        pending = self.pending()
        behind = f", before {_files(pending)} reached {self.address}" if pending else ""
        return f"rclone of {self.address} ended during the script{behind}: {self.last_words()}"

    def pending(self) -> List[str]:
        """Return the written files that are not yet in the bucket, from the records of rclone's cache."""
        found = []
        for folder, _, names in os.walk(self.cache / "vfsMeta"):
            for name in names:
                with contextlib.suppress(FileNotFoundError):
                    if _is_dirty(Path(folder, name).read_bytes()):
                        found.append(name)
        return sorted(found)

    def last_words(self) -> str:
        """Return the last line of rclone's log."""
        lines = self.log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        return lines[-1] if lines else "rclone gave no reason"

    def end(self) -> None:
        """Unmount the bucket; remove the mount point, and the cache without pending files."""
        if self.process.poll() is None:
            self.process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(END_S)
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        unmount(self.point)
        # Files of a folder that is still a mount are those of the bucket: a move would delete them there.
        if not (os.path.ismount(self.point) or _is_dead(self.point)) and any(self.point.iterdir()):
            self._upload_strays()
        remove_point(self.point)
        if not self.pending():
            shutil.rmtree(self.cache, ignore_errors=True)

    def _upload_strays(self) -> None:
        """Upload the files that the script wrote into the unmounted folder after rclone had ended.

        A cluster that takes its machine back sends SIGTERM to every process, rclone included, while the script saves.
        """
        print(f"rclone had ended; the files written since then are sent to {self.address}", flush=True)
        words = ["rclone", "move", "--delete-empty-src-dirs", str(self.point), self.remote, *self.words]
        with open(self.log, "ab") as log:
            done = subprocess.run(words, env=self.environ, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        if done.returncode:
            print(f"{self.point} keeps files that did not reach {self.address}: {self.last_words()}", flush=True)

    def _moved_bytes(self) -> Tuple[str, ...]:
        """Return the numbers of bytes that rclone has read and written, of files and sockets."""
        with contextlib.suppress(OSError):
            lines = Path(f"/proc/{self.process.pid}/io").read_text(encoding="ascii").splitlines()
            return tuple(line for line in lines if line.startswith(("rchar", "wchar")))
        return ()

    def _tries(self) -> int:
        """Return the largest number of failed tries of an upload, from rclone's log."""
        text = self.log.read_text(encoding="utf-8", errors="replace")
        numbers = [part.partition(",")[0] for part in text.split(FAILED)[1:]]
        return max((int(one) for one in numbers if one.isdigit()), default=0)


def service_words(environ: Mapping[str, str]) -> List[str]:
    """Return the flags of rclone for the S3 service of the variables that the AWS tools read."""
    endpoint = environ.get("AWS_ENDPOINT_URL_S3") or environ.get("AWS_ENDPOINT_URL", "")
    region = environ.get("AWS_REGION") or environ.get("AWS_DEFAULT_REGION") or "us-east-1"
    words = ["--s3-provider", "Other" if endpoint else "AWS", "--s3-region", region]
    words += ["--s3-endpoint", endpoint] if endpoint else []
    return words + (["--ca-cert", environ[OWN_AUTHORITIES]] if environ.get(OWN_AUTHORITIES) else [])


def points_folder() -> Path:
    return Path(tempfile.gettempdir()) / f"slipway-mounts-{os.getuid()}"


def open_points_folder() -> None:
    """Make the folder of the mount points, closed to other users. Raises MountError if another user has made it."""
    folder = points_folder()
    folder.mkdir(mode=0o700, exist_ok=True)
    if folder.is_symlink() or folder.stat().st_uid != os.getuid():
        raise MountError(f"{folder} belongs to another user; set TMPDIR to a folder of your own")
    folder.chmod(0o700)


def remove_dead() -> None:
    """Remove the mount points of this user whose rclone was killed."""
    for point in points_folder().glob("*"):
        if _is_dead(point):
            remove_point(point)


def unmount(point: Path) -> None:
    """Unmount a folder, if the folder is mounted."""
    tool = next((one for one in TOOLS if shutil.which(one)), "")
    if tool and (os.path.ismount(point) or _is_dead(point)):
        # Lazy: a process of the job may still have a file open.
        subprocess.run([tool, "-u", "-z", str(point)], stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def remove_point(point: Path) -> None:
    """Unmount a folder, and remove the empty mount point."""
    unmount(point)
    with contextlib.suppress(OSError):  # rmdir alone: a mounted bucket is never emptied
        point.rmdir()


def _files(names: Sequence[str]) -> str:
    more = f" and {len(names) - 3} more files" if len(names) > 3 else ""
    return f"{', '.join(names[:3])}{more}"


def _is_dead(point: Path) -> bool:
    try:
        os.stat(point)
    except OSError as error:
        return error.errno == errno.ENOTCONN
    return False


def _is_dirty(record: bytes) -> bool:
    try:
        return bool(json.loads(record)["Dirty"])
    except (ValueError, KeyError, TypeError):  # rclone is writing the record
        return True
