"""Check who can have written a file: it is read only if nobody else can, as its code will run with the user's keys."""

import os
import stat
from pathlib import Path

MOST_BYTES = 1 << 20  # bytes of all files of one extension, which are part of the job


class ExtensionError(Exception):
    """An extension is not as it must be: which, in which line, and what would do."""


def text_of(path: Path) -> str:
    """Return the text of a file that nobody else can have written. Raises ExtensionError.

    Its code runs with the keys of whoever types commands, so it must not be anybody's who does not have these.
    """
    try:
        if not stat.S_ISREG(path.stat().st_mode):  # not a folder, and not a pipe, whose opening would block
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
                raise ExtensionError(f"{whose}: its code would run with your keys; own it, then: chmod go-w '{place}'")
        raw = file.read(MOST_BYTES + 1)
    if len(raw) > MOST_BYTES:
        raise ExtensionError(f"{path} is larger than {MOST_BYTES >> 10} KiB, which is more than can be sent with a run")
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw[: error.start].count(b"\n") + 1
        raise ExtensionError(f"{path}:{line}: not UTF-8") from None


def trusted_owners() -> frozenset[int]:
    """Return whose code runs with our keys anyway: ours, root's, and whoever owns this very code."""
    by_sudo = os.environ.get("SUDO_UID", "") if os.geteuid() == 0 else ""
    of_slipway = Path(__file__).stat().st_uid
    return frozenset({os.geteuid(), 0, of_slipway, *([int(by_sudo)] if by_sudo.isdecimal() else [])})


def complaint(about: os.stat_result, owners: frozenset[int]) -> str:
    """Return why somebody else may have written a file, or may replace what is in a folder; "" when nobody can."""
    if about.st_uid not in owners:
        return f"belongs to {_user(about.st_uid)}"
    if stat.S_ISDIR(about.st_mode) and about.st_mode & stat.S_ISVTX:
        return ""  # such as /tmp: only the owner of what is in it can replace that
    if about.st_mode & stat.S_IWOTH:
        return "may be written by everybody"
    if about.st_mode & stat.S_IWGRP and about.st_gid != 0 and not _is_private_group(about.st_gid, about.st_uid):
        return "may be written by its group"
    return ""


def _user(uid: int) -> str:
    import pwd

    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"user {uid}"


def _is_private_group(gid: int, uid: int) -> bool:
    """Return whether a group is a user's alone, as many systems make one for each."""
    import grp
    import pwd

    try:
        user = pwd.getpwuid(uid)
        return user.pw_gid == gid and set(grp.getgrgid(gid).gr_mem) <= {user.pw_name}
    except KeyError:
        return gid == uid
