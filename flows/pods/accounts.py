"""Audit and clean-up of vendor accounts: every machine in an account, and the due actions."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from infra import errors
from infra.errors import SlipwayError, UsageError
from infra.ledger import reap as reaping
from infra.ledger.audit import FOREIGN, ORPHANED, Finding
from infra.ledger.journal import Journal
from infra.ledger.reconcile import Action, AdoptedRow, Delete, reconcile
from infra.machines.host_memory import map_parallel
from infra.notices import hooks
from infra.notices.outbox import Notice, send_now
from infra.providers import Provider, by_name, market, offers
from infra.runs import pods
from infra.selection import registry
from infra.settings import VENDORS, Settings, inventory, is_rented
from infra.units import count, per_hour
from store import packs

ASK_S = 120.0
WORDS = {
    "found": "adopted",
    "unsent": "no request was sent",
    "unclear": "the launch was cut off",
    "absent": "the pod was never created",
    "gone": "it is gone",
    "resurfaced": "the pod appeared again after the end",
    "end": "it is to end",
}


@dataclass(frozen=True)
class MachineAction:
    """An action on a machine, as display text."""

    provider: str
    run: str
    what: str


@dataclass(frozen=True)
class Accounts:
    """The machines in the accounts, the actions taken, and the problems met."""

    found: list[Finding]
    done: list[MachineAction]
    problems: list[str]
    is_alone: bool = False
    """True if no account is configured."""


def audit(journal: Journal, settings: Settings, provider: str = "", kill: str | bool = False) -> Accounts:
    """Look at every account. `kill=True` ends orphans; a text ends the machine with this id, token, run or name."""
    markets, problems = known_accounts(settings, journal, provider)
    is_alone = not markets and not problems
    found: list[Finding] = []
    done: list[MachineAction] = []
    if isinstance(kill, str):
        done = [end_named(kill, markets, journal, problems)]
    elif kill:
        done = [one for account in markets for one in clear(account, journal, found, problems, True)]
    else:
        looks = map_parallel(lambda one: reaping.inspect(one, journal), markets, ASK_S)
        for account, seen in zip(markets, looks, strict=True):
            if isinstance(seen, SlipwayError):
                problems.append(f"{account.name}: {seen}")
            else:
                found += seen[0]
                problems += seen[1].problems
    if not kill:
        _tell(found, settings)
    return Accounts([with_other_owner(one, journal) for one in found], done, problems, is_alone)


def _tell(found: Sequence[Finding], settings: Settings) -> None:
    """Send a notice to the audit hooks for each machine that should not run."""
    for one in found:
        if one.wastes_money:
            name = one.run or one.name or one.pod_id or one.token
            note = f"{one.provider} {one.pod_id or one.token} ({one.kind}) at {per_hour(one.micro_usd_per_hour)}; "
            notice = Notice(
                subject=name,
                event="audit",
                key=f"{one.provider} {one.pod_id} {one.token} {one.kind}",
                note=f"{note}run: inv audit",
            )
            send_now(notice, hooks.for_all(settings), settings, lambda _: None)


def reap(journal: Journal, settings: Settings, provider: str = "") -> Accounts:
    """Carry out the due actions in every account: end pods at a limit, unclaimed pods, and pods asked to end."""
    markets, problems = known_accounts(settings, journal, provider)
    is_alone = not markets and not problems
    found: list[Finding] = []
    done = [one for account in markets for one in clear(account, journal, found, problems)]
    return Accounts(found, done, problems, is_alone)


def clear(
    account: Provider,
    journal: Journal,
    found: list[Finding],
    problems: list[str],
    orphans_only: bool = False,
) -> list[MachineAction]:
    """Reap an account, and return the actions; add the present machines and the problems to `found` and `problems`."""
    try:
        rented = market(account)
        if rented is None:
            return _clear_engine(account, journal, found, problems)
        reaped = reaping.reap(rented, journal, orphans_only=orphans_only)
    except Exception as error:  # An error of an account must not stop the others.
        problems.append(f"{account.name}: {errors.describe(error)}")
        return []
    found += reaped.findings
    problems += reaped.problems
    ended = [MachineAction(op.vendor, op.run, f"it is to end: {reason}") for op, reason in reaped.due]
    return [*ended, *(_done(action, account, journal) for action in reaped.actions)]


def _clear_engine(engine: Provider, journal: Journal, found: list[Finding], problems: list[str]) -> list[MachineAction]:
    """End an engine's pods with our mark but without a row. The pods are free, so no money limit applies."""
    done: list[MachineAction] = []
    for _ in range(2):  # The first pass requests the ends, the second pass observes the ends.
        seen = reconcile(engine, journal)
        done += [_done(action, engine, journal) for action in seen.actions]
    problems += seen.problems
    found += reaping.inspect(engine, journal)[0]
    return done


