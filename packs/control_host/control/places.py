"""The files of Slipway on a control host: one folder, of one installation, for every checkout that works through it.

~/.slipway/control/
    about.json              whose it is, since when, and what starts it again after a boot; written last
    env                     settings and keys, mode 600; the .env of every checkout below
    state/journal.sqlite    the journal, and beside it the keys of pods
    var/                    artifacts, pods, logs, workspace
    checkouts/<id>/code     the code of one checkout of one laptop, as it was pushed last
    calls/                  records of commands: what a laptop asks for, and how that ended
    current                 leads to the checkout that was used last
    start                   what a boot runs
"""

import contextlib
import hashlib
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from infra import installation
from infra.settings import Settings
from store import outside

BOOT_LINE = "# Slipway's control host"
SYSTEMD, CRON, NOBODY = "systemd", "cron", "whoever connects"  # who starts at boot what must go on


@dataclass(frozen=True)
class HostPlaces:
    """The files below `root`, on the control host."""

    root: Path

    @staticmethod
    def of_code(code: Path) -> "HostPlaces":
        """Return those that a pushed checkout belongs to."""
        return HostPlaces(code.parents[2])

    @staticmethod
    def beside(state_file: Path) -> "HostPlaces":
        """Return those that a journal would belong to if this machine were a control host."""
        return HostPlaces(state_file.absolute().parent.parent)

    @staticmethod
    def of_world(settings: Settings) -> "HostPlaces":
        """Return those of the installation that these settings belong to, be it through its rehearsal."""
        of_rehearsals = Path(settings.rehearsal).parent if settings.rehearsal else None  # it lies beside the journal
        return HostPlaces.beside(of_rehearsals or settings.state_file)

    @property
    def is_control_host(self) -> bool:
        return self.about.is_file()

    def read_about(self) -> dict[str, Any]:
        """Return whose control host this is, {} when it is none."""
        with contextlib.suppress(FileNotFoundError):
            return outside.mapping(self.about.read_bytes())
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
        """Return what `Settings.homes` is on the control host."""
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
        """Return the file that says in which boot, and when, what must go on was looked after last."""
        return self.root / "started.json"

    @property
    def log(self) -> Path:
        return self.root / "start.log"

    def code(self, checkout: str) -> Path:
        return self.root / "checkouts" / checkout / "code"

    def find(self, path: str, checkout: str) -> Path:
        """Return the real place of a path of a checkout: generated files, `var/...`, are the same for all checkouts."""
        first, *rest = Path(path).parts
        return self.var.joinpath(*rest) if first == "var" else self.code(checkout) / path


def checkout_id(root: Path) -> str:
    """Return an id of this checkout of this machine, unlike all others."""
    key = installation.this_machine().key
    return hashlib.sha256(f"{key} {socket.gethostname()} {root}".encode()).hexdigest()[:12]
