"""The command `allow`: allowances for agents, which rent with a token and never see the keys of the owner."""

import os
import pwd
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from invoke import Exit

from flows.limits.shared_resources import set_budget
from flows.supervisor import supervisor_client
from infra.agent.limits import read_clocks
from infra.errors import SlipwayError, UsageError
from infra.flags import flag
from infra.ledger.journal import Journal
from infra.market import gpus
from infra.selection.preflight import amount_of
from infra.settings import VENDORS, Settings
from infra.units import dollars, in_usd, iso, seconds
from packs.agents.control import files, guarantee, money, place, taken
from packs.agents.control.account import Account
from packs.agents.control.receipt import Receipt
from packs.agents.control.reconciliation import Reconciliation, reconcile
from packs.agents.control.time_left import refusal
from packs.agents.records.allowance import MAY, NAME, Allowance, new_token
from packs.agents.records.client import LEASE, place_file
from scripts.cli import context, prompts, render
from scripts.cli.command import BEGIN, command
from scripts.cli.flags import Output, Questions
from scripts.cli.render import columns, print_json
from scripts.cli.session import open_journal
from scripts.market import cost
from store import terminal

WAIT_S = 30.0
POLL_S = 0.2
DEFAULT_S = 12 * 3600.0


@dataclass(frozen=True, kw_only=True)
class AllowFlags(Questions, Output):
    name: str = flag("", "name of the allowance; runs are called NAME-1, NAME-2", word=True)
    spend: str = flag("", "most that all machines of the allowance may cost together", unit="USD")
    ttl: str = flag("", "end of the allowance and of all its machines: 90m, 12h (default: 12h)", unit="DURATION")
    machines: int = flag(1, "most machines at a time", least=1)
    providers: str = flag("", "vendors, comma-separated (default: every vendor with a key)", unit="NAMES")
    gpu: str = flag("", "kinds of GPUs, comma-separated: H100,A100 (default: all)", unit="KINDS")
    may: str = flag(",".join(MAY), "what the holder may do: rent, serve", unit="WHAT")
    user: str = flag("", "Linux: the user of the agent on this machine, who cannot read your keys", unit="USER")
    top_up: str = flag("", "add this amount to the allowance", unit="USD")
    revoke: bool = flag(False, "end the allowance, and all its machines and services")
    receipt: bool = flag(False, "show every call and machine, and compare calls, ledger and bills of the vendors")
    list: bool = flag(False, "list all allowances")


@command(record=AllowFlags, world=BEGIN, example="inv allow demo --spend 20 --ttl 12h --gpu H100,A100")
def allow(spec: AllowFlags) -> None:
    """Give an agent money and a time, and never the keys.

    The token is shown once. Its holder calls `inv mcp` and can plan, launch, serve and end own runs within the
    allowance; the broker, a process of yours, holds the keys. All machines end with the allowance.
    """
    settings = context.settings()
    with open_journal(settings) as journal:
        if spec.list or not spec.name:
            show_list(journal, settings, spec.json)
        elif spec.receipt:
            show_receipt(files.load(spec.name, settings), journal, settings, spec.json)
        elif spec.revoke:
            revoke(spec, journal, settings)
        elif spec.top_up:
            top_up(spec, journal, settings)
        else:
            begin(spec, journal, settings)


def begin(spec: AllowFlags, journal: Journal, settings: Settings) -> None:
    """Write a new allowance, open its budget, start the broker, and show the token once."""
    if not NAME.fullmatch(spec.name):
        raise UsageError(f"{spec.name!r}: use small letters, digits and dashes, 32 at most")
    if not spec.spend:
        raise UsageError(
            f"--spend is missing: the most that the agent may spend, such as inv allow {spec.name} --spend 20"
        )
    if spec.user:
        known_user(spec.user)
    token, digest = new_token()
    now = read_clocks()
    one = Allowance(
        name=spec.name,
        token_sha256=digest,
        micro_usd=amount_of("spend", spec.spend),
        begins=now.wall_s,
        ttl_s=seconds(spec.ttl) or DEFAULT_S,
        boot_id=now.boot_id,
        boot_s=now.boot_s,
        machines=spec.machines,
        providers=chosen(spec.providers, VENDORS, "providers"),
        gpus=chosen_gpus(spec.gpu),
        may=chosen(spec.may, MAY, "may"),
        user=spec.user,
    )
    with files.locked(one.name, settings):
        every = files.names(settings)
        if one.name in every:
            raise UsageError(
                f"{one.name} exists; more money: inv allow {one.name} --top-up USD; a new one: another name"
            )
        taken.check_allowance(one.name, taken.names(journal, settings), every)
        # Whatever may fail comes before the record: an open allowance without a shown token would be of no use.
        shared = str(place.open_folder(one.name, settings)) if one.user else ""
        found = guarantee.of(one, settings)
        set_budget(journal, one.budget, one.micro_usd, settings)
        facts = {**shown(one, journal, settings), "state": "starting"}
        files.save(one, settings)
        show_token(one, token, shared, found, facts if spec.json else None)
    try:
        supervisor_client.ensure(settings)
        is_ready = await_broker(one, settings)
    except (SlipwayError, OSError) as error:
        render.say(render.clean(str(error)))
        is_ready = False
    if not is_ready:
        render.say(f"the broker has not started within {WAIT_S:g} s; see: inv supervisor, inv allow --list")


