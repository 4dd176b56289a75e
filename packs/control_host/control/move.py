"""Moving an installation to a control host and back.

    up                 moves this checkout, the keys and the journal to HOST; leaves a journal here naming HOST
    down               brings everything back
    recover_lost_host  after the loss of HOST, rebuilds the journal from the last copy and the listings of vendors

Each function returns the new location of the installation; `up` takes the host name as in `--control`. At every moment
at most one journal is writable: the moving journal is marked first and sent afterwards, so each step is repeatable.
"""

import contextlib
import os
import time
from dataclasses import dataclass
from pathlib import Path

from flows.supervisor import supervisor_client
from infra.checkout import ROOT
from infra.errors import SlipwayError, UsageError
from infra.installation import this_machine
from infra.journal_file import installation_file
from infra.ledger.journal import Journal
from infra.ledger.lease_termination import terminate_holders
from infra.runs.journal_upkeep import settle
from infra.runs.timing import Say
from infra.settings import Settings
from infra.transport.protocol import Unreachable
from infra.units import duration
from packs.control_host.control import archive, journal_moves, run_files
from packs.control_host.control.host import ControlHost, settings_to_send
from packs.control_host.control.host_paths import checkout_id
from packs.control_host.control.local_pods import refuse_local_pods, refuse_unmovable_groups
from packs.control_host.control.settings import HERE, ControlHostSettings


@dataclass(frozen=True)
class MoveUpResult:
    """Result of `up`. `boot` names the program that restarts keepers and services after a boot of the host."""

    host: str
    installation: str
    boot: str


@dataclass(frozen=True)
class MoveDownResult:
    """Result of `down` and `recover_lost_host`.

    `started`: the leases of processes that now look after runs from this machine.
    """

    host: str
    started: tuple[str, ...]


def up(name: str, settings: Settings, tell: Say) -> MoveUpResult:
    """Move the installation to the host; for an installation that already moved there, send keys and code again.

    Raises UsageError for an installation that may not move, SlipwayError for a failed step; repeating the call resumes.
    """
    if name in ("", HERE):
        raise UsageError(
            "HOST is missing; give an alias of ~/.ssh/config, [user@]host[:port], or a machine of the inventory"
        )
    state_file = settings.state_file
    before = journal_moves.moved_to(state_file)
    if before and before != name:
        raise UsageError(f"the journal has moved to {before}; move the journal back first: inv control.down")
    installation = _installation(settings) if not before else ""
    host = ControlHost.from_settings(name, settings)
    with contextlib.closing(host.machine):
        try:
            there = host.describe()
        except Unreachable as error:
            raise SlipwayError(
                f"{name} cannot be reached: {error}; the journal was not moved. Test the connection: ssh {name}"
            ) from error
        if before and not there.about and host.copy.digest:
            raise SlipwayError(f"{name} no longer has the journal; run: inv control.down --lost")
        if there.about and not before and there.about["installation"] != installation:
            raise UsageError(
                f"{name} is the control host of another installation. To use that installation, add --control "
                f"{name} to each command, or set SLIPWAY_CONTROL={name}"
            )
        tell(f"{name}: sending this checkout")
        host.send_code(there)
        left = []
        if not before:
            if host.typed_value(host.call(there, "state"), "is_in_use", bool):
                kept = there.places.state_file
                raise UsageError(
                    f"{name} already has a journal, which was declared lost or copied to {name} by hand. If no "
                    f"process uses the old journal, move the file away on {name}: mv {kept} {kept}.old"
                )
            with Journal.open(state_file) as journal:
                run_files.gather(journal, settings.homes)
            with Journal.open(state_file) as journal:
                left = terminate_holders(journal.leases.holders(), f"runs on this machine, and {name} takes over", tell)
            journal_moves.mark_moved(state_file, name)
            installation_file(state_file, os.environ).unlink(missing_ok=True)
        text = archive.pack(state_file)
        if not (before and there.about):
            run_files.send(
                host.machine, there.places.homes, settings.homes, archive.runs_at_work(text), archive.runs_over(text)
            )
        about = host.call(
            there,
            "accept",
            {
                "archive": text,
                "installation": installation or archive.installation_of(text),
                "settings": settings_to_send(settings),
            },
        )
        host.copy.save(host.typed_value(host.call(there, "give"), "archive", str))
        host.run_quietly(there, ["control.start", *left], tell)
    return MoveUpResult(name, host.typed_value(about, "installation", str), host.typed_value(about, "boot", str))


