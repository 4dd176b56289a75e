"""The vendors' accounts as they are, and what is due in them: every machine there, ours or not."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import cast

from infra import errors
from infra.errors import SlipwayError, UsageError
from infra.ledger import reap as reaping
from infra.ledger.audit import FOREIGN, ORPHANED, Finding
from infra.ledger.journal import Journal
from infra.ledger.reconcile import Action, Claim, Delete
from infra.machines.host_memory import at_once
from infra.money import dollars
from infra.providers import Market, offers, registry
from infra.runs import pods
from infra.settings import ENGINE, VENDORS, Settings
from infra.units import count

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


@dataclass(frozen=True)
class Done:
    """What was done about one machine, in words."""

    provider: str
    run: str
    what: str


@dataclass(frozen=True)
class Accounts:
    """What is in the accounts, what was done there, and what could not be asked or done."""

    found: list[Finding]
    done: list[Done]
    problems: list[str]
    is_alone: bool = False
    """There is no account to ask."""


def audit(journal: Journal, settings: Settings, provider: str = "", kill: str | bool = False) -> Accounts:
    """Look at every account. `kill`: end our orphans, or just the machine of that id, token, run or name."""
    markets, problems = known_accounts(settings, journal, provider)
    is_alone = not markets and not problems
    found: list[Finding] = []
    done: list[Done] = []
    if isinstance(kill, str):
        done = [end_named(kill, markets, journal, problems)]
    elif kill:
        done = [one for market in markets for one in clear(market, journal, found, problems, True)]
    else:
        looks = at_once(lambda one: reaping.inspect(one, journal), markets, ASK_S)
        for market, seen in zip(markets, looks, strict=True):
            if isinstance(seen, SlipwayError):
                problems.append(f"{market.name}: {seen}")
            else:
                found += seen[0]
                problems += seen[1].problems
    return Accounts([known_elsewhere(one, journal) for one in found], done, problems, is_alone)


def reap(journal: Journal, settings: Settings, provider: str = "") -> Accounts:
    """Do what is due in every account: pods that have reached a limit, that nobody wants, that were to end."""
    markets, problems = known_accounts(settings, journal, provider)
    is_alone = not markets and not problems
    found: list[Finding] = []
    done = [one for market in markets for one in clear(market, journal, found, problems)]
    return Accounts(found, done, problems, is_alone)


def clear(
    market: Market, journal: Journal, found: list[Finding], problems: list[str], orphans_only: bool = False,
) -> list[Done]:  # fmt: skip
    """Reap one account; what was done there. What is there now, and what went wrong, is added to the lists."""
    try:
        reaped = reaping.reap(market, journal, orphans_only=orphans_only)
    except Exception as error:  # the other accounts are looked after all the same
        problems.append(f"{market.name}: {errors.in_words(error)}")
        return []
    found += reaped.findings
    problems += reaped.problems
    ended = [Done(op.vendor, op.run, f"it is to end: {reason}") for op, reason in reaped.due]
    return [*ended, *(_done(action, market, journal) for action in reaped.actions)]


def known_elsewhere(one: Finding, journal: Journal) -> Finding:
    """Return the same, and where it may have been rented, when another installation of this user has its row."""
    claim = next((claim for claim in journal.others if one.token.startswith(f"sw1-{claim.id}-")), None)
    if claim is None or one.kind != FOREIGN:
        return one
    return replace(one, note=f"of {claim.where}; when nobody there needs it: inv audit --kill {one.pod_id}")


def end_named(name: str, markets: Sequence[Market], journal: Journal, problems: list[str]) -> Done:
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
        raise UsageError(
            f"--kill {name}: {market.name} {one.pod_id} does not carry Slipway's mark; it belongs to somebody else"
        )
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
    return Done(market.name, one.run or one.name or one.pod_id, f"{one.pod_id} is gone")


def known_accounts(settings: Settings, journal: Journal, only: str) -> tuple[list[Market], list[str]]:
    """Return the accounts to ask; an account that we have pods in, and no key of, is a problem."""
    markets, problems = offers.accounts(settings, only) if only != ENGINE else ([], [])
    if only == ENGINE or not only and any(op.vendor == ENGINE for op in journal.ops(live=True)):
        markets.append(cast(Market, registry.provider(settings, ENGINE)))
    asked = {market.name for market in markets}
    for name, key in VENDORS.items():
        live = [op for op in journal.ops(live=True) if op.vendor == name]
        if live and name not in asked and only in ("", name):
            cost = dollars(sum(op.rate for op in live))
            problems.append(
                f"{name}: no key is set, and {count(len(live), 'pod')} of ours may run there at {cost} USD/h; "
                f"set {key.upper()}"
            )
    return markets, problems


def _done(action: Action, market: Market, journal: Journal) -> Done:
    """Return what reconciling did about one machine, in words."""
    token = action.pod.token if isinstance(action, Claim) else action.token
    what = "an orphan: it is to end" if isinstance(action, Claim) else "asked to delete it"
    if not isinstance(action, (Claim, Delete)):
        what = WORDS.get(action.event, "not seen; looked for again")
    return Done(market.name, journal.op(token).run, what)
