"""Calls of an allowance: a tool name and untrusted arguments -> the tool -> a bounded answer, and a receipt line.

calls -> plans, starts, readings -> admission -> account -> files, money; answers: the form of every result
"""

import hashlib
import json
import secrets
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from functools import partial
from typing import Any

from data.errors import ConfigError
from infra.errors import SlipwayError, UsageError
from infra.settings import Settings
from packs.agents.control import readings, starts
from packs.agents.control.account import Account
from packs.agents.control.answers import bounded
from packs.agents.control.inv_lines import CommandFailed, log
from packs.agents.control.plans import Plans
from packs.agents.control.receipt import BEGUN, Receipt
from packs.agents.control.time_left import refusal
from packs.agents.records import arguments
from packs.agents.records.tools import TOOLS

KEPT = ("plan_id", "run", "machine", "usd_per_hour", "limit_usd", "rented")  # facts of a result in the receipt
READINGS: Mapping[str, Callable[[Account, Any], dict[str, Any]]] = {
    "offers": readings.offers,
    "status": readings.status,
    "logs": readings.logs,
    "why": readings.why,
    "results": readings.results,
    "serve_ask": readings.serve_ask,
    "down": readings.down,
    "shard_preview": readings.shard_preview,
    "docs_search": readings.docs_search,
}
STARTS = {"launch": starts.launch, "serve_up": starts.serve_up}
START_S = 45.0  # clients of tools give up after a minute; a machine boots and ends for minutes
MOST_STARTS = 8  # under way, or waiting; also of ends
Work = Callable[[Any], dict[str, Any]]


class Calls:
    """Answers the calls of one allowance."""

    def __init__(self, name: str, settings: Settings) -> None:
        self.account, self.receipt = Account(name, settings), Receipt(name, settings)
        starts_and_ends = [threading.BoundedSemaphore(MOST_STARTS) for _ in range(2)]
        self.plans, self.slow = Plans(self.account), dict.fromkeys(STARTS, starts_and_ends[0])
        self.slow |= {name: starts_and_ends[1] for name, tool in TOOLS.items() if tool.ends}
        self.works: dict[str, Work] = {"plan": self.plans.plan}
        self.works |= {name: partial(work, self.account) for name, work in READINGS.items()}

    def answer(self, tool: str, said: Any) -> dict[str, Any]:
        """Return {"result"} or {"refused"} of a call, and write the call into the receipt.

        A start or end that takes longer than START_S continues in a thread; the answer names the run of a start.
        """
        entry: dict[str, Any] = {"at": round(time.time(), 3), "call": secrets.token_hex(6), "tool": str(tool)[:40]}
        entry["arguments_sha256"] = _digest(said)
        slots = self.slow.get(tool)
        if slots is None:
            return self._answer(tool, said, entry)
        if not slots.acquire(blocking=False):
            return {"refused": f"{MOST_STARTS} {'starts' if tool in STARTS else 'ends'} are under way; call: status"}
        begun, answered = dict[str, Any](), Future[dict[str, Any]]()

        def work() -> None:
            try:
                answered.set_result(self._answer(tool, said, entry, begun))
            except BaseException as error:  # an early answer has no caller left that logs the error
                log(traceback.format_exc())
                answered.set_exception(error)
            finally:
                slots.release()

        threading.Thread(target=work, name=f"start {entry['call']}", daemon=True).start()
        try:
            return answered.result(START_S)
        except FutureTimeout:
            if tool not in STARTS:
                return {"result": {"state": "ending", "next": "status"}}
            name = {"run": begun["run"]} if "run" in begun else {}
            return {"result": {**name, "state": "starting" if name else "waits for another start", "next": "status"}}

    def _answer(
        self, tool: str, said: Any, entry: dict[str, Any], begun: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        """Do the work of a call. begun: takes the facts of a start, before the machine is rented."""
        began = time.monotonic()
        try:
            if tool not in TOOLS:
                raise UsageError(f"no tool is called {str(tool)[:40]!r}; known: {', '.join(TOOLS)}")
            if why := refusal(self.account.allowance):
                raise UsageError(f"{why}; the owner sees: inv allow {self.account.name} --receipt")
            work = self.works.get(tool) or self._start(tool, entry, {} if begun is None else begun)
            found = bounded({"result": work(arguments.read(TOOLS[tool].arguments, said))})
        except (SlipwayError, ConfigError) as error:
            found = {"refused": without_store(str(error), self.account.settings)[:2000]}
            if isinstance(error, CommandFailed) and error.for_the_owner:
                entry["for_the_owner"] = error.for_the_owner
        except Exception:  # the broker logs the error
            self.receipt.add({**entry, "outcome": "failed"})
            raise
        told = found.get("result", {})
        entry |= {name: told[name] for name in KEPT if name in told}
        entry |= {"outcome": "refused" if "refused" in found else "done", "result_sha256": _digest(found)}
        entry |= {"why": found["refused"][:300]} if "refused" in found else {}
        self.receipt.add({**entry, "took_s": round(time.monotonic() - began, 3)})
        return found

    def _start(self, tool: str, entry: Mapping[str, Any], begun: dict[str, Any]) -> Work:
        """Return a tool that rents, and that writes a line of the receipt before."""

        def note(facts: Mapping[str, Any]) -> None:
            begun.update(facts)
            self.receipt.add({**entry, **facts, "outcome": BEGUN})

        return lambda asked: STARTS[tool](self.account, self.plans, asked, note)


def without_store(text: str, settings: Settings) -> str:
    """Return a text without the address of the owner's store, such as `hf://owner/private`."""
    return text.replace(settings.store, "the store") if "://" in settings.store else text


def _digest(said: Any) -> str:
    return hashlib.sha256(json.dumps(said, sort_keys=True, default=str).encode()).hexdigest()
