"""The command `pull`: a local copy of a run's artifacts, logs and verdict."""

from dataclasses import dataclass

from infra.flags import copy_flag
from infra.runs.journal_upkeep import download_results
from infra.runs.lookup import find_run
from infra.runs.run_home import RunHome
from infra.runs.sync import mirror
from infra.selection import registry
from infra.transport import large_files
from infra.transport.protocol import Meter
from scripts.cli import context, render
from scripts.cli.command import command
from scripts.cli.flags import OneRunFlags
from scripts.cli.render import print_json
from scripts.cli.session import open_journal
from scripts.pods.sync import SyncFlags
from scripts.pods.transfers import about, moved, rate


@dataclass(frozen=True, kw_only=True)
class PullFlags(OneRunFlags):
    bwlimit: str = copy_flag(SyncFlags, "bwlimit")


@command(record=PullFlags, example="inv pull brave-otter-3")
def pull(spec: PullFlags) -> None:
    """Copy a run's artifacts and logs to this machine.

    The copy has the artifacts, the logs and the result of the run.
    """
    settings = context.settings()
    meter = Meter(rate(spec.bwlimit))
    with open_journal(settings) as journal:
        op = find_run(journal, spec.run)
        vendor = registry.provider(settings, op.vendor)
        names = large_files.retry_while_progressing(
            lambda: download_results(op, vendor, settings, meter), meter, mirror.PATIENCE_S, render.tell
        )
    if spec.json:
        print_json({"run": op.run, "brought": names, "store": op.store, **about(meter)})
        return
    render.say(
        f"{op.run}: {', '.join(names) or 'nothing new'}; logs in {RunHome.for_run(op.run, settings.homes).pod.logs}"
    )
    if names:
        render.say(moved(meter))