def show_token(
    one: Allowance, token: str, shared: str, found: guarantee.Guarantee, facts: Mapping[str, Any] | None
) -> None:
    """Show a new token, the only time, and the guarantee.

    shared: folder of the socket for the user, "" = no user; facts: of the document, None = print text.
    """
    if facts is not None:
        print_json({**facts, "token": token, "folder": shared, "guarantee": found.about, "leaks": found.leaks})
    else:
        most = render.count(one.machines, "machine")
        render.say(f"{one.name}: {in_usd(one.micro_usd)} until {iso(one.ends)}, at most {most}; the token:")
        print(token)
        where = f" --folder {shared}" if shared else ""
        render.say(f"the agent runs: SLIPWAY_ALLOWANCE_TOKEN=TOKEN ./inv mcp --allowance {one.name}{where}")
        render.say(found.about)
        for leak in found.leaks:
            render.say(f"  - {leak}")
    sys.stdout.flush()


def top_up(spec: AllowFlags, journal: Journal, settings: Settings) -> None:
    """Raise the limit of an allowance."""
    more = amount_of("top-up", spec.top_up)
    total = files.load(spec.name, settings).micro_usd + more
    render.say(f"the holder of {spec.name} may then spend {in_usd(total)} in all, and {in_usd(more)} more than now")
    prompts.confirm(spec.yes)
    with files.changing(spec.name, settings) as one:
        if why := refusal(one):
            raise UsageError(f"{why}; a new allowance: inv allow NAME --spend USD")
        new = replace(one, micro_usd=one.micro_usd + more)
        files.save(new, settings)
    Account(one.name, settings).fit_budget()
    render.say(f"{one.name}: {in_usd(new.micro_usd)} in all")
    if spec.json:
        print_json(shown(new, journal, settings))


def revoke(spec: AllowFlags, journal: Journal, settings: Settings) -> None:
    """Revoke an allowance, also with an unreadable record."""
    files.check_known(spec.name, settings)
    render.say(f"this ends the allowance {spec.name}, and all its machines and services")
    prompts.confirm(spec.yes)
    files.revoke(spec.name, settings)
    supervisor_client.ensure(settings)
    render.say(f"{spec.name}: revoked; all machines of the allowance end now; see: inv status")
    if spec.json:
        print_json(shown_by_name(spec.name, journal, settings))


def show_list(journal: Journal, settings: Settings, as_json: bool) -> None:
    every = [shown_by_name(name, journal, settings) for name in files.names(settings)]
    if as_json:
        print_json(every)
        return
    if not every:
        render.say("no allowances; to give an agent 20 USD for 12 hours: inv allow NAME --spend 20 --ttl 12h")
        return
    rows: list[tuple[str, ...]] = [("allowance", "state", "spent", "free", "of", "machines", "ends")]
    for said in every:
        machines = f"{said['live_machines']} of {said['most_machines']}" if "ends" in said else ""
        names = ("allowance", "state", "spent_usd", "free_usd", "total_usd")
        rows.append((*(str(said.get(name, "")) for name in names), machines, str(said.get("ends") or "")))
    print(render.clean(columns(rows)))
    for said in every:
        if "problem" in said:
            render.say(render.clean(said["problem"]))


