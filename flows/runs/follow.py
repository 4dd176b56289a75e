"""Following a run to its verdict, and concluding the run."""

import contextlib
from collections.abc import Collection, Iterator

from flows.runs import run_leases
from infra.errors import SlipwayError
from infra.ledger.journal import Journal
from infra.ledger.op import Op
from infra.runs import observation
from infra.runs.journal_upkeep import end_others, settle
from infra.runs.keepers.keeper import requested_at
from infra.runs.keepers.run_keeper import RunKeeper
from infra.runs.observation import Seen
from infra.runs.observation import follow as watch
from infra.runs.run_home import RunHome
from infra.runs.sync import snapshot
from infra.runs.timing import Say
from infra.selection import registry
from infra.settings import Settings

DETACHED = 130  # Exit code of a command after detaching from the run.


@contextlib.contextmanager
def keep_run(
    op: Op, journal: Journal, settings: Settings, tell: Say, is_asked: bool = True
) -> Iterator[Iterator[Seen]]:
    """Yield an iterator of (progress, verdict) pairs up to the verdict, and keep the run inside the block.

    A run of an engine is only watched, because the engine keeps the run. `is_asked` marks a user request to continue
    the run, which discards the count of earlier recoveries.
    """
    vendor = registry.provider(settings, op.vendor)
    if vendor.is_run_engine:
        yield watch(op, journal, vendor.reach(observation.pod_of(op)))
        return
    keeper = RunKeeper.for_op(op, journal, settings, tell)
    if not is_asked:
        keeper.since = requested_at(op.run, journal)
    run_leases.renew(op, journal.installation, tell)
    with keeper.hold_lease(op.run):
        yield keeper.follow_run(op)


def settle_run(
    op: Op, state: str, journal: Journal, settings: Settings, tell: Say, only: Collection[str] | None = None
) -> None:
    """Settle ended pods after the verdict, end the other nodes, and free the data of a successful run.

    `only` limits the tokens to settle; None means all pods without a follower. For a successful run, delete the local
    snapshot and release the store lease.
    """
    from flows.runs import receipt  # needed only after a run

    settle(journal, settings, tell, only)
    with contextlib.suppress(SlipwayError, OSError):  # a full disk, or no report: the receipt stays as at the start
        receipt.add_made_steps(op, settings)
    end_others(op, journal, settings, state, tell)
    if state == "succeeded":
        snapshot.forget(RunHome.for_run(op.run, settings.homes))
        run_leases.release(op.store, op.run, journal.installation, tell)
