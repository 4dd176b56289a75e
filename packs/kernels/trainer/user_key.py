"""The key of this user on this machine, which signs kernels and verifies kept kernels.

- A store in a folder has a key file in the folder, with mode 600. Other users of the folder cannot read the file, and
  cannot make a file that belongs to this user.
- For a remote store, a job on a rented machine gets a key as a secret; an own machine has a key file of its own, so
  that rented machines cannot sign kernels for own machines.
"""

import contextlib
import os
import secrets
import stat
import sys
from collections.abc import Mapping
from pathlib import Path

from packs.kernels.records.job_variables import JOB_KEY, OWN
from store import credentials, local_files

# File systems of a single machine that keep owner and mode. Others, such as NFS and FAT, may report wrong owners.
LOCAL = {"ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "f2fs", "bcachefs", "overlay", "tmpfs"}
KEY_BYTES = 32
MOUNTS = Path("/proc/self/mountinfo")


class NoKey(Exception):
    """No key may be used; the message gives the reason."""


def find_key(store: str, mode: str, environ: Mapping[str, str] = os.environ) -> bytes:
    """Return the key for a store, and make a missing key file. Raises NoKey."""
    if credentials.kind(store) in ("", "file"):
        return _of_file(Path(os.path.realpath(store.removeprefix("file://")), f".kernels-key-{os.geteuid()}"))
    if mode == OWN:
        config = Path(environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")
        return _of_file(config / "slipway" / "kernels-key")
    if not environ.get(JOB_KEY):
        raise NoKey("the job has no key for kernels in a remote store")
    return environ[JOB_KEY].encode()


def _of_file(path: Path) -> bytes:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if (kind := file_system(path.parent)) not in LOCAL:
            raise NoKey(f"the file system of {path.parent} ({kind or 'unknown'}) may report wrong owners of files")
        with contextlib.suppress(FileExistsError):
            local_files.create(path, secrets.token_bytes(KEY_BYTES), mode=0o600)
        return _read(path)
    except OSError as error:
        raise NoKey(f"{path}: {error.strerror}") from None


def _read(path: Path) -> bytes:
    with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as file:
        seen = os.fstat(file.fileno())
        is_ours = seen.st_uid == os.geteuid() and stat.S_ISREG(seen.st_mode) and seen.st_nlink == 1
        if not is_ours or seen.st_mode & 0o077:
            raise NoKey(f"{path} is not a file of this user alone (mode 600). Remove the file")
        key = file.read(KEY_BYTES + 1)
    if len(key) != KEY_BYTES:
        raise NoKey(f"{path} has not {KEY_BYTES} bytes. Remove the file")
    return key


def file_system(folder: Path) -> str:
    """Return the type of the file system of a folder, "" = unknown."""
    if not sys.platform.startswith("linux") or not MOUNTS.exists():
        return ""
    here, found = os.path.realpath(folder), ("", "")
    for line in MOUNTS.read_text(errors="replace").splitlines():
        words, _, rest = line.partition(" - ")
        at = words.split()[4].encode().decode("unicode_escape")  # spaces are written as \040
        if (here == at or here.startswith(at.rstrip("/") + "/")) and len(at) >= len(found[0]):
            found = at, rest.split()[0]
    return found[1]
