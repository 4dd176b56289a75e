"""Layout of the Slipway folder on a control host, shared by all checkouts of an installation.

~/.slipway/control/
    about.json              id of the installation, time, and the service started at boot; written last
    env                     settings and keys, mode 600; serves as .env of every checkout below
    state/journal.sqlite    the journal; pod keys lie in the same folder
    var/                    artifacts, pods, logs, workspace
    checkouts/<id>/code     code of a checkout of a laptop, as of the last push
    calls/                  records of commands: the request of the laptop, and the outcome
    current                 link to the checkout used last
    start                   the script run at boot
"""

import contextlib
import hashlib
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from infra import installation
from infra.settings import Settings
from store import untrusted_input

BOOT_LINE = "# Slipway's control host"
SYSTEMD, CRON, NOBODY = "systemd", "cron", "whoever connects"  # who restarts keepers and services after a boot


@dataclass(frozen=True)
class HostPaths:
    """Paths below `root` on the control host."""

    root: Path

    @staticmethod
    def for_code(code: Path) -> "HostPaths":
        """Return the places of the installation of a pushed checkout."""
        return HostPaths(code.parents[2])

    @staticmethod
    def for_journal(state_file: Path) -> "HostPaths":
        """Return the places of a control host with the journal at `state_file`."""
        return HostPaths(state_file.absolute().parent.parent)

    @staticmethod
    def from_settings(settings: Settings) -> "HostPaths":
        """Return the places of the installation of these settings; a rehearsal belongs to the same installation."""
        of_rehearsals = Path(settings.rehearsal).parent if settings.rehearsal else None  # beside the journal
        return HostPaths.for_journal(of_rehearsals or settings.state_file)

    @property
    def is_control_host(self) -> bool:
        return self.about.is_file()

    def read_about(self) -> dict[str, Any]:
        """Return the record of this control host; {} on a machine that is not a control host."""
        with contextlib.suppress(FileNotFoundError):
            return untrusted_input.mapping(self.about.read_bytes())
        return {}

    @property
    def about(self) -> Path:
        return self.root / "about.json"

    @property
    def env(self) -> Path:
        return self.root / "env"

    @property
    def state_file(self) -> Path:
        return self.root / "state" / "journal.sqlite"

    @property
    def var(self) -> Path:
        return self.root / "var"

    @property
    def homes(self) -> Path:
        """Return the value of `Settings.homes` on the control host."""
        return self.var / "runs"

    @property
    def calls(self) -> Path:
        return self.root / "calls"

    @property
    def current(self) -> Path:
        return self.root / "current"

    @property
    def start(self) -> Path:
        return self.root / "start"

    @property
    def started(self) -> Path:
        """Return the file with the boot id and the time of the last check of keepers and services."""
        return self.root / "started.json"

    @property
    def log(self) -> Path:
        return self.root / "start.log"

    def code(self, checkout: str) -> Path:
        return self.root / "checkouts" / checkout / "code"

    def host_path(self, path: str, checkout: str) -> Path:
        """Return the path on the host of a path in a checkout; all checkouts share `var/...`."""
        first, *rest = Path(path).parts
        return self.var.joinpath(*rest) if first == "var" else self.code(checkout) / path


def checkout_id(root: Path) -> str:
    """Return a unique id of this checkout on this machine."""
    key = installation.this_machine().key
    return hashlib.sha256(f"{key} {socket.gethostname()} {root}".encode()).hexdigest()[:12]
