"""The identity of a journal's installation: an id that is stored besides it, in the user's configuration.

A configuration may be carried to other machines (dotfiles, a synchronized folder); a journal may not. So each journal
has a file there that remembers its machine, its path and its id. An id that another machine has too is nobody's new
one: two machines with one id would each take the other's pods for orphans.
"""

import contextlib
import hashlib
import os
import re
import socket
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from infra.agent.job import write_durably

MACHINE_IDS = (Path("/etc/machine-id"), Path("/var/lib/dbus/machine-id"))
_ID = re.compile("[a-z0-9]{8}")


@dataclass(frozen=True)
class MachineIdentity:
    key: str  # "" where the system has no id of its own; containers often have none
    host: str


@dataclass(frozen=True)
class JournalClaim:
    """A file that says which journal an id belongs to."""

    file: Path
    id: str
    machine: MachineIdentity
    journal: str  # path of the journal; "" = written by a Slipway that remembered neither

    @property
    def where(self) -> str:
        return f"{self.journal} on {self.machine.host}" if self.journal else "a machine that is not on record"


def this_machine() -> MachineIdentity:
    key = ""
    for path in MACHINE_IDS:
        with contextlib.suppress(OSError, UnicodeDecodeError):  # the next file, or no id at all
            key = key or path.read_text().strip()
    return MachineIdentity(
        hashlib.sha256(f"slipway {key}".encode()).hexdigest()[:16] if key else "", socket.gethostname()
    )


def file_of(path: Path, environ: Mapping[str, str]) -> Path:
    """Return the file with the id of the journal at `path`."""
    machine = this_machine()
    key = hashlib.sha256(os.fsencode(f"{machine.key} {machine.host} {path.absolute()}")).hexdigest()[:12]
    return folder(environ, "XDG_CONFIG_HOME", ".config") / f"installation_id@{key}"


def read(file: Path) -> str:
    """Return the id in that file, "" when it is not there or holds none."""
    found = _claim(file)
    return found.id if found else ""


def others(file: Path) -> list[JournalClaim]:
    """Return whatever else the configuration knows of; what cannot be read there tells nothing."""
    found = []
    for path in sorted(file.parent.glob("installation_id*"), key=os.fspath):
        with contextlib.suppress(OSError):
            found.append(_claim(path))
    return [one for one in found if one and one.file != file]


def everyone(environ: Mapping[str, str]) -> list[JournalClaim]:
    """Return all journals that the user's configuration knows of."""
    return others(folder(environ, "XDG_CONFIG_HOME", ".config") / "installation_id@")


def rivals(id: str, known: Iterable[JournalClaim]) -> list[JournalClaim]:
    """Return the journals of other machines that have that id."""
    me = this_machine().key
    return [one for one in known if one.id == id and me and one.machine.key not in ("", me)]


def remember(id: str, path: Path, environ: Mapping[str, str]) -> None:
    """Write down that `id` is of the journal at `path` on this machine."""
    file, machine = file_of(path, environ), this_machine()
    make_folder(file.parent, is_ours=True)
    write_durably(file, f"{id}\n{machine.key}\n{machine.host}\n{path.absolute()}\n", 0o600)


def folder(environ: Mapping[str, str], variable: str, otherwise: str) -> Path:
    base = environ.get(variable, "")
    home = Path(environ.get("HOME") or Path.home())
    return Path(base if os.path.isabs(base) else home / otherwise) / "slipway"


def make_folder(folder: Path, is_ours: bool) -> None:
    """Make a folder that is for its owner only; one that was there, and is somebody's choice, stays as it is."""
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=0o700, parents=True)
    if is_ours:
        folder.chmod(0o700)


def _claim(file: Path) -> JournalClaim | None:
    try:
        id, key, host, journal, *_ = [*file.read_text().splitlines(), "", "", "", ""]
    except (FileNotFoundError, UnicodeDecodeError):
        return None
    return JournalClaim(file, id, MachineIdentity(key, host), journal) if _ID.fullmatch(id) else None
