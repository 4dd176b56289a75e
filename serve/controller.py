"""Controller process of a service: reconciles replicas with the desired state and supervises the gateway process.

    wanted (journal) -> fleet.next_actions (pure) -> replicas started and ended, orders to the gateway -> seen (journal)

The controller may die at any moment: pods and the gateway keep running, and the journal records each member before the
pod is requested, so the next controller (`controller_process.ensure`) adopts every replica. The controller restarts a
dead gateway on the same port. Only the holder of the lease `serve:NAME` may write; a controller without the lease
exits.

    python -m serve.controller NAME
"""

import asyncio
import contextlib
import json
import logging
import signal
import sys
import time
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from infra import checkout
from infra.agent.limits import read_clocks
from infra.checkout import CodeWatch
from infra.errors import SlipwayError, UsageError
from infra.interrupts import WorkTakenOver
from infra.journal_file import Fenced
from infra.ledger import budgets, service_rows, spend
from infra.ledger.journal import Journal
from infra.ledger.leases import SUPERVISOR, Lease
from infra.ledger.service_rows import service_lease
from infra.runs.keepers.recovery import REPLICA
from infra.selection.preflight import MOST_USD
from infra.settings import Settings, is_rented
from serve import leases, own_run
from serve.budget import ServiceBudget, limit_of
from serve.engines import OWN_RUN
from serve.gateway import keys
from serve.gateway.http.limits import GatewayLimits
from serve.gateway.http.open_files import raise_limit
from serve.loops import run, timeout
from serve.policy import autoscaler, fleet, replica_states
from serve.policy.replica_states import Facts, State
from serve.policy.service_state import Member, WantedService, parse_desired, parse_observed, served_name, write
from serve.processes.endpoint_address import endpoint_of
from serve.processes.gateway_client import GatewayClient
from serve.processes.gateway_orders import Order
from serve.processes.service_paths import ServicePaths, log_lines
from serve.replicas import placement
from serve.replicas.replica_pod import ROOT, ReplicaLauncher, free_port
from serve.replicas.replicas import Replicas, is_resource_shortage
from serve.service import Service
from store.manifest import StoreError

FREED_S = 10.0  # seconds until a killed controller's port is free: threads end in turn
POLL_S = 0.25  # interval between reads of the desired state
MEAN_S = 60.0  # averaging window of the number of waiting requests
STORE_S = 10.0  # timeout for writing a lease to the store
LEAVE_S = 2.0  # drain time for requests in progress when the gateway ends


