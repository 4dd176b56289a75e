"""The command `pod.sync`: a repeated upload of the code to a run's machine."""

from dataclasses import asdict, dataclass

from infra.checkout import ROOT
from infra.errors import UsageError
from infra.flags import flag
from infra.runs import pods
from infra.runs.hand_over import send_code
from infra.runs.lookup import find_run, transport_to
from infra.selection import registry
from infra.transport import push as code_sync
from infra.transport.protocol import Meter
from infra.transport.shipment import SyncPlan, preview
from scripts.cli import context, render, session
from scripts.cli.command import command
from scripts.cli.flags import OneRunFlags
from scripts.cli.plan_text import pointer_lines
from scripts.cli.render import print_json
from scripts.cli.session import open_journal
from scripts.pods.transfers import about, moved, rate


@dataclass(frozen=True, kw_only=True)
class SyncFlags(OneRunFlags):
    plan: bool = flag(False, "show the files to send, and send nothing")
    bwlimit: str = flag("", "maximum bytes per second for large files, such as 800kB or 10MB", unit="RATE")


@command(record=SyncFlags, example="inv pod.sync --plan")
def sync(spec: SyncFlags) -> None:
    """Send the code to a run's machine again.

    `--plan` shows the files with sizes: new, refused and ignored files.
    """
    run = spec.run
    settings = context.settings()
    with open_journal(settings) as journal:
        run = run or session.current()
        op = find_run(journal, run) if run or not spec.plan else None
        if spec.plan:
            known = code_sync.pushed(transport_to(settings, op), pods.folder_of(op).code) if op else {}
            seen = preview(ROOT, known, op.send_anyway if op else ())
            print_json(seen) if spec.json else show_sync(seen, op.run if op else "")
            return
        assert op is not None
        if not op.is_live:
            raise UsageError(f"{op.run} has ended, so no code was sent. A new launch sends the current code")
        if op.outlives_run:
            session.use(op)
        meter = Meter(rate(spec.bwlimit))
        done = send_code(op, registry.provider(settings, op.vendor), ROOT, render.say, meter)
    if spec.json:
        print_json({**asdict(done), **about(meter)})
    else:
        render.say(f"{op.run}: {done.sent} files sent, {done.unchanged} unchanged, {done.removed} removed")
        if meter.ways:
            render.say(moved(meter))


def show_sync(plan: SyncPlan, run: str) -> None:
    """Print the effect of a push: totals, largest files, and refused and ignored files with reasons, and pointers."""
    out = render.console(stderr=False)
    since = f" since the last push to {run}" if run else ""
    out.print(
        f"{plan.files:,} files, {render.size(plan.bytes)}; {len(plan.new):,} new{since}, {len(plan.gone):,} to remove"
    )
    table = render.new_table("largest", "size")
    for path, num_bytes in plan.largest:
        table.add_row(render.clean(path), render.size(num_bytes))
    out.print(table, markup=False)
    for refusal in plan.refused:
        out.print(f"refused, not sent: {render.clean(str(refusal))}", markup=False)
    for line in pointer_lines(plan.pointers):
        out.print(render.clean(line), markup=False)
    out.print(f"ignored by git: {plan.ignored_files:,} files, {render.size(plan.ignored_bytes)}")
