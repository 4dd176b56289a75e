"""Control host side of the pack: runs on the host, in the code pushed by a laptop."""

import contextlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from infra.agent.job import write_durably
from infra.agent.process import boot_id
from infra.agent.shortage import is_full
from infra.checkout import ROOT
from infra.errors import UsageError
from infra.journal_file import installation_file
from infra.ledger.journal import Journal
from infra.ledger.lease_termination import terminate_holders
from infra.settings import Settings
from packs.control_host.control import archive, at_boot, journal_moves, run_files
from packs.control_host.control.host_paths import HostPaths
from packs.control_host.control.local_pods import refuse_local_pods, refuse_unmovable_groups
from packs.control_host.control.settings import HERE
from store import local_files, untrusted_input

LOOK_AGAIN_S = 60.0  # seconds between checks of keepers and services
OF_PLACES = {"SLIPWAY_STORE": "artifacts", "SLIPWAY_PODS": "pods", "SLIPWAY_WORKSPACE": "workspace"}


def prepare_checkout(places: HostPaths, code: Path) -> None:
    """Prepare a pushed checkout for this host: link the settings, and start the checkout at boot.

    Without an accepted installation, only link the settings. If a check is due, restart the missing keepers and
    services in the background.
    """
    _link(code / ".env", places.env)
    if not (code / ".git").exists():  # git then ignores the same files
        with contextlib.suppress(OSError):  # without git, every file counts as part of the checkout
            subprocess.run(["git", "init", "-q", str(code)], stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    if not places.read_about():
        return
    _link(places.current, code.parent)
    if is_due(places):
        start_check(places, code)


def start_check(places: HostPaths, code: Path) -> None:
    """Start `control.start` in the background, which restarts missing keepers and services."""
    note_start(places)
    with places.log.open("ab") as log:
        subprocess.Popen(
            [sys.executable, "-m", "invoke", "--search-root", str(code), "control.start"],
            cwd=code,
            env=_environ({}),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )


def is_due(places: HostPaths) -> bool:
    """Return whether a check of keepers and services is due: after a boot, or a minute after the last check."""
    try:
        last = untrusted_input.mapping(places.started.read_bytes())
        return last["boot_id"] != boot_id() or not 0 <= time.time() - float(last["at"]) < LOOK_AGAIN_S
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return True


def note_start(places: HostPaths) -> None:
    """Record the time of this check; on a full disk skip the record, and the next command checks again."""
    try:
        write_durably(places.started, json.dumps({"boot_id": boot_id(), "at": time.time()}))
    except OSError as error:
        if not is_full(error):
            raise


def line_of(about: dict[str, Any], code: Path) -> tuple[list[str], str, dict[str, str]]:
    """Return the words, the working folder and the environment of a command requested by a laptop."""
    folder = code / about["cwd"]
    words = [sys.executable, "-m", "invoke", "--search-root", str(code), *about["words"]]
    return words, str(folder if folder.is_dir() else code), _environ(about["environ"])


def is_in_use(places: HostPaths) -> bool:
    """Return whether a journal exists on this host and has not moved away."""
    return places.state_file.exists() and not journal_moves.moved_to(places.state_file)


def accept(places: HostPaths, code: Path, said: dict[str, Any]) -> dict[str, Any]:
    """Accept an installation, or new settings for the installation on this host; return the record of the host.

    Install the archive unless a journal is in use here, and arm the boot service. Raises UsageError when the host or
    the journal belongs to a different installation.
    """
    before = places.read_about()
    if before and before["installation"] != said["installation"]:
        raise UsageError(
            f"this host is the control host of another installation ({before['installation']}). To use "
            "that installation, add --control to each command, or set SLIPWAY_CONTROL"
        )
    given = {"SLIPWAY_STATE_FILE": str(places.state_file)}
    given |= {variable: str(places.var / name) for variable, name in OF_PLACES.items()}
    lines = [f"{variable}={_quoted(value)}" for variable, value in (given | said["settings"]).items()]
    local_files.replace(places.env, ("\n".join(lines) + "\n").encode(), mode=0o600)
    if not is_in_use(places):
        archive.unpack(said["archive"], places.state_file)
    with Journal.open(places.state_file) as journal:
        if journal.installation != said["installation"]:
            raise UsageError(f"{places.state_file} is the journal of another installation, {journal.installation}")
    _link(code / ".env", places.env)
    _link(places.current, code.parent)
    how = at_boot.arm(places)
    about = {"installation": said["installation"], "at": time.time(), "boot": how}
    write_durably(places.about, json.dumps(about))
    return about


def release(places: HostPaths, to: str) -> dict[str, Any]:
    """Stop the processes that look after runs, mark the journal as moved to `to`, and return the archive.

    The call is repeatable. Raises UsageError while pods run under the sole care of this machine.
    """
    left: list[str] = []
    if is_in_use(places):
        with Journal.open(places.state_file) as journal:
            refuse_local_pods(journal, "this control host")
            refuse_unmovable_groups(journal, Settings.load(ROOT), "this control host")
            run_files.gather(journal, places.homes)
            left = terminate_holders(
                journal.leases.holders(), f"runs on this machine, and {to} takes over", lambda _: None
            )
        journal_moves.mark_moved(places.state_file, to, is_home=True)
    return {"archive": archive.pack(places.state_file), "left": left}


def forget(places: HostPaths) -> dict[str, Any]:
    """Remove keys, settings and the boot entry; keep the journal under a new name, no longer in use."""
    at_boot.disarm(places)
    places.about.unlink(missing_ok=True)
    places.env.unlink(missing_ok=True)
    places.current.unlink(missing_ok=True)
    if journal_moves.moved_to(places.state_file):
        installation_file(places.state_file, os.environ).unlink(missing_ok=True)
        keys = archive.keys_of(places.state_file)
        for one in keys.glob("*"):
            one.unlink()
        kept = places.state_file.with_name(time.strftime(f"{places.state_file.name}.moved-%Y%m%d-%H%M%S"))
        places.state_file.rename(kept)
        for suffix in ("-wal", "-shm", ".lock"):
            places.state_file.with_name(places.state_file.name + suffix).unlink(missing_ok=True)
    return {}


def _environ(more: dict[str, str]) -> dict[str, str]:
    """Return the environment of a command: connection variables, forwarded variables, and SLIPWAY_CONTROL=here."""
    return {**os.environ, **more, "SLIPWAY_CONTROL": HERE}


def _link(link: Path, target: Path) -> None:
    """Point the link `link` to `target` atomically."""
    if link.is_symlink() and os.readlink(link) == str(target):
        return
    draft = link.with_name(f".{link.name}.{os.getpid()}")
    draft.unlink(missing_ok=True)
    draft.symlink_to(target)
    os.replace(draft, link)


def _quoted(value: str) -> str:
    """Return a value in quotes for an .env file."""
    return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"
