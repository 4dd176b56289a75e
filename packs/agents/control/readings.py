"""Tools that read, ask or end: arguments -> one `inv` line about own runs -> the facts of an answer."""

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from infra.errors import UsageError
from infra.settings import MARKET
from infra.units import dollars
from packs.agents.control import ending
from packs.agents.control.account import SHOWN, Account
from packs.agents.control.admission import check_machine, is_inside, provider_of
from packs.agents.control.answers import clean, newest, run_facts, service_row_facts, step_facts
from packs.agents.control.inv_lines import log
from packs.agents.control.receipt import Receipt
from packs.agents.control.time_left import left_s
from packs.agents.records.arguments import (
    AnyRun,
    AskArguments,
    LogArguments,
    OfferArguments,
    OneRun,
    SearchArguments,
    SourceArguments,
    WhyArguments,
)

SHOWN_OFFERS = 8
SHOWN_WORDS = 20
SHOWN_DOCUMENTS = 5


def offers(account: Account, asked: OfferArguments) -> dict[str, Any]:
    one = account.allowance
    check_machine(one, asked.provider, asked.gpu)
    provider = provider_of(one, asked.provider).replace(MARKET, "")
    flags = {"gpu": asked.gpu or ",".join(one.gpus), "num-gpus": asked.num_gpus, "provider": provider}
    inside = [row for row in account.inv.json("offers", flags)["offers"] if is_inside(one, row)]
    shown = ("provider", "gpu", "num_gpus", "region", "usd_per_hour", "spot")
    rows = [{name: row.get(name) for name in shown} for row in inside[:SHOWN_OFFERS]]
    return {"offers": rows, "more": max(0, len(inside) - SHOWN_OFFERS), "next": "plan"}


def status(account: Account, asked: AnyRun) -> dict[str, Any]:
    one, seen = account.allowance, account.state()
    rows = account.rows("status", "run", asked.run)
    services = account.rows("serve.status", "service", asked.run)
    return {
        "free_usd": dollars(seen.free),
        "spent_usd": dollars(seen.spent),
        "total_usd": dollars(seen.total),
        "live_machines": len(seen.rows),
        "counted_machines": seen.machines,
        "most_machines": one.machines,
        "ends_in_s": round(left_s(one)),
        "runs": [run_facts(row) for row in rows[:SHOWN]],
        "services": [service_row_facts(row) for row in services[:SHOWN]],
        "next": "logs, why, results, down" if rows or services else "plan",
    }


def logs(account: Account, asked: LogArguments) -> dict[str, Any]:
    command = "serve.logs" if asked.run in account.started.services else "logs"
    flags = {"tail": asked.lines} | ({"errors": asked.errors} if command == "logs" else {})
    text = account.inv.text(command, flags, [account.own(asked.run, is_at_work=True)])
    return {"untrusted_text": newest(text), "next": "status, why"}


def why(account: Account, asked: WhyArguments) -> dict[str, Any]:
    if not asked.run:
        return why_refused(account)
    found = account.inv.json("why", {}, [account.story_of(account.own(asked.run))])
    cause = found.get("cause") or {}
    lines = [clean(str(line)) for line in (cause.get("says", ""), *found.get("lines", ())) if line]
    # `then` is a command that only the owner can run; the lines quote logs of machines and replies of vendors.
    return {
        "cause": cause.get("name"),
        "for_the_owner": cause.get("then"),
        "untrusted_text": lines,
        "next": "logs, results, plan",
    }


def why_refused(account: Account) -> dict[str, Any]:
    """Return the newest refused call, with the reason."""
    calls = Receipt(account.name, account.settings).read().calls
    call = next((one for one in reversed(calls) if one.get("outcome") == "refused"), None)
    if call is None:
        return {"message": "no call was refused", "next": "status"}
    names = ("at", "tool", "plan_id", "run", "why")
    return {"refused_call": {name: call[name] for name in names if name in call}, "next": "status, plan"}


def results(account: Account, asked: OneRun) -> dict[str, Any]:
    name = account.own(asked.run)
    rows = account.rows("status", "run", name)
    steps = [step_facts(step) for row in rows for step in row.get("steps", ())]
    state = rows[0]["state"] if rows else None
    return {"run": name, "state": state, "steps": steps, "next": "plan a service, or down"}


def serve_ask(account: Account, asked: AskArguments) -> dict[str, Any]:
    flags = {
        "endpoint": account.own(asked.run, is_at_work=True),
        "prompt": asked.prompt,
        "max-tokens": asked.max_tokens,
    }
    return {"untrusted_text": clean(account.inv.text("chat", flags)), "next": "serve_ask, down"}


def down(account: Account, asked: OneRun) -> dict[str, Any]:
    name = account.own(asked.run)
    ending.end(account, name, log)
    return {"ended": [name], "next": "status"}


def shard_preview(account: Account, asked: SourceArguments) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as scratch:
        flags = {"source": asked.source, "take": SHOWN_DOCUMENTS, "out": f"{scratch}/out"}
        made: Mapping[str, Any] = account.inv.json("shard", flags)
        text = next(iter(sorted(Path(scratch).rglob("*.txt"))), None)
        documents = text.read_text(errors="replace").splitlines()[:SHOWN_DOCUMENTS] if text else []
    facts = {name: made.get(name) for name in ("documents", "bytes", "source") if name in made}
    return {**facts, "untrusted_text": [clean(one[:1000]) for one in documents], "next": "plan"}


def docs_search(account: Account, asked: SearchArguments) -> dict[str, Any]:
    words = "".join(one if one.isalnum() else " " for one in asked.words).split()[:SHOWN_WORDS]
    if not words:
        raise UsageError("words must hold at least one word")
    found = account.inv.json("docs", {}, words)
    paragraphs = [{"page": f"{one['page']}:{one['line']}", "text": one["text"]} for one in found]
    return {"paragraphs": paragraphs, "next": "plan"}