def down(settings: Settings, tell: Say) -> MoveDownResult:
    """Bring the installation back from the control host. Raises SlipwayError; repeating the call resumes."""
    name = _moved(settings)
    host = ControlHost.from_settings(name, settings)
    with contextlib.closing(host.machine):
        try:
            there = host.describe()
        except Unreachable as error:
            raise SlipwayError(
                f"{name} cannot be reached: {error}; the journal was not moved. Test the connection: ssh {name}. If "
                "the host is lost for good: inv control.down --lost"
            ) from error
        if not there.about:
            raise SlipwayError(f"{name} has no journal; run: inv control.down --lost")
        host.send_code(there)
        released = host.call(there, "release", {"to": this_machine().host})
        text, left = host.typed_value(released, "archive", str), host.typed_value(released, "left", list)
        host.copy.save(text)
        run_files.fetch(
            host.machine, there.places.homes, settings.homes, archive.runs_at_work(text), archive.runs_over(text)
        )
        archive.unpack(text, settings.state_file)
        host.call(there, "forget")
    host.copy.delete()
    return MoveDownResult(name, tuple(supervisor_client.resume_abandoned(settings, [str(one) for one in left])))


def recover_lost_host(settings: Settings, tell: Say) -> MoveDownResult:
    """Rebuild the journal from the last copy of a lost control host, and from the listings of vendors.

    Pods unknown to the copy are kept, because they may be running. Raises UsageError while the host answers.
    """
    name = _moved(settings)
    host = ControlHost.from_settings(name, settings)
    with contextlib.closing(host.machine):
        if _still_there(host):
            raise UsageError(f"{name} answers and has the journal; run: inv control.down")
    try:
        text = host.copy.path.read_text()
    except FileNotFoundError:
        text = archive.pack(settings.state_file)
        tell(f"no copy from {name} was found; the journal is restored from the time of the move to {name}")
    current_at = host.copy.current_at
    if current_at is not None:
        ago = duration(max(0.0, time.time() - current_at))
        tell(f"the copy of the journal is {ago} old; runs may have started or ended since then")
    archive.unpack(text, settings.state_file, journal_moves.note_replacement)
    with Journal.open(settings.state_file) as journal:
        settle(journal, settings, tell)
    host.copy.delete()
    return MoveDownResult(name, ())


def pull(path: str, to: str, settings: Settings) -> str:
    """Fetch a file or a folder from the control host; return the local path. Raises SlipwayError."""
    chosen = settings.for_pack(ControlHostSettings).control
    name = _moved(settings) if chosen in ("", HERE) else chosen
    if not Path(path).name or ".." in Path(path).parts:
        raise UsageError(
            f"{path!r} is not a path to copy; expected a file or a folder on the control host, such as var/reports/RUN"
        )
    if Path(path).is_absolute() and not to:
        raise UsageError(f"{path} is not inside the checkout; give the destination: --to PATH")
    host = ControlHost.from_settings(name, settings)
    with contextlib.closing(host.machine):
        there = host.describe()
        if not there.about:
            raise UsageError(f"{name} is no control host")
        target = Path(to) if to else ROOT / path
        source = there.places.host_path(path, checkout_id(ROOT))
        return str(run_files.fetch_path(host.machine, source, target, there.places.root))


def _still_there(host: ControlHost) -> bool:
    try:
        return bool(host.describe().about)
    except SlipwayError:
        return False


def _moved(settings: Settings) -> str:
    name = journal_moves.moved_to(settings.state_file)
    if not name:
        raise UsageError(
            f"the journal {settings.state_file} is on this machine; the journal has not moved to a control host"
        )
    return name


def _installation(settings: Settings) -> str:
    """Return the id of the installation, creating the journal if needed. Raises UsageError for an immovable journal."""
    with Journal.open(settings.state_file) as journal:
        if journal.problem:
            raise UsageError(journal.problem)
        refuse_local_pods(journal, "this machine")
        refuse_unmovable_groups(journal, settings, "this machine")
        return journal.installation
