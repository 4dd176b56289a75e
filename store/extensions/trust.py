"""The ownership check of extension files: code with the keys of the user must be writable by trusted users only."""

import os
import stat
from pathlib import Path

MOST_BYTES = 1 << 20  # maximum total size of an extension, which is shipped with the job


class ExtensionError(Exception):
    """An invalid extension; the message gives the extension, the line and the fix."""


def text_of(path: Path) -> str:
    """Return the text of a file that only trusted users can write. Raise ExtensionError.

    The code runs with the keys of the user, so a user without these keys must not be able to change the file.
    """
    try:
        if not stat.S_ISREG(path.stat().st_mode):  # no folders, and no pipes, which block on opening
            raise ExtensionError(f"{path} is no file")
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    except OSError as error:
        raise ExtensionError(f"{path}: {(error.strerror or str(error)).lower()}") from None
    with os.fdopen(descriptor, "rb") as file:
        about = os.fstat(file.fileno())
        real = Path(os.path.realpath(path))
        for place, one in ((real, about), *((folder, folder.stat()) for folder in real.parents)):
            if said := complaint(one, trusted_owners()):
                whose = f"{place} {said}" if place == real else f"{path} lies in {place}, which {said}"
                raise ExtensionError(
                    f"{whose}: the code would run with your keys; own the file, then: chmod go-w '{place}'"
                )
        raw = file.read(MOST_BYTES + 1)
    if len(raw) > MOST_BYTES:
        raise ExtensionError(
            f"{path} is larger than {MOST_BYTES >> 10} KiB, the limit for code that is sent with a run"
        )
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw[: error.start].count(b"\n") + 1
        raise ExtensionError(f"{path}:{line}: not UTF-8") from None


def trusted_owners() -> frozenset[int]:
    """Return the trusted user ids: this user, root, the owner of this file and, for root under sudo, the caller."""
    by_sudo = os.environ.get("SUDO_UID", "") if os.geteuid() == 0 else ""
    of_slipway = Path(__file__).stat().st_uid
    return frozenset({os.geteuid(), 0, of_slipway, *([int(by_sudo)] if by_sudo.isdecimal() else [])})


def complaint(about: os.stat_result, owners: frozenset[int]) -> str:
    """Return why an untrusted user may write the file or replace entries of the folder, or ""."""
    if about.st_uid not in owners:
        return f"belongs to {_user(about.st_uid)}"
    if stat.S_ISDIR(about.st_mode) and about.st_mode & stat.S_ISVTX:
        return ""  # sticky, such as /tmp: only the owner of an entry can replace the entry
    if about.st_mode & stat.S_IWOTH:
        return "may be written by all users"
    if about.st_mode & stat.S_IWGRP and about.st_gid != 0 and not _is_private_group(about.st_gid, about.st_uid):
        return "may be written by the group"
    return ""


def _user(uid: int) -> str:
    import pwd

    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"user {uid}"


def _is_private_group(gid: int, uid: int) -> bool:
    """Return whether a group belongs to a single user, as on systems with user private groups."""
    import grp
    import pwd

    try:
        user = pwd.getpwuid(uid)
        return user.pw_gid == gid and set(grp.getgrgid(gid).gr_mem) <= {user.pw_name}
    except KeyError:
        return gid == uid