class Controller:
    def __init__(
        self, name: str, settings: Settings, journal: Journal, lease: Lease, say: Callable[[str], None]
    ) -> None:
        self.name, self.settings, self.journal, self.lease, self.say = name, settings, journal, lease, say
        self.places = ServicePaths.for_service(settings, name)
        self.epoch = -1
        self.wanted = self._read_wanted()
        self.service = self.wanted.newest.service
        self.launcher = ReplicaLauncher(name, settings, say, keys.seed(self.places.engine_seed))
        self.seen = replace(parse_observed(self._row().seen), began_at=time.time(), problem="")
        self.memory = self.seen.memory or autoscaler.begin(autoscaler.rule_of(self.service))
        self.rule_of = self.seen.rule_of
        self.next_number = self.seen.next_number
        self.took_over = bool(self.seen.endpoint)
        self.tick_at = 0.0
        self.held = self.seen.held
        self.serving = self.seen.serving
        self.waited: deque[tuple[float, float | None]] = deque()
        self.saved = ""
        self.counted = (-1, -1)
        self.is_leaving = False
        self.code = CodeWatch()
        self.held_at = -leases.RENEW_S
        self.want = ""  # last resource shortage on this machine that interrupted a turn
        self.gateway = GatewayClient(self.places, self._first_order(), say)
        self.replicas = Replicas(name, self.wanted, journal, self.launcher, self.gateway, self._update_gateway, say)

    def _first_order(self) -> Order:
        """Return the first order for a new gateway."""
        return Order(
            epoch=self.lease.epoch,
            host=self.wanted.host,
            port=self.wanted.port or self.seen.port,
            patience_s=FREED_S if self.took_over else 0.0,
            limits=limits_of(self.service, self._is_own_run),
            tls=self.service.tls,
        )

    @property
    def _is_own_run(self) -> bool:
        """Return whether the replicas run a program of the user, with routes of its own."""
        return self.wanted.newest.engine == OWN_RUN

    @property
    def _is_alone(self) -> bool:
        """Return whether a replica starts only after the end of every other: all listen on one port of this machine."""
        provider = self.wanted.newest.provider
        candidates = placement.candidates(provider, self.settings)
        return self._is_own_run and own_run.is_one_machine(candidates, self.settings)

    # Main loop.

    async def run(self) -> None:
        """Run until the service has ended or a signal stops this process. Raises SlipwayError, Fenced."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._request_stop)
        async with self.replicas as replicas:
            try:
                replicas.adopt(self.seen.members)
                if self.wanted.is_ending:  # end replicas even if a different process holds the port
                    self.gateway.connect()
                else:
                    self._update_gateway()
                    await self._ensure_gateway()
                while not self._should_stop():
                    replicas.changed.clear()
                    try:
                        self._reconcile()
                        await self._renew_store_leases()
                        self.want = ""
                    except Exception as error:
                        if not is_resource_shortage(error):
                            raise
                        if str(error) != self.want:  # report a persistent shortage once
                            self.want = str(error)
                            self.say(f"{self.name}: tried again: {error}")
                    trouble = replicas.trouble or (None if self.wanted.is_ending else self.gateway.trouble)
                    if trouble:
                        raise trouble
                    if self.wanted.is_ending and not replicas.kept:
                        break
                    with contextlib.suppress(asyncio.TimeoutError):
                        async with timeout(POLL_S):
                            await replicas.changed.wait()
            finally:
                await self.gateway.disconnect()
        if self.wanted.is_ending and not self.is_leaving:
            await self.gateway.shut_down(LEAVE_S)
            await self._ask_store(leases.release, self.name, self.journal.installation, self.wanted)
            service_rows.delete_service(self.journal, self.name, self.lease)
            self.say(f"{self.name}: ended, nothing of it runs")

    def _reconcile(self) -> None:
        """Run a reconciliation pass. Interruption at any point is safe, and so is repetition."""
        self._apply_wanted()
        self._sample_load()
        if self.wanted.is_ending:
            for one in self.replicas.kept.values():
                self.replicas.request_end(one, "the service is being ended", drains=True)
        else:
            self._decide()
        self._update_gateway()
        self._save()

    async def _ensure_gateway(self) -> None:
        """Ensure that a gateway listens on the wanted host and port; replace a gateway that listens elsewhere."""
        asked = self.gateway.order
        found = await self.gateway.start()
        if found.host != asked.host or asked.port not in (0, found.port):
            self.say(f"{self.name}: the gateway listens on port {found.port} of {found.host}; a new gateway takes over")
            await self.gateway.shut_down(LEAVE_S)
            self.gateway.order = asked
            found = await self.gateway.start()
        endpoint = endpoint_of("https" if self.service.tls else "http", self.wanted.host, found.port)
        self.seen = replace(self.seen, endpoint=endpoint, port=found.port)
        what = "found at work" if self.gateway.is_found else "begun"
        self.say(f"{self.name}: listening on {found.port}; the gateway, process {found.pid}, was {what}")

    def _request_stop(self) -> None:
        self.is_leaving = True
        self.replicas.changed.set()

    def _should_stop(self) -> bool:
        """Return whether this process must stop: after a signal, or to hand over to a controller with different code.

        The hand-over happens once the checkout holds different code and a supervisor with the new code lives, since the
        supervisor starts the next controller. A stopping controller leaves the gateway and the replicas running.
        """
        other = self.code.changed_stamp()
        holders = self.journal.leases.holders() if other else []
        if any(one.lease == SUPERVISOR and one.code == other for one in holders):
            self.say(f"{self.name}: the code of the checkout has changed; a controller with the new code takes over")
            self.is_leaving = True
        return self.is_leaving

    # Desired state.

    def _row(self) -> Any:
        row = service_rows.find(self.journal, self.name)
        if row is None:
            raise Fenced(f"{self.name}: the row is no longer in the journal")
        return row

    def _read_wanted(self) -> WantedService:
        row = self._row()
        self.epoch = row.epoch
        return parse_desired(row.wanted)

    async def _renew_store_leases(self) -> None:
        """Renew the store leases on the served models once a day, so the store keeps the models."""
        if time.monotonic() - self.held_at >= leases.RENEW_S and not self.wanted.is_ending:
            self.held_at = time.monotonic()
            await self._ask_store(leases.hold, self.name, self.journal.installation, self.wanted, time.time())

    async def _ask_store(self, what: Callable[..., None], *words: Any) -> None:
        """Run a store operation in a thread with a timeout of STORE_S seconds; report a failure and continue."""
        try:
            async with timeout(STORE_S):
                await asyncio.to_thread(what, *words)
        except (StoreError, asyncio.TimeoutError) as error:
            self.say(f"{self.name}: the lease in the store: {error or f'no answer in {STORE_S:g} s'}")

    def _apply_wanted(self) -> None:
        if self._row().epoch != self.epoch:
            self.held_at = -leases.RENEW_S
            self.wanted = self.replicas.wanted = self._read_wanted()
            self.service = self.wanted.newest.service
            self.replicas.not_before = 0.0
            self.say(f"{self.name}: the wanted version is now {self.wanted.newest.number}")

    # Actions.

    def _decide(self) -> None:
        rule, now = autoscaler.rule_of(self.service), time.monotonic()
        newest, members = self.wanted.newest.number, self.replicas.members()
        load = self._load(rule)
        if self.rule_of != self.epoch:
            if self.rule_of:
                alike = [fleet.scaled(one) for one in members if one.version == newest]
                seen = autoscaler.Measurements(qps=load.qps, waiting=load.waiting, members=alike)
                self.memory = autoscaler.updated(rule, self.memory, seen)
            self.rule_of = self.epoch
        is_woken = self.memory.target == 0 and (self._queue_length() > 0 or bool(load.qps))
        is_tick = now >= self.tick_at or is_woken
        course = fleet.next_actions(self.wanted.mode, rule, self.memory, newest, members, load, is_tick)
        if is_tick:
            self.tick_at = now + course.tick_s
        if course.memory.target != self.memory.target:
            self.say(f"{self.name}: {course.memory.target} replicas are wanted, {self.memory.target} before")
        self.memory = course.memory
        if now < self.replicas.not_before:
            self.held = self.replicas.no_offer
        elif course.held != self.held:
            self.held = course.held
            if course.held:
                self.say(f"{self.name}: no more replicas are started: {course.held}")
        stop = dict(course.stop)
        if self._is_alone:
            alive = [one.member for one in self.replicas.kept.values() if one.member.state.is_alive]
            stop |= {one.number: f"version {newest} takes the port" for one in alive if one.version != newest}
        for number, why in stop.items():
            self.replicas.request_end(self.replicas.kept[number], why, drains=True)
        wait_s = REPLICA.retries.wait_s(fleet.failed_at(newest, members), time.time())
        if now >= self.replicas.not_before and not wait_s:
            for is_spot, count in ((True, course.start_spot), (False, course.start_on_demand)):
                for _ in range(count):
                    if not (self._is_alone and self.replicas.kept):
                        self._launch_replica(is_spot)
        self.serving = fleet.serving(self.wanted.mode, rule, self.replicas.members())

    def _load(self, rule: autoscaler.Rule) -> fleet.Load:
        report = self.gateway.report
        qps = report.qps if report else None
        if self.took_over and report and report.age_s < MEAN_S and self.memory.target > rule.least:
            qps = None  # an earlier gateway counted the requests of the last minute
        known = [count for _, count in self.waited]
        waiting = None if not known or None in known else sum(c for c in known if c is not None) / len(known)
        budget = self._budget()
        return fleet.Load(qps=qps, waiting=waiting, affordable=budget.affordable if budget else None)

    def _budget(self) -> ServiceBudget | None:
        """Return the budget of the service, or None without a spend limit and without rented machines."""
        limit = self.service.slipway.spend_limit
        if limit is None:
            candidates = placement.candidates(self.wanted.newest.provider, self.settings)
            if not any(is_rented(one) for one in candidates):
                return None
            limit = MOST_USD  # The plan saw own machines only; the key of a vendor came later.
        rows = [op for op in self.journal.ops(live=False) if op.service == self.name and op.rate]
        clocks, scale = read_clocks(), self.settings.clock_scale
        return ServiceBudget(
            limit=limit_of(limit),
            most=self.service.policy.most,
            spent=sum(spend.spent(op, clocks, scale) for op in rows if op.intent_at >= self.wanted.since),
            armed=sum(one.member.cap_micro_usd or 0 for one in self.replicas.kept.values()),
        )

    def _open_budget(self, budget: ServiceBudget | None) -> str:
        """Return the journal budget that reserves the limit of each replica before renting; "" without a limit.

        If the service limit drops below the reserved amount, the journal budget keeps the old value; the policy then
        starts no further replica until the reservations are spent.
        """
        if budget is None:
            return ""
        name = f"serve:{self.name}@{int(self.wanted.since)}"
        with contextlib.suppress(UsageError):  # the limit is below the reserved amount: keep the old budget
            before, scale = budgets.find(self.journal, name), self.settings.clock_scale
            budgets.open_budget(self.journal, name, budget.limit, before, scale)
        return name

    def _sample_load(self) -> None:
        """Sample the number of waiting requests, and mark replicas that keep failing requests as not ready."""
        now = time.monotonic()
        ready = [one for one in self.replicas.kept.values() if one.member.state is State.READY]
        there: list[float | None] = [one.prober.counters.waiting if one.prober.counters else None for one in ready]
        total = None if None in there else self._queue_length() + sum(c for c in there if c is not None)
        self.waited.append((now, total))
        while self.waited[0][0] < now - MEAN_S:
            self.waited.popleft()
        for one in ready:
            failures = self.gateway.failures(one.member.run)
            one.prober.record_errors(failures.errors)
            facts = replica_states.failed_requests(one.member.facts, failures, now)
            if facts is not one.member.facts:
                said = f"{failures.lost} connections lost, {failures.errors} requests failed; last probe"
                self.say(f"{one.member.run}: not ready: {said}: {one.prober.why or 'passed'}")
                self.replicas.set_facts(one, facts)

    def _queue_length(self) -> int:
        """Return the length of the gateway's wait queue; 0 without a report from the gateway."""
        return self.gateway.report.waiting if self.gateway.report else 0

    def _launch_replica(self, is_spot: bool) -> None:
        version, number = self.wanted.newest, self.next_number
        self.next_number += 1
        taken = [one.member.port for one in self.replicas.kept.values()]
        request, budget = placement.request_of(self.service, ""), self._budget()
        alive = sum(one.member.state.is_alive for one in self.replicas.kept.values())
        self.launcher.budget = self._open_budget(budget)
        member = Member(
            number=number,
            version=version.number,
            run=f"{self.name}-{number}",
            spot=is_spot,
            gpu=placement.gpu_of(request),
            port=self.service.port if version.engine == OWN_RUN else free_port(taken),
            cap_micro_usd=budget.cap(alive) if budget else None,
            began_at=time.time(),
        )
        self.replicas.start(member, self._save)

    # Orders to the gateway and records of the service.

    def _update_gateway(self) -> None:
        """Send the ready replicas, limits and certificate to the gateway; no other path sets the gateway's replicas."""
        serving = (self.replicas.kept[number] for number in self.serving if number in self.replicas.kept)
        ready = [one for one in serving if one.endpoint and one.member.state is State.READY]
        variants = {
            name: tuple(one.member.run for one in ready if one.member.variants.get(name) == variant.identity)
            for name, variant in self.wanted.variants.items()
        }
        self.gateway.send_order(
            [one.endpoint for one in ready if one.endpoint],
            limits_of(self.service, self._is_own_run),
            self.service.tls,
            served_name(self.name, self.service),
            variants,
        )

    def _save(self) -> None:
        """Save the observed state to the journal. Raises Fenced when a newer controller has taken over.

        Append a line to the history file when the number of ready or wanted replicas changes.
        """
        members = tuple(replace(one, facts=_lasting(one.facts)) for one in self.replicas.members())
        self.seen = replace(
            self.seen,
            members=members,
            next_number=self.next_number,
            memory=self.memory,
            rule_of=self.rule_of,
            held=self.held,
            serving=tuple(number for number in self.serving if number in self.replicas.kept),
        )
        text = write(self.seen)
        if text != self.saved:
            service_rows.write_observed_state(self.journal, self.name, text, self.lease)
            self.saved = text
        ready = sum(one.member.state is State.READY for one in self.replicas.kept.values())
        if (ready, self.memory.target) != self.counted:
            self.counted = (ready, self.memory.target)
            with self.places.history.open("a", encoding="ascii") as file:
                line = {"at": round(time.time(), 1), "ready": ready, "target": self.memory.target}
                file.write(json.dumps(line) + "\n")