def show_receipt(one: Allowance, journal: Journal, settings: Settings, as_json: bool) -> None:
    """Print every call and machine, the sums, and each difference between receipt, ledger and bills.

    Raises Exit with code 5 after a difference.
    """
    found = Receipt(one.name, settings).read()
    with terminal.show_while("asking vendors for bills"):
        seen = reconcile(found.calls, Account(one.name, settings), journal)
    total, wrong = shown(one, journal, settings), [*found.problems, *seen.differences]
    if as_json:
        ledger = cost.ledger_json(seen.machines, {}, [*seen.unanswered])
        sums = {"counted_usd": dollars(seen.counted), "ledger_usd": ledger["usd"], "billed_usd": dollars(seen.billed)}
        print_json({**total, **sums, "calls": found.calls, "machines": ledger["pods"], "differences": wrong,
                    "unanswered": seen.unanswered})  # fmt: skip
    else:
        print_receipt(found.calls, seen)
        render.say(f"{one.name}: {in_usd(seen.counted)} spent of {in_usd(one.micro_usd)}; {total['free_usd']} USD free")
        render.say(f"ledger: {in_usd(seen.ledger)}; bills of the vendors: {in_usd(seen.billed)}")
        for problem in seen.unanswered:
            render.say(render.clean(problem))
    if wrong:
        raise Exit(render.clean("\n".join(["inv allow: receipt, ledger and bills differ:", *wrong])), code=5)


def print_receipt(calls: Sequence[Mapping[str, Any]], seen: Reconciliation) -> None:
    rows: list[tuple[str, ...]] = [("at", "call", "run", "machine", "USD/h", "outcome")]
    for call in calls:
        row = [str(call.get(name, "")) for name in ("tool", "run", "machine", "usd_per_hour")]
        why = "; ".join(call[name] for name in ("why", "for_the_owner") if call.get(name))
        rows.append((str(iso(call["at"])), *row, why or call["outcome"]))
    print(render.clean(columns(rows)))
    if seen.machines:
        print()
        cost.show_ledger(seen.machines, {}, "")


def shown_by_name(name: str, journal: Journal, settings: Settings) -> dict[str, Any]:
    """Return the facts about an allowance; the problem if the record cannot be read."""
    try:
        return shown(files.load(name, settings), journal, settings)
    except SlipwayError as error:
        return {"allowance": name, "state": "unreadable", "problem": str(error)}


def shown(one: Allowance, journal: Journal, settings: Settings) -> dict[str, Any]:
    seen = money.state(one, files.started(one.name, settings), journal, settings.clock_scale)
    is_served = f"{LEASE}{one.name}" in journal.leases.held_names()
    state = "revoked" if one.is_revoked else "ended" if refusal(one) else "open" if is_served else "no broker"
    return {
        "allowance": one.name,
        "state": state,
        "spent_usd": dollars(seen.spent),
        "free_usd": dollars(seen.free),
        "total_usd": dollars(seen.total),
        "live_machines": len(seen.rows),
        "most_machines": one.machines,
        "ends": iso(one.ends),
        "budget": one.budget,
    }


def await_broker(one: Allowance, settings: Settings) -> bool:
    """Wait until the broker listens; return False after WAIT_S."""
    until, where = (
        time.monotonic() + WAIT_S,
        place.open_folder(one.name, settings) if one.user else place.folder(settings),
    )
    while not place_file(where, one.name).exists():
        if time.monotonic() > until:
            return False
        time.sleep(POLL_S)
    return True


def chosen(said: str, known: Any, name: str) -> tuple[str, ...]:
    """Return the words of a list. Raises UsageError for an unknown word."""
    found = tuple(word.strip() for word in said.split(",") if word.strip())
    if odd := [word for word in found if word not in known]:
        raise UsageError(f"--{name}: {odd[0]} is unknown; known: {', '.join(known)}")
    return found


def chosen_gpus(said: str) -> tuple[str, ...]:
    """Return the kinds of GPUs of a list. Raises UsageError for a word that is near a known kind."""
    for typed, near in gpus.typos(said).items():
        raise UsageError(f"--gpu: no GPU is called {typed}; did you mean {near}?")
    return tuple(gpus.canonical_name(kind) for kind, _ in gpus.read_set(said))


def known_user(name: str) -> None:
    try:
        uid = pwd.getpwnam(name).pw_uid
    except KeyError:
        raise UsageError(f"--user: this machine has no user {name}; make one: useradd --create-home {name}") from None
    if uid == os.getuid():
        raise UsageError(f"--user {name} is yourself; the agent needs a user of its own")
