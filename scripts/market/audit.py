"""The command `inv audit`: the machines in all accounts, with their owners."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from flows.pods import accounts as use_case
from flows.supervisor.over_limit import OverLimit
from infra.flags import flag
from infra.ledger.audit import Finding
from infra.units import rate
from scripts.cli import context, render
from scripts.cli.command import command
from scripts.cli.flags import LISTED, Output
from scripts.cli.render import columns, print_json
from scripts.cli.session import found_over_limit, open_journal
from scripts.market.account_machines import NOBODY, done_words, exit_for_findings, machine_json
from store import terminal


@dataclass(frozen=True, kw_only=True)
class AuditFlags(Output):
    provider: str = flag("", f"ask only runpod, lium, shadeform{LISTED}, or an extension")
    kill: str | bool | None = flag(
        None,
        "delete our orphans, and wait for the vendor's confirmation; with a NAME or id: delete only this "
        "machine, which may belong to another installation of yours",
        bare=True,
    )


@command(record=AuditFlags, example="inv audit")
def audit(spec: AuditFlags) -> None:
    """List every machine in every account, with its owner.

    Each machine is ours, an orphan, or foreign. The exit code is 5 if an orphan bills.
    """
    settings = context.settings()
    with open_journal(settings) as journal:
        with terminal.show_while("asking every account"):
            seen = use_case.audit(
                journal, settings, spec.provider, spec.kill if isinstance(spec.kill, str) else bool(spec.kill)
            )
        installation, over = journal.installation, found_over_limit(journal)
    if seen.is_alone:
        render.say(NOBODY)
    if spec.json:
        machines = [machine_json(one) for one in seen.found]
        done = [asdict(one) for one in seen.done]
        print_json(
            {
                "installation": installation,
                "machines": machines,
                "done": done,
                "problems": seen.problems,
                "over_limit": [over_json(one) for one in over],
            }
        )
    else:
        for one in seen.done:
            render.say(done_words(one))
        if not seen.is_alone:
            show(seen.found, seen.problems)
    exit_for_findings("audit", seen.found, seen.problems, "delete the machines: inv audit --kill", over)


def show(found: Sequence[Finding], problems: Sequence[str]) -> None:
    """Print a line per machine, followed by the failed queries and actions."""
    if found:
        rows = [("provider", "machine", "whose", "run or name", "state", "USD/h", "age", "")]
        for one in found:
            age = "?" if one.age_s is None else render.duration(one.age_s)
            price = rate(one.micro_usd_per_hour) if one.micro_usd_per_hour else "?"
            rows.append(
                (one.provider, one.pod_id or "?", one.kind, one.run or one.name, one.state, price, age, one.note)
            )
        print(render.clean(columns(rows)))
    elif not problems:
        render.say("no machine runs in any account")
    for problem in problems:
        render.say(render.clean(problem))


def over_json(one: OverLimit) -> dict[str, Any]:
    """Return a pod found past its limit as JSON."""
    return {
        "run": one.op.run,
        "provider": one.op.vendor,
        "over_limit_usd": render.usd(one.excess.micro_usd) if one.excess.micro_usd else None,
        "over_limit_s": round(one.excess.time_s, 1) or None,
        "heard_age_s": None if one.heard_s is None else round(one.heard_s, 1),
        "ended": one.is_ended,
        "note": one.problem or None,
    }
