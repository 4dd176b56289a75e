"""What `inv upgrade` does: processes of older code leave, the journal is migrated, processes of this code take over."""

import time
from collections.abc import Collection

from infra.errors import SlipwayError
from infra.ledger.journal import Journal
from infra.runs import keeper, pods
from infra.runs import upgrade as handing_over
from infra.settings import Settings
from scripts.cli import context, render
from scripts.cli.invoke_patch import print_json
from scripts.runs.follow_up import hand_on
from scripts.runs.settle import open_journal
from scripts.services import controller_client
from serve.controller_process import lease_name as lease_of_service

TAKE_OVER_S = 60.0
POLL_S = 0.2


def upgrade(json):
    settings = context.settings()
    left = handing_over.hand_over(settings.state_file, render.say)
    with open_journal(settings) as journal:  # which migrates it
        due = due_in(journal, left, settings)
        for lease in due:
            begin(lease, journal, settings)
        await_holders(due, journal)
        taken = [{"lease": one.lease, "process": one.process.pid} for one in journal.holders() if one.lease in due]
    if json:
        print_json({"left": left, "taken_over": taken})
    elif not left:
        render.say("nothing to hand over: every process that looks after something runs this code")
    else:
        for one in taken:
            render.say(f"{one['lease']}: process {one['process']} has taken over")


def due_in(journal: Journal, left: Collection[str], settings: Settings) -> list[str]:
    """Return the leases that want a holder again: of runs that are not over and of services that are wanted."""
    services = [lease_of_service(one.name) for one in journal.services()]
    runs = [
        keeper.lease_name(op.run)
        for op in journal.ops(live=True)
        if not pods.is_over(op) and not op.service and not context.provider(settings, op.vendor).is_here
    ]
    return [one for one in left if one in {*services, *runs}]


def begin(lease: str, journal: Journal, settings: Settings) -> None:
    """Start what looks after it from now on. A launch that was asked to leave has started a keeper itself."""
    kind, _, name = lease.partition(":")
    if kind == "serve":
        controller_client.ensure(name, settings, journal)
    elif journal.holder(lease) is None:
        render.say(hand_on(journal.ops(run=name)[-1], settings))


def await_holders(due: Collection[str], journal: Journal) -> None:
    """Raise SlipwayError when nobody takes over."""
    deadline = time.monotonic() + TAKE_OVER_S
    while missing := set(due) - journal.held():
        if time.monotonic() > deadline:
            raise SlipwayError(
                f"nobody has taken over {', '.join(sorted(missing))} after {TAKE_OVER_S:g} s; see keep.log and "
                "controller.log beside their logs, and run: ./inv status"
            )
        time.sleep(POLL_S)