def _lasting(facts: Facts) -> Facts:
    """Return the facts without probe counts, which the next controller must measure again."""
    return replace(facts, passes=0, misses=0, first_miss_at=None, waits_since=None)


def limits_of(service: Service, any_route: bool = False) -> GatewayLimits:
    """Return the gateway limits from the service file; limits outside the file keep the defaults."""
    stream_s = service.file.service.load_balancer.stream_timeout_seconds
    return GatewayLimits(
        **vars(service.slipway.limits),
        first_byte_s=stream_s,
        idle_s=stream_s,
        hold_s=service.slipway.hold_seconds,
        affinity_chars=service.slipway.affinity_chars,
        any_route=any_route,
    )


async def keep(name: str) -> None:
    logging.getLogger("infra.transport.streams").setLevel(logging.ERROR)  # probes report a port without an answer
    settings = Settings.load(ROOT)
    with Journal.open(settings.state_file) as journal:
        # Hold the lease until this process is gone: a process that waits for the lease waits for this process to end.
        lease = journal.leases.acquire(service_lease(name), checkout.stamp())
        controller = None
        try:
            controller = Controller(name, settings, journal, lease, log_lines)
            await controller.run()
        except (Fenced, WorkTakenOver):
            raise
        except BaseException as error:
            row = service_rows.find(journal, name)
            if row is not None:
                seen = controller.seen if controller else parse_observed(row.seen)
                text = str(error) or type(error).__name__
                service_rows.write_observed_state(journal, name, write(replace(seen, problem=text)), lease)
            raise


def main() -> None:
    if len(sys.argv) != 2:
        sys.exit("usage: python -m serve.controller NAME")
    raise_limit()
    try:
        run(keep(sys.argv[1]))
    except SlipwayError as error:
        log_lines(f"serve.controller: {error}")
        sys.exit(error.exit_code)
    except WorkTakenOver as error:
        log_lines(f"serve.controller: {error}")
        sys.exit(1)


if __name__ == "__main__":
    main()
