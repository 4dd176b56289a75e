"""The rows of services: what is wanted of each, and what its controller sees of it.

In: texts of its commands, and of its controller. Out: rows. A text is written where nobody else has written meanwhile:
what is wanted over the row that its writer read, what is seen by whoever holds the service's lease.
"""

from dataclasses import dataclass

from infra.journal_file import Fenced
from infra.ledger.journal import Journal
from infra.ledger.leases import Lease


@dataclass(frozen=True)
class ServiceRow:
    """The row of a service. Both texts are for its commands and its controller; "" = nothing was written yet."""

    name: str
    epoch: int  # counts the changes of `wanted`
    wanted: str
    seen: str


def service_lease(name: str) -> str:
    """Return the name of the lease that the controller of a service holds."""
    return f"serve:{name}"


def every(journal: Journal) -> list[ServiceRow]:
    """Return all services, by name."""
    return [ServiceRow(*row) for row in journal.read("SELECT name, epoch, wanted, seen FROM services ORDER BY name")]


def find(journal: Journal, name: str) -> ServiceRow | None:
    """Return the row of a service, None when there is none."""
    rows = journal.read("SELECT name, epoch, wanted, seen FROM services WHERE name = ?", name)
    return ServiceRow(*rows[0]) if rows else None


def want(journal: Journal, name: str, wanted: str, before: ServiceRow | None) -> ServiceRow:
    """Write down what is wanted, where it is still as in `before`. Raises Fenced."""
    with journal.writing():
        now = find(journal, name)
        if (now and now.epoch) != (before and before.epoch):
            raise Fenced(f"{name}: another command changed it meanwhile; run: inv serve.status {name}")
        if now is None:
            journal.execute("INSERT INTO services VALUES (?, 1, ?, '')", name, wanted)
        else:
            journal.execute("UPDATE services SET epoch = epoch + 1, wanted = ? WHERE name = ?", wanted, name)
    found = find(journal, name)
    assert found is not None
    return found


def saw(journal: Journal, name: str, seen: str, lease: Lease) -> None:
    """Write down what there is. Raises Fenced when `lease` was taken over."""
    with journal.writing():
        _check(journal, lease)
        journal.execute("UPDATE services SET seen = ? WHERE name = ?", seen, name)


def forget(journal: Journal, name: str, lease: Lease) -> None:
    """Remove a service of which nothing is left. Raises Fenced when `lease` was taken over."""
    with journal.writing():
        _check(journal, lease)
        journal.execute("DELETE FROM services WHERE name = ?", name)


def _check(journal: Journal, lease: Lease) -> None:
    if not journal.leases.is_ours(lease):
        raise Fenced(f"{lease.name}: another process has taken over")
