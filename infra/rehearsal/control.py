"""The control API of a world: the true state for tests and users, and commands to change the world.

Clients of the simulated vendors never use this API.

    GET  /truth     every machine, the real processes, the real cost, and the totals
    GET  /calls     every request to a vendor
    POST /move      {"seconds": 3600}: advance the simulated time at once
    POST /preempt   {"id": ...}: the vendor preempts the machine
    POST /sold-out  {"is": true}: all offers are sold out; false: free offers can be rented again
    POST /faults    replace the plan of faults, same schema as the YAML file
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import msgspec

from infra.errors import UsageError
from infra.rehearsal import faults, web
from infra.rehearsal.clock import Clock, iso
from infra.rehearsal.market import Market
from infra.rehearsal.records import Machine, Refused, rate


class Move(msgspec.Struct, forbid_unknown_fields=True):
    seconds: float


class Which(msgspec.Struct, forbid_unknown_fields=True):
    id: str


class Whether(msgspec.Struct, forbid_unknown_fields=True):
    is_so: bool = msgspec.field(name="is")


class Control(web.Api):
    def __init__(
        self, market: Market, hub: web.Hub, clock: Clock, counts: Callable[[], Counter[str]], seed: int
    ) -> None:
        self._market, self._hub, self._clock, self._counts, self._seed = market, hub, clock, counts, seed
        self.routes = (
            web.Route("GET", "/truth", "truth", self._truth),
            web.Route("GET", "/calls", "calls", lambda asked: web.Answer(200, [asdict(one) for one in hub.lines])),
            web.Route("POST", "/move", "move", self._move),
            web.Route("POST", "/preempt", "preempt", self._preempt),
            web.Route("POST", "/sold-out", "sold-out", self._sold_out),
            web.Route("POST", "/faults", "faults", self._faults),
        )

    def authenticate(self, asked: web.WebRequest) -> web.Answer | bool:
        return True

    def error(self, status: int, words: str) -> web.Answer:
        return web.Answer(status, {"error": words})

    def refusal_answer(self, error: Exception, asked: web.WebRequest) -> web.Answer:
        return self.error(404 if isinstance(error, Refused) and error.reason == "unknown" else 409, str(error))

    def _truth(self, asked: web.WebRequest) -> web.Answer:
        counts = self._counts()
        pods = [self._pod(machine, counts[machine.machine_id]) for machine in self._market.machines.values()]
        total = {
            "running": sum(pod["processes"] > 0 for pod in pods),
            "billing": sum(pod["micro_usd_per_hour"] > 0 for pod in pods),
            "micro_usd_per_hour": sum(pod["micro_usd_per_hour"] for pod in pods),
            "billed_micro_usd": sum(pod["billed_micro_usd"] for pod in pods),
        }
        return web.Answer(
            200,
            {
                "now": iso(self._clock.now()),
                "speed": self._clock.speed,
                "pods": pods,
                "looks": self._hub.looks,
                "preemptions_left": self._hub.faults.preemptions_left,
                **total,
                "problems": self._hub.problems,
            },
        )

    def _pod(self, machine: Machine, processes: int) -> dict[str, Any]:
        return {
            "vendor": machine.offer.vendor,
            "id": machine.machine_id,
            "name": machine.order.name,
            "offer": machine.offer.offer_id,
            "spot": machine.order.spot,
            "state": machine.state,
            "created_at": iso(machine.created_at),
            "active_at": iso(machine.active_at),
            "ended_at": iso(machine.ended_at),
            "ended_by": machine.ended_by,
            "micro_usd_per_hour": rate(machine),
            "billed_micro_usd": self._market.billed_micro_usd(machine),
            "history": [[iso(at), what] for at, what in machine.history],
            "processes": processes,
        }

    def _move(self, asked: web.WebRequest) -> web.Answer:
        try:
            self._clock.move(asked.decode(Move).seconds)
        except ValueError as error:
            raise web.Invalid(str(error)) from None
        return web.Answer(200, {})

    def _preempt(self, asked: web.WebRequest) -> web.Answer:
        self._market.preempt(asked.decode(Which).id)
        return web.Answer(200, {})

    def _sold_out(self, asked: web.WebRequest) -> web.Answer:
        self._market.is_sold_out = asked.decode(Whether).is_so
        return web.Answer(200, {})

    def _faults(self, asked: web.WebRequest) -> web.Answer:
        """Replace the plan of faults and reset all counters; keep prices and balances, which are set at the start."""
        try:
            plan = faults.plan_of(asked.decode(dict[str, Any]))
        except UsageError as error:
            raise web.Invalid(str(error)) from None
        self._hub.faults = faults.Faults(plan, self._seed)
        return web.Answer(200, {})
