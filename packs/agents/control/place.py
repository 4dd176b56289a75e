"""Places of the files and sockets of allowances. Light: `status` imports this module."""

import hashlib
import os
import shutil
import tempfile
from pathlib import Path

from infra.errors import UsageError
from infra.settings import Settings


def folder(settings: Settings) -> Path:
    """Return the folder of the files of all allowances, beside the journal."""
    return settings.state_file.with_name(f"{settings.state_file.stem}-allowances")


def open_folder(name: str, settings: Settings) -> Path:
    """Return a folder that the user of an allowance may enter: the folder of the journal is closed to other users.

    Raises UsageError if another user has made the folder.
    """
    found = open_path(name, settings)
    found.mkdir(mode=0o711, exist_ok=True)
    if found.is_symlink() or found.stat().st_uid != os.getuid():
        raise UsageError(f"{found} belongs to another user; choose another name for the allowance")
    found.chmod(0o711)
    return found


def remove_open_folder(name: str, settings: Settings) -> None:
    """Remove the folder of an allowance that has ended, if there is one."""
    found = open_path(name, settings)
    if found.is_dir() and not found.is_symlink() and found.stat().st_uid == os.getuid():
        shutil.rmtree(found, ignore_errors=True)


def open_path(name: str, settings: Settings) -> Path:
    """Return the path of the folder: a rehearsal and each checkout with a journal of its own have different paths."""
    world = hashlib.sha256(os.fsencode(settings.state_file.absolute())).hexdigest()[:8]
    return Path(tempfile.gettempdir()) / f"slipway-{os.getuid()}-{name}-{world}"
