"""The command `keep`: follow a run, or restart the controller of a service, if no other process does."""

from dataclasses import dataclass

from flows.runs import resume as resuming
from infra.flags import flag
from infra.ledger import service_rows
from infra.ledger.journal import Journal
from infra.ledger.leases import keeper_lease
from infra.ledger.service_rows import service_lease
from infra.runs import run_rows
from infra.runs.lookup import find_run
from infra.settings import Settings
from scripts.cli import context, render
from scripts.cli.command import command
from scripts.cli.flags import OneRunFlags
from scripts.cli.render import print_json
from scripts.cli.session import open_journal
from scripts.runs import following
from serve.processes import controller_client, controller_process


@dataclass(frozen=True, kw_only=True)
class KeepFlags(OneRunFlags):
    detach: bool = flag(False, "run in the background, and write to keep.log next to the run's logs")


@command(record=KeepFlags, example="inv keep brave-otter-3 --detach", rents=True)
def keep(spec: KeepFlags) -> None:
    """Follow a run, and recover the run when its pod dies.

    Artifacts and logs are copied to this machine meanwhile. Only one process at a time follows a run.
    """
    run = spec.run
    settings = context.settings()
    with open_journal(settings) as journal:
        if run and service_rows.find(journal, run):
            ensure_controller(run, settings, journal, spec.json)
            return
        op = find_run(journal, run)
        holder = journal.leases.holder(keeper_lease(op.run))
        if holder:
            state, said = "kept", f"{op.run} is already followed by process {holder.pid}"
        elif resuming.is_idle(op, settings):
            state, said = "idle", f"{op.run} is idle: the pod waits for work under its guard"
        elif run_rows.is_over(op):
            state, said = "over", f"{op.run} has ended; run: inv status {op.run}"
        elif spec.detach:
            following.detach_run(op, settings, spec.json)
            return
        else:
            following.follow_to_end(op, journal, settings, spec.json)
            return
        render.say(said)
        if spec.json:
            print_json({"run": op.run, "state": state, "keeper": holder.pid if holder else None})


def ensure_controller(name: str, settings: Settings, journal: Journal, as_json: bool) -> None:
    """Start a controller for the service if none is alive, and report the controller's process."""
    was_kept = controller_process.is_kept(name, journal)
    seen = controller_client.ensure(name, settings, journal, render.tell)
    holder = journal.leases.holder(service_lease(name))
    if was_kept and holder:
        render.say(f"{name} already has a controller, process {holder.pid}, at {seen.endpoint}")
    if as_json:
        print_json({"run": name, "state": "kept", "keeper": holder.pid if holder else None})
