"""Brokers of allowances: started by the supervisor, ended by the end of the allowance, or revoked."""

import signal
import subprocess
import sys
import time

from infra.agent.process import send
from infra.checkout import ROOT
from infra.errors import SlipwayError
from infra.ledger.journal import Journal
from infra.ledger.op import Op
from infra.runs.timing import Say
from infra.settings import Settings
from packs.agents.control import ending, files, place
from packs.agents.control.account import Account
from packs.agents.control.time_left import why_ended
from packs.agents.records.client import LEASE

STOP_S = 30.0
END_S = 900.0  # for a start under way, whose machine may be booting
POLL_S = 0.1
AGAIN_S = 3.0  # between two starts of a broker, and between two attempts to end all runs


def due(journal: Journal, settings: Settings) -> list[str]:
    """Return the allowances without a broker that are valid, or that have something to end."""
    held = journal.leases.held_names()
    idle = [name for name in files.names(settings) if f"{LEASE}{name}" not in held]
    return [name for name in idle if not why_ended(name, settings) or has_work(name, journal, settings)]


def run(name: str, settings: Settings, tell: Say) -> None:
    """Run the broker of an allowance, again after each early end: the supervisor gives up after a few failures."""
    log = place.folder(settings) / f"{name}.log"
    while True:
        log.touch(mode=0o600)
        with log.open("ab") as file:
            process = subprocess.Popen(
                [sys.executable, "-m", "packs.agents.control.broker", name],
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                start_new_session=True,
            )
        tell(f"{name}: the broker of the allowance exited with code {process.wait()}; log: {log}")
        with Journal.open(settings.state_file) as journal:
            if name not in due(journal, settings):
                return
        time.sleep(AGAIN_S)


def stop(name: str, journal: Journal, settings: Settings, tell: Say) -> list[Op]:
    """Revoke an allowance, end its broker and services, and end a start under way; return the live rows of its runs."""
    files.revoke(name, settings)
    lease, until = f"{LEASE}{name}", time.monotonic() + STOP_S
    if holder := journal.leases.holder(lease):
        tell(f"{name}: asking the broker, process {holder.pid}, to exit")
        send(holder, signal.SIGTERM)
    while journal.leases.holder(lease) and time.monotonic() < until:
        time.sleep(POLL_S)
    account, until = Account(name, settings), time.monotonic() + END_S
    while ending.is_starting(account) and time.monotonic() < until:
        ending.end_all(account, tell)
        time.sleep(AGAIN_S)
    for service in ending.own_services(name, journal, settings):
        ending.end_one(account, service, tell)
    place.remove_open_folder(name, settings)
    return ending.own_rows(name, journal, settings)


def has_work(name: str, journal: Journal, settings: Settings) -> bool:
    """Return whether a run or service of an allowance is alive, or cannot be ruled out."""
    try:
        rows = ending.own_rows(name, journal, settings)
        return bool(rows or ending.own_services(name, journal, settings))
    except SlipwayError:  # a damaged file: the log of the broker gives the reason
        return True
