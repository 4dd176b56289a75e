"""Command-side client of a service's controller: keep a controller alive, read the service's state, end the service."""

import dataclasses
import time
from pathlib import Path

from infra import train_env
from infra.checkout import ROOT
from infra.errors import SlipwayError, UsageError
from infra.ledger import service_rows
from infra.ledger.journal import Journal
from infra.ledger.leases import LeaseHeld
from infra.ledger.service_rows import service_lease
from infra.names import match
from infra.runs.timing import Say
from infra.settings import Settings
from infra.units import duration
from serve.policy import service_state
from serve.policy.replica_states import LIVE, State
from serve.policy.service_state import ServiceRecord, WantedService
from serve.processes import controller_process, gateway_orders
from serve.processes.service_paths import ServicePaths

POLL_S = 0.1
TELL_EVERY_S = 30.0
LEAVE_S = 600.0  # time for open requests, then the engines, then proof from the vendor


def ensure(name: str, settings: Settings, journal: Journal, tell: Say) -> ServiceRecord:
    """Ensure that a controller lives, and return the observed state."""
    was_kept = controller_process.is_kept(name, journal)
    row = service_rows.find(journal, name)
    seen = controller_process.ensure(name, settings, journal, lambda: python(settings, tell), ROOT)
    if not was_kept and row is not None and row.seen:
        tell(f"{name}: no controller was running; a new controller has taken over")
    return seen


def python(settings: Settings, tell: Say) -> Path:
    """Return the interpreter of the serve environment; create a missing environment."""
    return train_env.interpreter(ROOT, settings.environments, tell, "serve")


def certfile(name: str, journal: Journal) -> str:
    """Return the certificate file of a service on this machine; "" for plain HTTP."""
    row = service_rows.find(journal, name)
    tls = service_state.parse_desired(row.wanted).newest.service.tls if row else None
    return tls.certfile if tls else ""


def undo_start(name: str, settings: Settings, journal: Journal) -> None:
    """Undo a failed start: end a gateway started for the service and delete the service's row.

    The call has no effect while a controller holds the lease.
    """
    try:
        lease = journal.leases.acquire(service_lease(name))
    except LeaseHeld:
        return
    gateway_orders.send_sigterm(ServicePaths.for_service(settings, name))
    service_rows.delete_service(journal, name, lease)
    journal.leases.release(lease)


def read_states(name: str, settings: Settings, journal: Journal, tell: Say) -> tuple[ServiceRecord, WantedService]:
    """Return the observed and the desired state; restart a dead controller. Raises SlipwayError if either fails."""
    row = service_rows.find(journal, name)
    if row is None:
        raise SlipwayError(f"{name} was ended by a different command")
    seen = (
        service_state.parse_observed(row.seen)
        if controller_process.is_kept(name, journal)
        else ensure(name, settings, journal, tell)
    )
    return seen, service_state.parse_desired(row.wanted)


def end_service(name: str, settings: Settings, journal: Journal, tell: Say) -> None:
    """End a service and wait. Raises SlipwayError after LEAVE_S seconds without proof of the end."""
    row = service_rows.find(journal, name)
    if row is not None:
        wanted = service_state.parse_desired(row.wanted)
        if not wanted.is_ending:
            service_rows.write_desired_state(
                journal, name, service_state.write(dataclasses.replace(wanted, is_ending=True)), row
            )
        controller_process.ensure(name, settings, journal, lambda: python(settings, tell), ROOT)
    deadline, told, told_at = time.monotonic() + LEAVE_S, "", 0.0
    while (row := service_rows.find(journal, name)) is not None or controller_process.is_kept(name, journal):
        waits = waiting_for(service_state.parse_observed(row.seen)) if row is not None else "the controller to exit"
        if waits != told or time.monotonic() - told_at > TELL_EVERY_S:
            told, told_at = waits, time.monotonic()
            tell(f"{name}: waiting for {waits}")
        if row is not None and not controller_process.is_kept(name, journal):
            controller_process.ensure(name, settings, journal, lambda: python(settings, tell), ROOT)
        if time.monotonic() > deadline:
            raise SlipwayError(
                f"{name} is still ending after {duration(LEAVE_S)}: waiting for {waits}; see: inv serve.logs {name} "
                "--controller"
            )
        time.sleep(POLL_S)


def waiting_for(seen: ServiceRecord) -> str:
    """Return the reason why a service is still ending, as text."""
    left = [f"{one.run} ({one.state.value})" for one in seen.members if one.state in (*LIVE, State.SHUTTING_DOWN)]
    return f"replicas to end, requests under way first: {', '.join(left)}" if left else "the controller to exit"


def find(name: str, journal: Journal) -> str:
    """Return the name of the service with the prefix `name`, or of the only service for "". Raises UsageError."""
    known = [one.name for one in service_rows.list_services(journal)]
    if not known:
        raise UsageError("no service is running; start a service: inv serve.up")
    if not name and len(known) > 1:
        raise UsageError(f"several services are running; name one of: {', '.join(known)}")
    return match(name, known) if name else known[0]
