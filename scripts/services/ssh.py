"""The command `serve.ssh`: a shell in a replica's folder on the replica's machine."""

from dataclasses import dataclass

from invoke import Exit

from infra.errors import UsageError
from infra.flags import flag
from infra.ledger import service_rows
from infra.ledger.journal import Journal
from infra.ledger.op import Op
from infra.runs import pods
from infra.runs.lookup import transport_to
from scripts.cli import context
from scripts.cli.command import command
from scripts.cli.invoke_patch import line_after_dashes
from scripts.cli.session import open_journal
from scripts.services.one_service import REPLICA, OneServiceFlags
from serve.policy import service_state
from serve.policy.replica_states import LIVE
from serve.processes import controller_client


@dataclass(frozen=True, kw_only=True)
class ServeSshFlags(OneServiceFlags):
    replica_id: int | None = flag(None, REPLICA)


@command(record=ServeSshFlags, example="inv serve.ssh demo --replica-id 1")
def ssh(spec: ServeSshFlags) -> None:
    """Open a shell in a replica's folder, on its machine.

    `inv serve.ssh NAME --replica-id N -- COMMAND` runs a command there.
    """
    name = spec.name
    settings = context.settings()
    with open_journal(settings) as journal:
        name = controller_client.find(name, journal)
        op = live_replica(name, spec.replica_id, journal)
        code = transport_to(settings, op).shell(line_after_dashes() or None, cwd=pods.folder_of(op).root)
    if code:
        raise Exit(code=code)


def live_replica(name: str, number: int | None, journal: Journal) -> Op:
    """Return the journal row of a live replica. Raises UsageError with the live replicas."""
    row = service_rows.find(journal, name)
    assert row is not None
    there = [one for one in service_state.parse_observed(row.seen).members if one.state in LIVE]
    listed = ", ".join(str(one.number) for one in there) or "none"
    if number is None and len(there) != 1:
        raise UsageError(f"{name} has several replicas; choose a replica with --replica-id: {listed}")
    run = there[0].run if number is None else f"{name}-{number}"
    if run not in [one.run for one in there]:
        raise UsageError(f"{name} has no replica {number}; available: {listed}")
    return journal.ops(run=run)[-1]
