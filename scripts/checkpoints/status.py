"""The command `ckpt.status`: uploaded and pending checkpoints and files of runs."""

from dataclasses import dataclass

from flows.reading import status as runs
from infra.flags import flag
from infra.runs.lookup import find_run
from scripts.cli import context, render
from scripts.cli.command import command
from scripts.cli.flags import Output
from scripts.cli.render import print_json
from scripts.cli.session import open_journal
from store import terminal

AT_WORK = ("planned", "idle", "running", "ending")


@dataclass(frozen=True, kw_only=True)
class CkptStatusFlags(Output):
    run: str = flag("", "name of a run (default: all live runs)", word=True)


@command(record=CkptStatusFlags, example="inv ckpt.status brave-otter-3")
def status(spec: CkptStatusFlags) -> None:
    """Show stored and pending uploads of runs.

    Pending are checkpoints, and files in folders mounted by a job, that the store does not have yet.
    """
    settings = context.settings()
    with open_journal(settings) as journal, terminal.show_while("reading the state of every pod"):
        name = find_run(journal, spec.run).run if spec.run else ""
        views = [
            one for one in runs.status(journal, settings, name) if (one.run == name if name else one.state in AT_WORK)
        ]
    if spec.json:
        print_json(
            [
                {
                    "run": one.run,
                    "pending": list(one.pending),
                    "problem": one.upload_problem or None,
                    "in_store": dict(one.in_store),
                }
                for one in views
            ]
        )
        return
    if not views:
        render.say("no run is live")
    for one in views:
        saved = ", ".join(one.in_store) or "none"
        print(render.clean(f"{one.run}: pending {len(one.pending)}; newest checkpoints in the store: {saved}"))
        for name in one.pending:
            print(render.clean(f"  {name}"))
        if one.upload_problem:
            render.say(render.clean(f"  the last write to the store failed and is retried: {one.upload_problem}"))
