"""Places of the files and sockets of allowances. Light: `status` imports this module."""

import os
import tempfile
from pathlib import Path

from infra.errors import UsageError
from infra.settings import Settings


def folder(settings: Settings) -> Path:
    """Return the folder of the files of all allowances, beside the journal."""
    return settings.state_file.with_name(f"{settings.state_file.stem}-allowances")


def open_folder(name: str) -> Path:
    """Return a folder that the user of an allowance may enter: the folder of the journal is closed to other users.

    Raises UsageError if another user has made the folder.
    """
    found = Path(tempfile.gettempdir()) / f"slipway-{os.getuid()}-{name}"
    found.mkdir(mode=0o711, exist_ok=True)
    if found.is_symlink() or found.stat().st_uid != os.getuid():
        raise UsageError(f"{found} belongs to another user; choose another name for the allowance")
    found.chmod(0o711)
    return found
