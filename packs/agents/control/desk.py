"""The desk of an allowance: one call of a tool -> the checks -> an `inv` line of the owner -> a bounded answer.

Plans and calls that start something run one at a time, also after a kill: the process of `inv` inherits the lock, so a
new desk waits until an interrupted launch has written its rows.
"""

import contextlib
import fcntl
import hashlib
import json
import os
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from data.errors import ConfigError
from infra.errors import SlipwayError, UsageError
from infra.ledger.journal import Journal
from infra.market import gpus
from infra.settings import MARKET, VENDORS, Settings
from infra.units import dollars
from packs.agents.control import files, money, place
from packs.agents.control.files import DeskRecord, Receipt
from packs.agents.control.inv_lines import InvLines
from packs.agents.records import arguments
from packs.agents.records.allowance import RENT, SERVE, Allowance
from packs.agents.records.arguments import (
    AnyRun,
    AskArguments,
    LogArguments,
    OfferArguments,
    OneRun,
    PlanArguments,
    PlanId,
    SearchArguments,
    SourceArguments,
)
from packs.agents.records.tools import TOOLS

MOST_BYTES = 8000  # of an answer
PLAN_S = 900.0
MOST_PLANS = 100
SHOWN_OFFERS, SHOWN_ROWS = 8, 20
LEAST_S = 120.0  # of the allowance: no machine boots in less


@dataclass(frozen=True, kw_only=True)
class StartPlan:
    """A plan that was shown."""

    plan_id: str
    at: float
    kind: str
    flags: Mapping[str, Any]
    machines: int
    micro_usd: int
    """Limit of the run or service."""
    max_price: str
    """Highest price per hour of a machine in US dollars."""


