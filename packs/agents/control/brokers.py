"""Brokers of allowances: started by the supervisor, ended by the end of the allowance, or revoked."""

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace

from infra.agent.process import send
from infra.checkout import ROOT
from infra.ledger import service_rows
from infra.ledger.journal import Journal
from infra.ledger.op import Op
from infra.runs import run_rows
from infra.runs.timing import Say
from infra.settings import Settings
from packs.agents.control import files, place
from packs.agents.records.client import LEASE

STOP_S = 30.0
POLL_S = 0.1
AGAIN_S = 5.0  # between two starts of a broker that ends at once


def due(journal: Journal, settings: Settings) -> list[str]:
    """Return the allowances without a broker that are valid, or that have something to end."""
    held, now = journal.leases.held_names(), time.time()
    return [
        one.name
        for one in files.every(settings)
        if f"{LEASE}{one.name}" not in held and (not one.refusal(now) or has_work(one.name, journal, settings))
    ]


def run(name: str, settings: Settings, tell: Say) -> None:
    """Start the broker of an allowance, and wait for its end."""
    log = place.folder(settings) / f"{name}.log"
    began = time.monotonic()
    with log.open("ab") as file:
        process = subprocess.Popen(
            [sys.executable, "-m", "packs.agents.control.broker", name],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            start_new_session=True,
        )
    tell(f"{name}: the broker of the allowance exited with code {process.wait()}; log: {log}")
    if time.monotonic() - began < AGAIN_S:
        time.sleep(AGAIN_S)


def stop(name: str, journal: Journal, settings: Settings, tell: Say) -> list[Op]:
    """Revoke an allowance and end its broker; return the live rows of its runs."""
    revoke(name, settings)
    lease, until = f"{LEASE}{name}", time.monotonic() + STOP_S
    if holder := journal.leases.holder(lease):
        tell(f"{name}: asking the broker, process {holder.pid}, to exit")
        send(holder, signal.SIGTERM)
    while journal.leases.holder(lease) and time.monotonic() < until:
        time.sleep(POLL_S)
    return own_rows(name, journal, settings)


def revoke(name: str, settings: Settings) -> None:
    """Mark an allowance as revoked: from now on, the broker refuses all calls, and ends all runs."""
    files.save(replace(files.load(name, settings), is_revoked=True), settings)


def own_rows(name: str, journal: Journal, settings: Settings) -> list[Op]:
    """Return the live rows of the runs of an allowance."""
    runs = {*files.desk_record(name, settings).runs}
    return [op for op in journal.ops(live=True) if run_rows.run_of(op) in runs]


def has_work(name: str, journal: Journal, settings: Settings) -> bool:
    """Return whether a run or service of an allowance is alive."""
    services = files.desk_record(name, settings).services
    return bool(own_rows(name, journal, settings)) or any(
        service_rows.find(journal, one) is not None for one in services
    )
