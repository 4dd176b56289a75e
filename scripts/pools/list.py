"""The command `pool.list`: own machines, by the inventory."""

from dataclasses import dataclass
from typing import Any

from infra.flags import flag
from infra.ledger.journal import Journal
from infra.machines import inventory, survey
from infra.machines.host_memory import HostMemory
from scripts.cli import context, render
from scripts.cli.command import command
from scripts.cli.flags import Output
from scripts.cli.render import clean, columns, print_json
from scripts.pools.own_machines import select_machines


@dataclass(frozen=True, kw_only=True)
class ListFlags(Output):
    pool: str = flag("", "list only this pool or machine", word=True)


@command(record=ListFlags, world="", example="inv pool.list")
def list_(spec: ListFlags) -> None:
    """List own machines: GPUs, price, and the run on each.

    The data come from the inventory and the journal; no machine is contacted.
    """
    settings = context.settings()
    hosts, unusable = select_machines(settings, spec.pool)
    known = HostMemory.for_journal(settings.state_file).all()
    with Journal.open(settings.state_file) as journal:
        leases = {op.place: op.run for op in journal.ops(live=True) if op.vendor == "ssh" and op.place}
    rows = [about(host, known.get(f"ssh:{host.place}"), leases.get(host.place)) for host in hosts]
    if spec.json:
        rows += [{"pool": one.pool, "host": one.name or None, "problem": one.why} for one in unusable]
        print_json(rows)
        return
    table = [("pool", "host", "address", "GPUs", "USD/h", "state")]
    for row in rows:
        gpus = "?" if row["num_gpus"] is None else f"{row['num_gpus']} x {row['gpu']}" if row["num_gpus"] else "none"
        state = f"leased by {row['leased_by']}" if row["leased_by"] else "free"
        state += f"; failed: {row['failure']}" if row["failure"] else ""
        table.append((row["pool"], row["host"], row["address"], gpus, row["usd_per_hour"], state))
    table += [(one.pool, one.name or "all", "?", "?", "?", f"cannot be used: {one.why}") for one in unusable]
    print(clean(columns(table)))


def about(host: inventory.Host, known: Any, run: str | None) -> dict[str, Any]:
    """Return a machine of the inventory as JSON; null for unknown values."""
    facts = known.facts if known else {}
    what = survey.hardware_of(host, facts)
    return {
        "pool": host.pool,
        "host": host.name,
        "address": host.address.place,
        "gpu": what.gpu or None,
        "num_gpus": what.num_gpus,
        "memory_bytes": what.memory_bytes,
        "usd_per_hour": render.usd(host.micro_usd_per_hour),
        "labels": dict(host.labels),
        "leased_by": run,
        "problem": None,
        "failure": known.failure or None if known else None,
        "seen_at": render.iso(known.seen_at) if known else None,
    }