class Desk:
    """Answers the calls of one allowance."""

    def __init__(self, name: str, settings: Settings) -> None:
        self.name, self.settings, self.inv = name, settings, InvLines()
        self.receipt = Receipt(name, settings)
        self.plans: dict[str, StartPlan] = {}
        self.own = threading.Lock()  # of plans
        self.works: Mapping[str, Callable[[Any], dict[str, Any]]] = {
            "offers": self.offers,
            "plan": self.plan,
            "launch": self.launch,
            "serve_up": self.serve_up,
            "status": self.status,
            "logs": self.logs,
            "why": self.why,
            "results": self.results,
            "serve_ask": self.serve_ask,
            "down": self.down,
            "shard_preview": self.shard_preview,
            "docs_search": self.docs_search,
        }

    @property
    def allowance(self) -> Allowance:
        """Return the allowance as it is now: the owner may top it up or revoke it at any time."""
        return files.load(self.name, self.settings)

    def answer(self, tool: str, said: Any) -> dict[str, Any]:
        """Return {"result"} or {"refused"} of a call, and write the call into the receipt."""
        began, given = time.time(), _digest(said)
        entry: dict[str, Any] = {"at": round(began, 3), "tool": str(tool)[:40], "arguments_sha256": given}
        try:
            if tool not in TOOLS:
                raise UsageError(f"no tool is called {str(tool)[:40]!r}; known: {', '.join(TOOLS)}")
            if why := self.allowance.refusal(time.time()):
                raise UsageError(f"{why}; the owner sees: inv allow {self.name} --receipt")
            found = bounded({"result": self.works[tool](arguments.read(TOOLS[tool].arguments, said))})
        except (SlipwayError, ConfigError) as error:
            found = {"refused": str(error)[:2000]}
        told = found.get("result", {})
        entry |= {
            name: told[name] for name in ("plan_id", "run", "machine", "usd_per_hour", "limit_usd") if name in told
        }
        entry |= {"outcome": "refused" if "refused" in found else "done", "result_sha256": _digest(found)}
        entry |= {"why": found["refused"][:300]} if "refused" in found else {}
        self.receipt.add({**entry, "took_s": round(time.time() - began, 3)})
        return found

    # Tools.

    def offers(self, asked: OfferArguments) -> dict[str, Any]:
        one = self.allowance
        self._check_machine(one, asked.provider, asked.gpu)
        flags = {"gpu": asked.gpu or ",".join(one.gpus), "num-gpus": asked.num_gpus}
        found = self.inv.json("offers", {**flags, "provider": self._provider(one, asked.provider).replace(MARKET, "")})
        inside = [row for row in found["offers"] if self._is_inside(one, row)]
        shown = ("provider", "gpu", "num_gpus", "region", "usd_per_hour", "spot")
        rows = [{name: row.get(name) for name in shown} for row in inside[:SHOWN_OFFERS]]
        return {"offers": rows, "more": max(0, len(inside) - SHOWN_OFFERS), "next": "plan"}

    def plan(self, asked: PlanArguments) -> dict[str, Any]:
        one, now = self.allowance, time.time()
        is_service = asked.kind == "serve"
        if why := one.refuse_kind(SERVE if is_service else RENT):
            raise UsageError(why)
        self._check_machine(one, asked.provider, asked.gpu)
        left_s = one.ends - now
        if left_s < LEAST_S:
            raise UsageError(f"the allowance ends in {left_s:.0f} s, which is too short for a machine")
        limit = round(asked.spend_usd * 1e6)
        with self._journal() as journal:
            money_left = self._state(one, journal).free
        if limit > money_left:
            raise UsageError(f"spend_usd is {asked.spend_usd:g}, and {dollars(money_left)} USD are free; call: status")
        if is_service and not asked.model:
            raise UsageError("a service needs the argument model: an artifact, a phase or hf://user/name")
        flags = self._service_flags(one, asked) if is_service else self._training_flags(one, asked, left_s)
        shown = self.inv.json("serve.up" if is_service else "launch", {**flags, "dry-run": True})
        found = _service_facts(shown) if is_service else _training_facts(shown)
        if not shown.get("placement" if is_service else "offers"):
            return {**found, "next": "status" if not found.get("steps") else "offers"}
        offer = self._first_inside(one, shown["placement" if is_service else "offers"])
        machines = asked.replicas if is_service else shown["nodes"]
        found |= {
            "machine": f"{offer['num_gpus']} x {offer['gpu']} at {offer['provider']}",
            "usd_per_hour": offer["usd_per_hour"],
        }
        # The start asks this vendor only: the next offer of another vendor may be outside the allowance.
        flags = {**flags, "provider": offer["provider"]}
        made = StartPlan(
            plan_id=f"plan-{secrets.token_urlsafe(9)}",
            at=now,
            kind=asked.kind,
            flags=flags,
            machines=machines,
            micro_usd=limit,
            max_price=offer["usd_per_hour"],
        )
        with self.own:
            self.plans = dict([*self.plans.items()][1 - MOST_PLANS :]) | {made.plan_id: made}
        return {
            "plan_id": made.plan_id,
            **found,
            "limit_usd": dollars(limit),
            "expires_in_s": PLAN_S,
            "next": "serve_up" if is_service else "launch",
        }

    def launch(self, asked: PlanId) -> dict[str, Any]:
        with self._starting(asked, "train") as (one, plan, name, lock):
            flags = {**plan.flags, "run-name": name, "max-price": plan.max_price, "yes": True, "detach": True}
            self.inv.json("launch", flags, held=[lock])
        return {"run": name, "limit_usd": dollars(plan.micro_usd), "ends_at": one.ends, "next": "status"}

    def serve_up(self, asked: PlanId) -> dict[str, Any]:
        with self._starting(asked, "serve") as (one, plan, name, lock):
            self._remember_service(name, plan.micro_usd)
            flags = {**plan.flags, "max-price": plan.max_price, "yes": True, "detach": True}
            try:
                self.inv.json("serve.up", flags, [name], [lock])
            except SlipwayError:
                self._forget_unstarted(name)
                raise
        return {"run": name, "limit_usd": dollars(plan.micro_usd), "ends_at": one.ends, "next": "status, serve_ask"}

    def status(self, asked: AnyRun) -> dict[str, Any]:
        one = self.allowance
        with self._journal() as journal:
            seen = self._state(one, journal)
        rows = self._own_rows("status", "run", asked.run)
        shown = self._own_rows("serve.status", "service", asked.run)
        return {
            "free_usd": dollars(seen.free),
            "spent_usd": dollars(seen.spent),
            "total_usd": dollars(seen.total),
            "live_machines": len(seen.rows),
            "most_machines": one.machines,
            "ends_in_s": round(one.ends - time.time()),
            "runs": [_run_facts(row) for row in rows[:SHOWN_ROWS]],
            "services": [_service_row(row) for row in shown[:SHOWN_ROWS]],
        }

    def logs(self, asked: LogArguments) -> dict[str, Any]:
        command = "serve.logs" if asked.run in self.record().services else "logs"
        flags = {"tail": asked.lines} | ({"errors": asked.errors} if command == "logs" else {})
        return {"untrusted_text": clean(self.inv.text(command, flags, [self._owned(asked.run)]))}

    def why(self, asked: OneRun) -> dict[str, Any]:
        found = self.inv.json("why", {}, [self._owned(asked.run)])
        return {"cause": found.get("cause"), "lines": [clean(str(line)) for line in found.get("lines", [])]}

    def results(self, asked: OneRun) -> dict[str, Any]:
        name = self._owned(asked.run)
        rows = self._own_rows("status", "run", name)
        steps = [_step_facts(step) for row in rows for step in row.get("steps", ())]
        return {
            "run": name,
            "state": rows[0]["state"] if rows else None,
            "steps": steps,
            "next": "plan a service, or down",
        }

    def serve_ask(self, asked: AskArguments) -> dict[str, Any]:
        name = self._owned(asked.run)
        flags = {"endpoint": name, "prompt": asked.prompt, "max-tokens": asked.max_tokens}
        return {"untrusted_text": clean(self.inv.text("chat", flags))}

    def down(self, asked: OneRun) -> dict[str, Any]:
        name = self._owned(asked.run)
        if name in self.record().services:
            self.inv.text("serve.down", {}, [name])
            return {"ended": [name], "next": "status"}
        return {"ended": self.inv.json("down", {}, [name]).get("ended"), "next": "status"}

    def shard_preview(self, asked: SourceArguments) -> dict[str, Any]:
        import tempfile
        from pathlib import Path

        with tempfile.TemporaryDirectory() as scratch:
            made = self.inv.json("shard", {"source": asked.source, "take": 5, "out": f"{scratch}/out"})
            text = next(iter(sorted(Path(scratch).rglob("*.txt"))), None)
            documents = text.read_text(errors="replace").splitlines()[:5] if text else []
        facts = {name: made.get(name) for name in ("documents", "bytes", "source") if name in made}
        return {**facts, "untrusted_text": [clean(one[:1000]) for one in documents]}

    def docs_search(self, asked: SearchArguments) -> dict[str, Any]:
        words = [word for word in "".join(one if one.isalnum() else " " for one in asked.words).split()][:20]
        if not words:
            raise UsageError("words must hold at least one word")
        found = self.inv.json("docs", {}, words)
        return {"paragraphs": [{"page": f"{one['page']}:{one['line']}", "text": one["text"]} for one in found]}

    # Parts of the tools.

    def _training_flags(self, one: Allowance, asked: PlanArguments, left_s: float) -> dict[str, Any]:
        seconds = min(left_s, asked.hours * 3600) if asked.hours else left_s
        return {
            **self._machine_flags(one, asked),
            "phase": asked.phase,
            "profile": asked.profile,
            "source": asked.source,
            "init": asked.init,
            "task": asked.task,
            "steps": asked.steps,
            "set": asked.options,
            "budget": one.budget,
            "ttl": f"{int(seconds)}s",
        }

    def _service_flags(self, one: Allowance, asked: PlanArguments) -> dict[str, Any]:
        return {**self._machine_flags(one, asked), "model": asked.model, "replicas": asked.replicas}

    def _machine_flags(self, one: Allowance, asked: PlanArguments) -> dict[str, Any]:
        return {
            "gpu": asked.gpu or ",".join(one.gpus),
            "num-gpus": asked.num_gpus,
            "provider": self._provider(one, asked.provider),
            "use-spot": asked.use_spot,
            "spend-limit": f"{asked.spend_usd:.2f}",
        }

    @contextlib.contextmanager
    def _starting(self, asked: PlanId, kind: str) -> Iterator[tuple[Allowance, StartPlan, str, int]]:
        """Hold the lock of the allowance, take the plan, and yield with a new name. Raises UsageError."""
        path = place.folder(self.settings) / f"{self.name}.lock"
        lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            one = self.allowance
            if why := one.refusal(time.time()):
                raise UsageError(why)
            with self.own:
                plan = self.plans.get(asked.plan_id)
            if plan is None or time.time() - plan.at > PLAN_S:
                raise UsageError(
                    f"{asked.plan_id} has expired, was used, or belongs to a different allowance; call: plan"
                )
            if plan.kind != kind:
                raise UsageError(f"{asked.plan_id} is a plan for {'serve_up' if plan.kind == 'serve' else 'launch'}")
            with self._journal() as journal:
                seen = self._state(one, journal)
            if len(seen.rows) + plan.machines > one.machines:
                raise UsageError(
                    f"{len(seen.rows)} machines are live, the plan needs {plan.machines} more, and the allowance has "
                    f"{one.machines}; end a run: down"
                )
            if plan.micro_usd > seen.free:
                raise UsageError(
                    f"a plan of {dollars(plan.micro_usd)} USD needs more: {dollars(seen.free)} USD are free; plan again"
                )
            with self.own:
                del self.plans[asked.plan_id]
            record = self.record()
            record.number += 1
            name = one.run_name(record.number)
            record.runs.append(name)
            self._write(record)
            yield one, plan, name, lock
        finally:
            os.close(lock)  # the process of `inv` may still hold the lock

    def _state(self, one: Allowance, journal: Journal) -> money.AllowanceState:
        return money.state(one, self.record().services, journal, self.settings.clock_scale)

    @contextlib.contextmanager
    def _journal(self) -> Iterator[Journal]:
        with Journal.open(self.settings.state_file) as journal:
            yield journal

    def _check_machine(self, one: Allowance, provider: str, gpu: str) -> None:
        if provider and provider not in VENDORS:
            raise UsageError(f"the provider must be one of {', '.join(VENDORS)}")
        for kind in gpu.split(","):
            if why := one.refuse_machine(provider, gpus.canonical_name(kind) if kind else ""):
                raise UsageError(why)

    def _provider(self, one: Allowance, typed: str) -> str:
        """Return the provider of a line: `market` asks all vendors; a plan then keeps to the vendor of its offer."""
        inside = [name for name in VENDORS if not one.providers or name in one.providers]
        return typed or (inside[0] if len(inside) == 1 else MARKET)

    def _is_inside(self, one: Allowance, offer: Mapping[str, Any]) -> bool:
        return not one.refuse_machine(str(offer["provider"]), str(offer.get("gpu") or ""))

    def _first_inside(self, one: Allowance, offers: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
        found = next((offer for offer in offers if self._is_inside(one, offer)), None)
        if found is None:
            raise UsageError(
                "none of the cheapest machines is inside the allowance; name provider and gpu; call: offers"
            )
        return found

    def _owns(self, name: Any) -> bool:
        record = self.record()
        return name in record.runs or name in record.services

    def _own_rows(self, command: str, key: str, name: str) -> list[Any]:
        """Return the rows of own runs or services, "" = all. A single row is a document without a list."""
        found = self.inv.json(command, {"all": command == "serve.status"})
        rows = found if isinstance(found, list) else [found]
        return [row for row in rows if self._owns(row.get(key)) and name in ("", row[key])]

    def _owned(self, name: str) -> str:
        if not self._owns(name):
            known = ", ".join(self.record().runs[-SHOWN_ROWS:]) or "none"
            raise UsageError(f"{name!r} is no run or service of this allowance; known: {known}")
        return name

    def record(self) -> DeskRecord:
        return files.desk_record(self.name, self.settings)

    def _write(self, record: DeskRecord) -> None:
        files.save_desk(self.name, record, self.settings)

    def _remember_service(self, name: str, limit: int) -> None:
        record = self.record()
        self._write(replace(record, services={**record.services, name: limit}))

    def _forget_unstarted(self, name: str) -> None:
        """Return the money of a service that was not started."""
        with self._journal() as journal:
            if money.is_wanted(name, journal) or any(op.service == name for op in journal.ops()):
                return
        record = self.record()
        self._write(replace(record, services={key: one for key, one in record.services.items() if key != name}))


def _training_facts(shown: Mapping[str, Any]) -> dict[str, Any]:
    due = [row["name"] for row in shown["artifacts"] if row["step"]]
    facts = {"steps": shown["steps"], "artifacts": due, "notes": [clean(one) for one in shown["notes"]][:8]}
    if not shown["steps"]:
        return {"message": "every artifact exists; nothing to do", **facts}
    if not shown.get("offers"):
        return facts
    names = ("low", "expected", "high")
    return {
        **facts,
        "cost_usd": dict(zip(names, shown["cost_usd"] or (), strict=False)),
        "seconds": dict(zip(names, shown["cost_s"] or (), strict=False)),
        "ends": [f"{end['when']}: {end['by']}" for end in shown["ends"]],
    }


def _service_facts(shown: Mapping[str, Any]) -> dict[str, Any]:
    return {"model": shown["model_name"], "engine": shown["engine"]}


def clean(text: str) -> str:
    """Return untrusted text without control characters, and without escape sequences of a terminal."""
    return "".join(one for one in text if one == "\n" or one.isprintable())


def bounded(document: dict[str, Any]) -> dict[str, Any]:
    """Return a document of at most MOST_BYTES as JSON: the longest texts and lists are cut, and say so."""
    document = _cleaned(document)
    while len(json.dumps(document).encode()) > MOST_BYTES:
        holder, key, size = max(_long_parts(document), key=lambda one: one[2])
        value = holder[key]
        cut = value[: len(value) // 2]
        holder[key] = f"{cut} [cut]" if isinstance(value, str) else cut
        if size < 4:
            return {"refused": "the answer is too long; ask for less"}
    return document


def _cleaned(value: Any) -> Any:
    """Return a document whose texts have no control characters."""
    if isinstance(value, dict):
        return {clean(str(name)): _cleaned(one) for name, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_cleaned(one) for one in value]
    return clean(value) if isinstance(value, str) else value


def _long_parts(value: Any) -> Iterator[tuple[Any, Any, int]]:
    """Yield the holder, the key and the size as JSON of each text and list."""
    pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, one in pairs:
        if isinstance(one, (str, list)):
            yield value, key, len(json.dumps(one)) if isinstance(one, str) or len(one) > 1 else 0
        yield from _long_parts(one)


def _run_facts(row: Mapping[str, Any]) -> dict[str, Any]:
    names = ("run", "state", "provider", "gpu", "step", "cost_usd", "usd_per_hour", "limit_usd", "reason", "eta_s")
    return {name: row[name] for name in names if row.get(name) not in (None, "")}


def _step_facts(step: Mapping[str, Any]) -> dict[str, Any]:
    """Return a step with its artifact and figures, without paths of machines."""
    result = {name: one for name, one in (step.get("result") or {}).items() if name not in ("kind", "at", "step")}
    figures = {name: one for name, one in result.items() if type(one) in (int, float)}
    return {
        "step": step["name"],
        "state": step["state"],
        "elapsed_s": round(step.get("elapsed_s") or 0.0, 1),
        **({"artifact": result["name"]} if result.get("name") else {}),
        **({"figures": figures} if figures else {}),
    }


def _service_row(row: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: row.get(name) for name in ("service", "state", "ready", "target", "model_name", "usd_per_hour", "held")
    }


def _digest(said: Any) -> str:
    return hashlib.sha256(json.dumps(said, sort_keys=True, default=str).encode()).hexdigest()
