"""The commands `inv audit` and `inv reap`: the machines in the accounts, and what is due there."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from invoke import Exit

from flows.pods import accounts as use_case
from flows.pods.accounts import Done
from flows.supervisor.over_limit import OverLimit
from infra.ledger.audit import UNCLEAR, UNKNOWN_MARK, Finding
from infra.runs.settle import settle
from infra.settings import is_rented
from scripts.cli import context, render
from scripts.cli.invoke_patch import print_json
from scripts.cli.render import columns
from scripts.cli.session import found_over_limit, open_journal, past_limit_words
from scripts.market.flags import AuditFlags, ReapFlags
from store import moving_line

NOBODY = "no vendor's key is set, and nothing was rented that may still run: there is no account to ask"


def audit(spec: AuditFlags) -> None:
    settings = context.settings()
    with open_journal(settings) as journal:
        with moving_line.waiting("asking every account"):
            seen = use_case.audit(
                journal, settings, spec.provider, spec.kill if isinstance(spec.kill, str) else bool(spec.kill)
            )
        installation, over = journal.installation, found_over_limit(journal)
    if seen.is_alone:
        render.say(NOBODY)
    if spec.json:
        machines = [machine_json(one) for one in seen.found]
        done = [asdict(one) for one in seen.done]
        print_json({"installation": installation, "machines": machines, "done": done, "problems": seen.problems,
                    "over_limit": [over_json(one) for one in over]})  # fmt: skip
    else:
        for one in seen.done:
            render.say(done_words(one))
        show(seen.found, seen.problems)
    leave("audit", seen.found, seen.problems, "end them with: inv audit --kill", over)


def reap(spec: ReapFlags) -> None:
    settings = context.settings()
    with open_journal(settings) as journal:
        here = [op.token for op in journal.ops(live=True) if not is_rented(op.vendor)]
        if here and not spec.provider:
            settle(journal, settings, render.tell, here)
        with moving_line.waiting("asking every account"):
            seen = use_case.reap(journal, settings, spec.provider)
    if seen.is_alone:
        render.say(NOBODY)
    if spec.json:
        due = [machine_json(one) for one in seen.found if one.is_wrong]
        print_json({"done": [asdict(one) for one in seen.done], "due": due, "problems": seen.problems})
    else:
        for one in seen.done:
            print(done_words(one))
        for problem in seen.problems:
            render.say(render.clean(problem))
        if not seen.done:
            render.say("nothing was due")
    leave("reap", seen.found, seen.problems, "run again: inv reap")


def done_words(one: Done) -> str:
    return render.clean(f"{one.provider}: {one.run}: {one.what}")


def show(found: Sequence[Finding], problems: Sequence[str]) -> None:
    """Print a line for each machine, then what could not be asked or done."""
    if found:
        rows = [("provider", "machine", "whose", "run or name", "state", "USD/h", "age", "")]
        for one in found:
            age = "?" if one.age_s is None else render.duration(one.age_s)
            price = render.usd(one.micro_usd_per_hour) if one.micro_usd_per_hour else "?"
            rows.append(
                (one.provider, one.pod_id or "?", one.kind, one.run or one.name, one.state, price, age, one.note)
            )
        print(render.clean(columns(rows)))
    elif not problems:
        render.say("no machine runs in any account")
    for problem in problems:
        render.say(render.clean(problem))


def leave(
    command: str, found: Sequence[Finding], problems: Sequence[str], then: str, over: Sequence[OverLimit] = ()
) -> None:
    """Leave with exit code 5 when something of ours bills that nobody wants, or when that is not known.

    `over`: pods that were found past their limit, ended by now or not.
    """
    wrong = [one for one in found if one.is_wrong]
    unclear = [one for one in wrong if one.kind == UNCLEAR]
    unknown = [one for one in wrong if one.kind == UNKNOWN_MARK]
    said = [past_limit_words(over)] if over else []
    if sure := [one for one in wrong if one not in (*unclear, *unknown)]:
        said.append(f"{in_words(sure)} should not run; {then}")
    if unclear:
        said.append(f"{in_words(unclear)} may run, since their requests got no clear answer; run: inv reap")
    if unknown:
        names = ", ".join(f"{one.provider} {one.pod_id or '?'} ({one.note})" for one in unknown)
        said.append(f"what cannot be read may be ours, and bill; look at the vendor's own page: {names}")
    if problems:
        said.append("not every account could be asked, so there may be more: " + "; ".join(problems))
    if said:
        raise Exit(render.clean(f"inv {command}: " + "\n".join(said)), code=5)


def in_words(found: Sequence[Finding]) -> str:
    names = ", ".join(f"{one.provider} {one.pod_id or one.token} ({one.kind})" for one in found)
    cost = render.usd(sum(one.micro_usd_per_hour for one in found))
    return f"{render.count(len(found), 'machine')} of ours at {cost} USD/h ({names})"


def over_json(one: OverLimit) -> dict[str, Any]:
    """Return as JSON a pod that was found past its limit."""
    return {
        "run": one.op.run,
        "provider": one.op.vendor,
        "over_limit_usd": render.usd(one.excess.micro_usd) if one.excess.micro_usd else None,
        "over_limit_s": round(one.excess.time_s, 1) or None,
        "heard_age_s": None if one.heard_s is None else round(one.heard_s, 1),
        "ended": one.is_ended,
        "note": one.problem or None,
    }


def machine_json(one: Finding) -> dict[str, Any]:
    """Return one machine as JSON; null is what nobody knows. Money is a decimal string in US dollars."""
    return {
        "provider": one.provider,
        "id": one.pod_id or None,
        "whose": one.kind,
        "run": one.run or None,
        "name": one.name or None,
        "token": one.token or None,
        "state": one.state or None,
        "usd_per_hour": render.usd(one.micro_usd_per_hour),
        "age_s": None if one.age_s is None else round(one.age_s),
        "note": one.note or None,
    }
