"""Identity of a journal's installation: an id, also stored in the user's configuration folder.

Users copy configurations between machines (dotfiles, synchronized folders), but not journals. So each journal has a
file in the configuration with machine, path and id. An id also claimed by a second machine is never reused: two
machines with the same id would each treat the other's pods as orphans.
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
    key: str  # "" without a system id, as in many containers
    host: str


@dataclass(frozen=True)
class JournalClaim:
    """A configuration file with the link from an id to a journal."""

    file: Path
    id: str
    machine: MachineIdentity
    journal: str  # path of the journal; "" = written by an old version without machine and path

    @property
    def where(self) -> str:
        return f"{self.journal} on {self.machine.host}" if self.journal else "an unknown machine"


def this_machine() -> MachineIdentity:
    key = ""
    for path in MACHINE_IDS:
        with contextlib.suppress(OSError, UnicodeDecodeError):  # try the next file; without any id the key stays empty
            key = key or path.read_text().strip()
    return MachineIdentity(
        hashlib.sha256(f"slipway {key}".encode()).hexdigest()[:16] if key else "", socket.gethostname()
    )


def file_of(path: Path, environ: Mapping[str, str]) -> Path:
    """Return the path of the configuration file for the journal at `path`."""
    machine = this_machine()
    key = hashlib.sha256(os.fsencode(f"{machine.key} {machine.host} {path.absolute()}")).hexdigest()[:12]
    return folder(environ, "XDG_CONFIG_HOME", ".config") / f"installation_id@{key}"


def read(file: Path) -> str:
    """Return the id in the file; "" for a missing or invalid file."""
    found = _claim(file)
    return found.id if found else ""


def others(file: Path) -> list[JournalClaim]:
    """Return all other claims in the configuration; skip unreadable files."""
    found = []
    for path in sorted(file.parent.glob("installation_id*"), key=os.fspath):
        with contextlib.suppress(OSError):
            found.append(_claim(path))
    return [one for one in found if one and one.file != file]


def all_claims(environ: Mapping[str, str]) -> list[JournalClaim]:
    """Return the claims of all journals in the user's configuration."""
    return others(folder(environ, "XDG_CONFIG_HOME", ".config") / "installation_id@")


def conflicting_claims(id: str, known: Iterable[JournalClaim]) -> list[JournalClaim]:
    """Return the claims of other machines with the same id."""
    me = this_machine().key
    return [one for one in known if one.id == id and me and one.machine.key not in ("", me)]


def remember(id: str, path: Path, environ: Mapping[str, str]) -> None:
    """Record that `id` belongs to the journal at `path` on this machine."""
    file, machine = file_of(path, environ), this_machine()
    make_folder(file.parent, is_ours=True)
    write_durably(file, f"{id}\n{machine.key}\n{machine.host}\n{path.absolute()}\n", 0o600)


def folder(environ: Mapping[str, str], variable: str, otherwise: str) -> Path:
    base = environ.get(variable, "")
    home = Path(environ.get("HOME") or Path.home())
    return Path(base if os.path.isabs(base) else home / otherwise) / "slipway"


def make_folder(folder: Path, is_ours: bool) -> None:
    """Create a folder with access for the owner only; change an existing folder only if `is_ours`."""
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
