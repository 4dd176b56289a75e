"""The rows of services: the desired state, and the state observed by the controller.

Both states are texts that this module does not parse. A write with outdated knowledge raises Fenced: a command must
have read the current row to write the desired state, and only the holder of the service's lease writes the observed
state.
"""

from dataclasses import dataclass

from infra.journal_file import Fenced
from infra.ledger.journal import Journal
from infra.ledger.leases import Lease


@dataclass(frozen=True)
class ServiceRow:
    """The row of a service, with the desired and the observed state as texts; "" = not written yet."""

    name: str
    epoch: int  # incremented with each change of `wanted`
    wanted: str
    seen: str


def service_lease(name: str) -> str:
    """Return the name of the lease held by the controller of a service."""
    return f"serve:{name}"


def list_services(journal: Journal) -> list[ServiceRow]:
    """Return the rows of all services, sorted by name."""
    return [ServiceRow(*row) for row in journal.read("SELECT name, epoch, wanted, seen FROM services ORDER BY name")]


def find(journal: Journal, name: str) -> ServiceRow | None:
    """Return the row of a service, or None."""
    rows = journal.read("SELECT name, epoch, wanted, seen FROM services WHERE name = ?", name)
    return ServiceRow(*rows[0]) if rows else None


def write_desired_state(journal: Journal, name: str, wanted: str, before: ServiceRow | None) -> ServiceRow:
    """Write the desired state, unless the row changed since `before`. Raise Fenced after a change."""
    with journal.writing():
        now = find(journal, name)
        if (now and now.epoch) != (before and before.epoch):
            raise Fenced(f"{name}: a concurrent command changed the service; run: inv serve.status {name}")
        if now is None:
            journal.execute("INSERT INTO services VALUES (?, 1, ?, '')", name, wanted)
        else:
            journal.execute("UPDATE services SET epoch = epoch + 1, wanted = ? WHERE name = ?", wanted, name)
    found = find(journal, name)
    assert found is not None
    return found


def write_observed_state(journal: Journal, name: str, seen: str, lease: Lease) -> None:
    """Write the observed state. Raise Fenced when a new controller took over `lease`."""
    with journal.writing():
        _check(journal, lease)
        journal.execute("UPDATE services SET seen = ? WHERE name = ?", seen, name)


def delete_service(journal: Journal, name: str, lease: Lease) -> None:
    """Remove the row of a stopped service. Raise Fenced when a new controller took over `lease`."""
    with journal.writing():
        _check(journal, lease)
        journal.execute("DELETE FROM services WHERE name = ?", name)


def _check(journal: Journal, lease: Lease) -> None:
    if not journal.leases.is_ours(lease):
        raise Fenced(f"{lease.name}: another process has taken over")
