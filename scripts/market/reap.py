"""The command `inv reap`: due cleanup in all accounts."""

from dataclasses import asdict, dataclass

from flows.pods import accounts as use_case
from infra.flags import flag
from infra.runs.journal_upkeep import settle
from infra.settings import is_rented
from scripts.cli import context, render
from scripts.cli.command import command
from scripts.cli.flags import LISTED, Output
from scripts.cli.render import print_json
from scripts.cli.session import open_journal
from scripts.market.account_machines import NOBODY, done_words, exit_for_findings, machine_json
from store import terminal


@dataclass(frozen=True, kw_only=True)
class ReapFlags(Output):
    provider: str = flag("", f"ask only runpod, lium, shadeform{LISTED}, or an extension")


@command(record=ReapFlags, example="inv reap")
def reap(spec: ReapFlags) -> None:
    """Clean up now: adopt lost pods, and end overdue pods.

    Failed deletions are retried. The exit code is 5 while a machine still bills.
    """
    settings = context.settings()
    with open_journal(settings) as journal:
        here = [op.token for op in journal.ops(live=True) if not is_rented(op.vendor)]
        if here and not spec.provider:
            settle(journal, settings, render.tell, here)
        with terminal.show_while("asking every account"):
            seen = use_case.reap(journal, settings, spec.provider)
    if seen.is_alone:
        render.say(NOBODY)
    if spec.json:
        due = [machine_json(one) for one in seen.found if one.wastes_money]
        print_json({"done": [asdict(one) for one in seen.done], "due": due, "problems": seen.problems})
    else:
        for one in seen.done:
            print(done_words(one))
        for problem in seen.problems:
            render.say(render.clean(problem))
        if not seen.done:
            render.say("nothing to clean up")
    exit_for_findings("reap", seen.found, seen.problems, "run again: inv reap")