def with_other_owner(one: Finding, journal: Journal) -> Finding:
    """Return the finding with a note about the owner, if a different installation of this user has the row."""
    claim = next((claim for claim in journal.others if one.token.startswith(f"sw1-{claim.id}-")), None)
    if claim is None or one.kind != FOREIGN:
        return one
    return replace(
        one, note=f"owned by {claim.where}; if the owner does not need the machine: inv audit --kill {one.pod_id}"
    )


def end_named(name: str, markets: Sequence[Provider], journal: Journal, problems: list[str]) -> MachineAction:
    """End the only machine with this id, token, run or name, even without a row. Raises UsageError otherwise."""
    seen = list[tuple[Provider, Finding]]()
    for account in markets:
        try:
            found, look = reaping.inspect(account, journal)
        except SlipwayError as error:
            problems.append(f"{account.name}: {error}")
            continue
        problems += look.problems
        seen += [(account, one) for one in found if one.pod_id]
    meant = [(account, one) for account, one in seen if name in (one.pod_id, one.token, one.run, one.name)]
    if len(meant) != 1:
        there = ", ".join(one.pod_id for _, one in (meant or seen) if one.token)
        what = "matches several machines" if meant else "matches no machine"
        silent = f"; {'; '.join(problems)}" if problems else ""
        raise UsageError(
            f"--kill {name}: the name {what}; nothing was ended. Machines of Slipway: {there or 'none'}{silent}"
        )
    ((account, one),) = meant
    if not one.token:
        raise UsageError(
            f"--kill {name}: {account.name} {one.pod_id} does not carry Slipway's mark, so Slipway did not create "
            "the machine; nothing was ended"
        )
    if one.kind not in (FOREIGN, ORPHANED):
        raise UsageError(f"--kill {name}: the machine is the pod of {one.run}; run: inv down {one.run}")
    pod = account.find(one.pod_id)
    if pod is not None:
        rows = [op for op in journal.ops() if op.token == one.token]
        why = "named by the user: inv audit --kill"
        op = rows[0] if rows else journal.claim(pod, why)
        if not op.is_live:
            op = journal.advance(op, "resurfaced", remote_id=pod.pod_id, reason=why)
        pods.end(account, op, journal)
    return MachineAction(account.name, one.run or one.name or one.pod_id, f"{one.pod_id} is gone")


def known_accounts(settings: Settings, journal: Journal, only: str) -> tuple[list[Provider], list[str]]:
    """Return the accounts and engines to ask, and a problem for each account with live pods but without a key.

    A provider of a pack is included only with an inventory or live pods, because the pack's tool may not be installed.
    """
    used = {op.vendor for op in journal.ops(live=True)}
    of_packs: list[Provider] = []
    silent: list[str] = []
    for name in packs.words("providers"):
        if name == only or not only and (name in used or inventory(name, settings)):
            try:
                of_packs.append(registry.provider(settings, name))
            except SlipwayError as error:
                silent.append(f"{name}: {error}")
    if only in packs.words("providers"):
        return of_packs, silent
    rented, problems = offers.accounts(settings, only)
    problems = [*problems, *silent]
    markets: list[Provider] = [*rented, *of_packs]
    asked = {market.name for market in markets}
    for name, key in VENDORS.items():
        live = [op for op in journal.ops(live=True) if op.vendor == name]
        if live and name not in asked and only in ("", name):
            cost = per_hour(sum(op.rate for op in live))
            problems.append(
                f"{name}: no key is set, but {count(len(live), 'pod')} of this installation may bill {cost}; "
                f"set {key.upper()}"
            )
    rows = [op for op in journal.ops(live=True) if is_rented(op.vendor) and op.vendor not in (*VENDORS, *asked)]
    for name in sorted({op.vendor for op in rows if only in ("", op.vendor)}):
        live = [op for op in rows if op.vendor == name]
        cost = per_hour(sum(op.rate for op in live))
        problems.append(
            f"{name}: {count(len(live), 'pod')} of this installation may bill {cost}, and the provider cannot "
            f"be asked; name the provider's file in {by_name.EXTENSIONS}"
        )
    return markets, problems


def _done(action: Action, account: Provider, journal: Journal) -> MachineAction:
    """Return a display record of a reconciliation action on a machine."""
    token = action.pod.token if isinstance(action, AdoptedRow) else action.token
    what = "an orphan, due to end" if isinstance(action, AdoptedRow) else "asked the vendor to delete the pod"
    if not isinstance(action, (AdoptedRow, Delete)):
        what = WORDS.get(action.event, "not seen; looked for again")
    return MachineAction(account.name, journal.op(token).run, what)
