"""Hints for file system errors: the owner of the path, and a helpful command."""

import errno
import os
import pwd
from pathlib import Path
from shlex import quote
from typing import Optional

REFUSED = (errno.EACCES, errno.EPERM)
ELSEWHERE = "set a different folder; inv config lists the settings"


def error_with_hint(error: OSError, checkout: Path) -> str:
    """Return the error as one line with a hint for the user.

    For a read-only file system the hint names the setting to change. For EACCES and EPERM the hint names the owner of
    the innermost visible path and a command that helps. For all other errors, return the error alone.
    """
    if error.errno == errno.EROFS:
        return f"{error}; this file system is read-only: {ELSEWHERE}"
    if error.errno not in REFUSED or not isinstance(error.filename, (str, bytes)):
        return str(error)
    path = Path(os.path.abspath(os.fsdecode(error.filename)))
    seen = [one for one in (path, *path.parents) if _owner(one) is not None]  # innermost path first
    owner, me = _owner(seen[0]), os.geteuid()
    if owner == me:
        return f"{error}; you own {seen[0]}; run: chmod u+rwX {quote(str(seen[0]))}"
    quoted, whose = quote(str(checkout)), f"{error}; {seen[0]} belongs to {_name(owner)}, and you are {_name(me)}"
    if checkout in seen and _owner(checkout) != me:
        trust, clone = f"git config --global --add safe.directory {quoted}/.git", f"git clone {quoted} ~/slipway"
        return f"{whose}; use your own checkout: {trust} && {clone}"
    ours = [one for one in seen if Path.home() in one.parents or checkout in one.parents]
    theirs = [one for one in ours if _owner(one) != me]
    return f"{whose}; run: sudo chown -R {_name(me)} {quote(str(theirs[-1]))}" if theirs else f"{whose}; {ELSEWHERE}"


def _owner(path: Path) -> Optional[int]:
    """Return the user id of the owner of a path, or None when the path is missing or cannot be inspected."""
    try:
        return path.lstat().st_uid
    except OSError:
        return None


def _name(uid: Optional[int]) -> str:
    try:
        return pwd.getpwuid(uid or 0).pw_name
    except KeyError:
        return f"user {uid}"
