"""What `inv audit` and `inv reap` do: the accounts as they are, and what is due in them."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from invoke import Exit

from infra import errors
from infra.errors import SlipwayError, UsageError
from infra.ledger import reap as reaping
from infra.ledger.audit import FOREIGN, ORPHANED, UNCLEAR, UNKNOWN_MARK, Finding
from infra.ledger.journal import Journal
from infra.ledger.reconcile import Action, Claim, Delete
from infra.machines.host_memory import at_once
from infra.providers import Market, offers
from infra.runs import pods
from infra.runs.settle import settle
from infra.settings import VENDORS, Settings
from scripts.cli import context, render
from scripts.cli.invoke_patch import print_json
from scripts.cli.render import columns
from scripts.cli.session import open_journal

ASK_S = 120.0
WORDS = {
    "found": "adopted",
    "unsent": "nothing had been asked for",
    "unclear": "its launch was cut off",
    "absent": "it was never made",
    "gone": "it is gone",
    "resurfaced": "it turned up after its end",
    "end": "it is to end",
}


def audit(provider, kill, json):
    settings = context.settings()
    with open_journal(settings) as journal:
        markets, problems = known_accounts(settings, journal, provider)
        found: list[Finding] = []
        done: list[dict[str, Any]] = []
        if isinstance(kill, str):
            done = [end_named(kill, markets, journal, problems)]
        elif kill:
            done = [line for market in markets for line in clear(market, journal, settings, found, problems, True)]
        else:
            looks = at_once(lambda one: reaping.inspect(one, journal), markets, ASK_S)
            for market, seen in zip(markets, looks, strict=True):
                if isinstance(seen, SlipwayError):
                    problems.append(f"{market.name}: {seen}")
                else:
                    found += seen[0]
                    problems += seen[1].problems
        found = [known_elsewhere(one, journal) for one in found]
        installation = journal.installation
    if json:
        machines = [machine_json(one) for one in found]
        print_json({"installation": installation, "machines": machines, "done": done, "problems": problems})
    else:
        for line in done:
            render.say(done_words(line))
        show(found, problems)
    leave("audit", found, problems, "end them with: inv audit --kill")


def reap(provider, json):
    settings = context.settings()
    with open_journal(settings) as journal:
        here = [op.token for op in journal.ops(live=True) if op.vendor not in VENDORS]
        if here and not provider:
            settle(journal, settings, render.tell, here)
        markets, problems = known_accounts(settings, journal, provider)
        found: list[Finding] = []
        done = [line for market in markets for line in clear(market, journal, settings, found, problems)]
    if json:
        due = [machine_json(one) for one in found if one.is_wrong]
        print_json({"done": done, "due": due, "problems": problems})
    else:
        for line in done:
            print(done_words(line))
        for problem in problems:
            render.say(render.clean(problem))
        if not done:
            render.say("nothing was due")
    leave("reap", found, problems, "run again: inv reap")


def clear(
    market: Market, journal: Journal, settings: Settings, found: list[Finding], problems: list[str],
    orphans_only: bool = False,
) -> list[dict[str, Any]]:  # fmt: skip
    """Reap one account; what was done there. What is there now, and what went wrong, is added to the lists."""
    try:
        reaped = reaping.reap(market, journal, orphans_only=orphans_only)
    except Exception as error:  # the other accounts are looked after all the same
        problems.append(f"{market.name}: {errors.in_words(error)}")
        return []
    found += reaped.findings
    problems += reaped.problems
    ended = [{"provider": op.vendor, "run": op.run, "what": f"it is to end: {reason}"} for op, reason in reaped.due]
    return [*ended, *(action_json(action, market, journal) for action in reaped.actions)]


def known_elsewhere(one: Finding, journal: Journal) -> Finding:
    """The same, and where it may have been rented, when this user has another installation: its journal has its row."""
    claim = next((claim for claim in journal.others if one.token.startswith(f"sw1-{claim.id}-")), None)
    if claim is None or one.kind != FOREIGN:
        return one
    return replace(one, note=f"of {claim.where}; when nobody there needs it: inv audit --kill {one.pod_id}")


def end_named(name: str, markets: Sequence[Market], journal: Journal, problems: list[str]) -> dict[str, Any]:
    """End the one machine of that id, token, run or name, though no row claims it. Raises UsageError for any other."""
    seen = list[tuple[Market, Finding]]()
    for market in markets:
        try:
            found, look = reaping.inspect(market, journal)
        except SlipwayError as error:
            problems.append(f"{market.name}: {error}")
            continue
        problems += look.problems
        seen += [(market, one) for one in found if one.pod_id]
    meant = [(market, one) for market, one in seen if name in (one.pod_id, one.token, one.run, one.name)]
    if len(meant) != 1:
        there = ", ".join(one.pod_id for _, one in (meant or seen) if one.token)
        what = "is several machines" if meant else "is no machine there"
        silent = f"; {'; '.join(problems)}" if problems else ""
        raise UsageError(f"--kill {name}: that {what}; nothing was ended; ours are: {there or 'none'}{silent}")
    ((market, one),) = meant
    if not one.token:
        raise UsageError(f"--kill {name}: {market.name} {one.pod_id} bears no mark of Slipway's; it is somebody else's")
    if one.kind not in (FOREIGN, ORPHANED):
        raise UsageError(f"--kill {name}: it is the pod of {one.run}; run: inv down {one.run}")
    pod = market.find(one.pod_id)
    if pod is not None:
        rows = [op for op in journal.ops() if op.token == one.token]
        why = "it was named: inv audit --kill"
        op = rows[0] if rows else journal.claim(pod, why)
        if not op.is_live:
            op = journal.advance(op, "resurfaced", remote_id=pod.pod_id, reason=why)
        pods.end(market, op, journal)
    return {"provider": market.name, "run": one.run or one.name or one.pod_id, "what": f"{one.pod_id} is gone"}


def done_words(line: Mapping[str, Any]) -> str:
    return render.clean(f"{line['provider']}: {line['run']}: {line['what']}")


def known_accounts(settings: Settings, journal: Journal, only: str) -> tuple[list[Market], list[str]]:
    """The accounts to ask; an account that we have pods in, and no key of, is a problem."""
    markets, problems = offers.accounts(settings, only)
    asked = {market.name for market in markets}
    for name, key in VENDORS.items():
        live = [op for op in journal.ops(live=True) if op.vendor == name]
        if live and name not in asked and only in ("", name):
            cost = render.usd(sum(op.rate for op in live))
            problems.append(
                f"{name}: no key is set, and {render.count(len(live), 'pod')} of ours may run there at {cost} USD/h; "
                f"set {key.upper()}"
            )
    if not markets and not problems:
        render.say("no vendor's key is set, and nothing was rented that may still run: there is no account to ask")
    return markets, problems


def show(found: Sequence[Finding], problems: Sequence[str]) -> None:
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


def leave(command: str, found: Sequence[Finding], problems: Sequence[str], then: str) -> None:
    """Exit 5 when something of ours bills that nobody wants, or when that is not known."""
    wrong = [one for one in found if one.is_wrong]
    unclear = [one for one in wrong if one.kind == UNCLEAR]
    unknown = [one for one in wrong if one.kind == UNKNOWN_MARK]
    said = []
    if sure := [one for one in wrong if one not in (*unclear, *unknown)]:
        said.append(f"{in_words(sure)} should not run; {then}")
    if unclear:
        said.append(f"{in_words(unclear)} may run, since their requests got no clear answer; run: inv reap")
    if unknown:
        names = ", ".join(f"{one.provider} {one.pod_id or '?'} ({one.note})" for one in unknown)
        said.append(f"what cannot be read may be ours, and bill; look at the vendor's own page: {names}")
    if problems:
        said.append("not everybody could be asked, so there may be more: " + "; ".join(problems))
    if said:
        raise Exit(render.clean(f"inv {command}: " + "\n".join(said)), code=5)


def in_words(found: Sequence[Finding]) -> str:
    names = ", ".join(f"{one.provider} {one.pod_id or one.token} ({one.kind})" for one in found)
    cost = render.usd(sum(one.micro_usd_per_hour for one in found))
    return f"{render.count(len(found), 'machine')} of ours at {cost} USD/h ({names})"


def machine_json(one: Finding) -> dict[str, Any]:
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


def action_json(action: Action, market: Market, journal: Journal) -> dict[str, Any]:
    """What reconciling did about one machine, in words."""
    token = action.pod.token if isinstance(action, Claim) else action.token
    what = "an orphan: it is to end" if isinstance(action, Claim) else "asked to delete it"
    if not isinstance(action, (Claim, Delete)):
        what = WORDS.get(action.event, "not seen; looked for again")
    return {"provider": market.name, "run": journal.op(token).run, "what": what}
