"""The controller of a service: one process that holds its gateway and keeps its replicas.

    wanted (journal) -> fleet.course (pure) -> replicas begun and ended (`landing`), the gateway told -> seen (journal)

In: what commands write down as wanted; probes, verdicts, what the gateway counts. Out: pods, `Gateway.replace`, what is
seen. It may die at any moment: replicas are pods, which go on, and a member is written down before its pod is asked
for, so that the next controller (`detached.ensure`) takes over all of them. Two at once are not possible: it holds the
lease `serve:NAME`, and whoever has lost that may write nothing and leaves.

    python -m serve.controller NAME
"""

import asyncio
import contextlib
import json
import logging
import os
import signal
import sys
import time
from collections import deque
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import aiohttp

from infra import spend
from infra.agent.limits import read_clocks
from infra.errors import NoOffer, SlipwayError, UsageError
from infra.journal import Fenced, Journal, Lease, Op
from infra.settings import Settings
from infra.states import LOST, READY
from serve import autoscaler, fleet, placement, states
from serve.budget import Budget, limit_of
from serve.detached import Places, lease_name
from serve.gateway import keys
from serve.gateway.access import AccessLog
from serve.gateway.limits import Limits
from serve.gateway.routing import Replica
from serve.gateway.server import Gateway
from serve.landing import ROOT, Landing, free_port, role_of
from serve.loops import run
from serve.memory import Member, Wanted, seen_of, served_name, wanted_of, write
from serve.probe import Counters, probe
from serve.service import Service
from serve.states import Facts, State, Step

FREED_S = 10.0  # until the port of a controller that was killed is free: its threads end one by one
POLL_S = 0.25  # at what is wanted
FATE_S, FATE_THERE_S = 0.5, 5.0  # at the verdict of an engine: on this machine, on another
YOUNG_S = 0.5  # between probes of a replica that is not ready, where the file has not less
LAUNCHES = 4  # at once
THREADS = 64
NO_OFFER_S = 30.0  # until it is asked again whether there is a machine
RETRY_S, LONGEST_RETRY_S = 2.0, 60.0  # of an end that is not proven
GONE_EVERY_S = 10.0  # a vendor is asked whether a silent machine still exists
MEAN_S = 60.0  # of what waits
KEPT = 20  # failed replicas that are remembered
LEAVE_S = 2.0  # for requests that are under way when a controller is told to leave

T = TypeVar("T")


@dataclass
class Kept:
    """A replica and what its controller holds of it."""

    member: Member
    told: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when it is to end."""
    drains: bool = True
    has_failed: bool = False
    """It is remembered when it is gone."""
    replica: Replica | None = None
    """As the gateway knows it; None until its engine can be reached."""
    counters: Counters | None = None
    probed: str = ""
    """Why its last probe failed."""
    task: "asyncio.Task[None] | None" = None
    links: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)


class Controller:
    def __init__(
        self, name: str, settings: Settings, journal: Journal, lease: Lease, say: Callable[[str], None]
    ) -> None:
        self.name, self.settings, self.journal, self.lease, self.say = name, settings, journal, lease, say
        self.places = Places.of(settings, name)
        self.landing = Landing(name, settings, say, keys.seed(self.places.engine_seed))
        self.epoch = -1
        self.wanted = self._read_wanted()
        self.service = self.wanted.newest.service
        self.seen = replace(seen_of(self._row().seen), began_at=time.time(), problem="")
        self.kept: dict[int, Kept] = {}
        self.past: list[Member] = []
        """Those that have failed and are gone."""
        self.memory = self.seen.memory or autoscaler.begin(autoscaler.rule_of(self.service))
        self.rule_of = self.seen.rule_of
        self.next_number = self.seen.next_number
        self.began = time.monotonic()
        self.took_over = bool(self.seen.endpoint)
        self.tick_at = 0.0
        self.not_before = 0.0
        self.held = self.seen.held
        self.serving: tuple[int, ...] = ()
        self.waited: deque[tuple[float, float | None]] = deque()
        self.saved = ""
        self.counted = (-1, -1)
        self.changed = asyncio.Event()
        self.is_leaving = False
        self.trouble: BaseException | None = None
        self.pool = ThreadPoolExecutor(THREADS)
        self.launching = asyncio.Semaphore(LAUNCHES)
        self.keys_read_at = 0.0
        self.gateway = Gateway(limits_of(self.service), self._keys(), AccessLog(self.places.access))

    # Its life.

    async def run(self) -> None:
        """Until the service has ended, or this process is told to leave. Raises SlipwayError, Fenced."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._leave)
        if not self.wanted.is_ending:  # else its replicas are ended also where the port is somebody else's by now
            await self._listen()
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0, force_close=True)) as self.session:
            try:
                self._adopt()
                while not self.is_leaving:
                    self.changed.clear()
                    self._look_at_wanted()
                    self._look_at_load()
                    if self.wanted.is_ending:
                        for one in self.kept.values():
                            self._end(one, "the service is being ended", drains=True)
                    else:
                        self._decide()
                    self._tell_gateway()
                    self._save()
                    if self.trouble:
                        raise self.trouble
                    if self.wanted.is_ending and not self.kept:
                        break
                    with contextlib.suppress(asyncio.TimeoutError):
                        await asyncio.wait_for(self.changed.wait(), POLL_S)
            finally:
                await self._close()
        if self.wanted.is_ending and not self.is_leaving:
            self.journal.forget(self.name, self.lease)
            self.say(f"{self.name}: ended, nothing of it runs")

    async def _listen(self) -> None:
        wanted_port, until = self.wanted.port or self.seen.port, time.monotonic() + FREED_S
        while True:
            try:
                port = await self.gateway.start(self.wanted.host, wanted_port)
                break
            except OSError as error:
                if self.took_over and time.monotonic() < until:
                    await asyncio.sleep(POLL_S)
                    continue
                raise UsageError(
                    f"port {wanted_port} of {self.wanted.host} cannot be listened on: {os.strerror(error.errno or 0)}; "
                    f"free it, or take another one: inv serve.up --name {self.name} --port 0"
                ) from None
        host = f"[{self.wanted.host}]" if ":" in self.wanted.host else self.wanted.host
        self.seen = replace(self.seen, endpoint=f"http://{host}:{port}", port=port)
        self.say(f"{self.name}: listening on {port}")

    async def _close(self) -> None:
        """Leaves the replicas as they are. What is being begun or ended is waited for: a thread cannot be torn off."""
        await self.gateway.stop(LEAVE_S)
        for one in self.kept.values():
            if one.task:
                one.task.cancel()
        await asyncio.gather(*(one.task for one in self.kept.values() if one.task), return_exceptions=True)
        await asyncio.get_running_loop().run_in_executor(None, self.pool.shutdown)
        for one in self.kept.values():
            one.links.close()

    def _leave(self) -> None:
        self.is_leaving = True
        self.changed.set()

    # What is wanted.

    def _row(self) -> Any:
        row = self.journal.service(self.name)
        if row is None:
            raise Fenced(f"{self.name}: it is in the journal no more")
        return row

    def _read_wanted(self) -> Wanted:
        row = self._row()
        self.epoch = row.epoch
        return wanted_of(row.wanted)

    def _look_at_wanted(self) -> None:
        if self._row().epoch != self.epoch:
            self.wanted = self._read_wanted()
            self.service = self.wanted.newest.service
            self.gateway.limit(limits_of(self.service))
            self.not_before = 0.0
            self.say(f"{self.name}: wanted now is version {self.wanted.newest.number}")
        now = time.monotonic()
        if now - self.keys_read_at > 1.0:
            try:
                found = self._keys()
            except UsageError as error:  # those that are known go on
                self.say(str(error))
            else:
                if found or not self.gateway.keys:  # whoever listens to others never does so without a key
                    self.gateway.keys.take(found)

    def _keys(self) -> keys.Keys:
        self.keys_read_at = time.monotonic()
        return keys.load(self.places.keys) if self.places.keys.exists() else keys.Keys({})

    # What is done.

    def _decide(self) -> None:
        rule, now = autoscaler.rule_of(self.service), time.monotonic()
        newest, members = self.wanted.newest.number, self._members()
        load = self._load(rule)
        if self.rule_of != self.epoch:
            if self.rule_of:
                alike = [fleet.scaled(one) for one in members if one.version == newest]
                seen = autoscaler.Seen(qps=load.qps, waiting=load.waiting, members=alike)
                self.memory = autoscaler.updated(rule, self.memory, seen)
            self.rule_of = self.epoch
        is_woken = self.memory.target == 0 and (self.gateway.turns.waiting > 0 or bool(load.qps))
        is_tick = now >= self.tick_at or is_woken
        course = fleet.course(self.wanted.mode, rule, self.memory, newest, members, load, is_tick)
        if is_tick:
            self.tick_at = now + course.tick_s
        if course.memory.target != self.memory.target:
            self.say(f"{self.name}: {course.memory.target} replicas are wanted, not {self.memory.target}")
        self.memory = course.memory
        if course.held != self.held and now >= self.not_before:
            self.held = course.held
            if course.held:
                self.say(f"{self.name}: no more are started: {course.held}")
        for number, why in course.stop:
            self._end(self.kept[number], why, drains=True)
        if now >= self.not_before:
            for is_spot, count in ((True, course.start_spot), (False, course.start_on_demand)):
                for _ in range(count):
                    self._begin(is_spot)
        self.serving = fleet.serving(self.wanted.mode, rule, self._members())

    def _load(self, rule: autoscaler.Rule) -> fleet.Load:
        now = time.monotonic()
        qps: float | None = self.gateway.metrics.arrivals.per_second(now)
        if self.took_over and now - self.began < MEAN_S and self.memory.target > rule.least:
            qps = None  # the minute before was counted by another controller
        known = [count for _, count in self.waited]
        waiting = None if not known or None in known else sum(c for c in known if c is not None) / len(known)
        budget = self._budget()
        return fleet.Load(qps=qps, waiting=waiting, affordable=budget.affordable if budget else None)

    def _budget(self) -> Budget | None:
        """None = there is no limit."""
        limit = self.service.ours.spend_limit
        if limit is None:
            return None
        rows = [op for op in self.journal.ops(live=False) if op.role == role_of(self.name) and op.rate]
        clocks, scale = read_clocks(), self.settings.clock_scale
        return Budget(
            limit=limit_of(limit),
            most=self.service.policy.most,
            spent=sum(spend.spent(op, clocks, scale) for op in rows if op.intent_at >= self.wanted.since),
            armed=sum(one.member.cap_micro_usd or 0 for one in self.kept.values()),
        )

    def _look_at_load(self) -> None:
        """How much waits now; and which replicas fail request after request, whatever their probes say."""
        now = time.monotonic()
        ready = [one for one in self.kept.values() if one.member.state is State.READY]
        there: list[float | None] = [one.counters.waiting if one.counters else None for one in ready]
        total = None if None in there else self.gateway.turns.waiting + sum(c for c in there if c is not None)
        self.waited.append((now, total))
        while self.waited[0][0] < now - MEAN_S:
            self.waited.popleft()
        for one in ready:
            seat = self.gateway.turns.fleet.seats.get(one.replica) if one.replica else None
            if seat:
                facts = states.failed_requests(one.member.facts, seat.failures, now)
                if facts is not one.member.facts:
                    self.say(f"{one.member.run}: {seat.failures} requests failed one after another")
                    self._set(one, facts)

    def _begin(self, is_spot: bool) -> None:
        version, number = self.wanted.newest, self.next_number
        self.next_number += 1
        taken = [one.member.port for one in self.kept.values()]
        request, budget = placement.request_of(self.service, ""), self._budget()
        alive = sum(one.member.state.is_alive for one in self.kept.values())
        member = Member(number=number, version=version.number, run=f"{self.name}-{number}", spot=is_spot,
                        gpu=placement.gpu_of(request), port=free_port(taken),
                        cap_micro_usd=budget.cap(alive) if budget else None, began_at=time.time())  # fmt: skip
        one = self.kept[number] = Kept(member)
        self._save()  # before its pod is asked for
        one.task = asyncio.create_task(self._guarded(one, self._launch(one)))

    def _end(self, one: Kept, why: str, facts: Facts | None = None, *, drains: bool, has_failed: bool = False) -> None:
        """May be called again; the first reason counts."""
        if one.told.is_set():
            return
        facts = facts or one.member.facts
        launch = Step.INTERRUPTED if facts.launch in (Step.SCHEDULED, Step.RUNNING) else facts.launch
        one.drains, one.has_failed = drains, has_failed
        one.member = replace(one.member, why=why)
        self.say(f"{one.member.run}: ending: {why}")
        self._set(one, replace(facts, launch=launch, down=Step.SCHEDULED))
        one.told.set()

    # The life of one replica.

    async def _guarded(self, one: Kept, life: Awaitable[None]) -> None:
        """What goes wrong with our own work ends this controller, and not only that replica's care."""
        try:
            await life
        except asyncio.CancelledError:
            raise
        except BaseException as error:
            self.trouble = error
            self.changed.set()

    async def _launch(self, one: Kept) -> None:
        version = self.wanted.version(one.member.version)
        try:
            async with self.launching:
                if not one.told.is_set():
                    self._set(one, replace(one.member.facts, launch=Step.RUNNING))
                    self.say(f"{one.member.run}: launching version {version.number}")
                    op = await self._in_thread(self.landing.begin, version, one.member)
                    cap = one.member.cap_micro_usd if op.rate else None
                    one.member = replace(one.member, vendor=op.vendor, cap_micro_usd=cap)
        except SlipwayError as error:  # what there was of it has been ended
            if isinstance(error, NoOffer):
                self.held, self.not_before = str(error), time.monotonic() + NO_OFFER_S
                self.say(f"{one.member.run}: {error}")
                self._drop(one)
                return
            self.say(f"{one.member.run}: it was not launched: {error}")
            one.member = replace(one.member, why=str(error), ended_at=time.time())
            self._set(one, replace(one.member.facts, launch=Step.FAILED, down=Step.SUCCEEDED))
            self._retire(one)
            return
        if not one.told.is_set():
            self._set(one, replace(one.member.facts, launch=Step.SUCCEEDED))
        await self._keep(one)

    async def _keep(self, one: Kept) -> None:
        """From its hand-over to its end."""
        op = self._op(one)
        if op is not None and not one.told.is_set():
            try:
                port = one.member.port
                way = self.landing.reach(op).forward(port if self.landing.vendor(op.vendor).is_here else 0, port)
                near = await self._in_thread(one.links.enter_context, way)
                one.replica = Replica(replica_id=one.member.run, url=f"http://127.0.0.1:{near}",
                                      version=one.member.version, key=self.landing.key_of(one.member.run))  # fmt: skip
                await self._care(one)
            except SlipwayError as error:
                facts = replace(one.member.facts, app_failed=True)
                self._end(one, f"it cannot be reached: {error}", facts, drains=False, has_failed=True)
        await one.told.wait()
        await self._drain(one)
        await self._finish(one)

    async def _care(self, one: Kept) -> None:
        """Until it is told to end."""
        cares = [asyncio.create_task(care(one)) for care in (self._probe, self._watch)]
        told = asyncio.create_task(one.told.wait())
        try:
            done, _ = await asyncio.wait([told, *cares], return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in (told, *cares):
                task.cancel()
            await asyncio.gather(told, *cares, return_exceptions=True)

    async def _probe(self, one: Kept) -> None:
        assert one.replica is not None
        gone_asked_at = 0.0
        while True:
            asked, service = self.service.probe, self.wanted.version(one.member.version).service
            before = one.counters if one.member.facts.is_ready else None
            found = await probe(
                self.session, one.replica.url, one.replica.key, served_name(self.name, service), asked, before
            )
            now = time.monotonic()
            one.counters = found.counters
            if found.why and not one.probed:  # what follows it is told by its state
                self.say(f"{one.member.run}: {found.why}")
            one.probed = found.why
            facts = states.probed(one.member.facts, found.passed, now)
            if facts.first_ready_at is not None and one.member.ready_at is None:
                one.member = replace(one.member, ready_at=time.time())
            if facts.is_ready is not one.member.facts.is_ready:
                self.say(f"{one.member.run}: {'ready' if facts.is_ready else f'not ready: {found.why}'}")
            self._set(one, facts)
            facts, why = states.must_end(facts, asked, now)
            if why:
                self._end(one, f"{why}; its last probe: {found.why}", facts, drains=False, has_failed=True)
                return
            op = self._op(one)
            if not found.passed and op and op.rate and now - gone_asked_at > GONE_EVERY_S:
                gone_asked_at = now
                with contextlib.suppress(SlipwayError):  # no word is no proof
                    if loss := await self._in_thread(self.landing.loss, op):
                        facts = replace(one.member.facts, preempted=True)
                        self._end(one, f"its machine was taken away: {loss}", facts, drains=False)
                        return
            interval_s = asked.endpoint_probe_interval_seconds
            await asyncio.sleep(interval_s if facts.is_ready and found.passed else min(interval_s, YOUNG_S))

    async def _watch(self, one: Kept) -> None:
        """Whether its engine still runs, as its own agent says."""
        while True:
            op = self._op(one)
            fate = "its row is in the journal no more"
            if op is not None:
                try:
                    fate = await self._in_thread(self.landing.fate, op)
                except SlipwayError:  # nobody can tell; its probes tell whether it serves
                    fate = ""
            if fate:
                facts = replace(one.member.facts, app_failed=True, is_ready=False)
                self._end(one, fate, facts, drains=False, has_failed=True)
                return
            await asyncio.sleep(FATE_S if op and self.landing.vendor(op.vendor).is_here else FATE_THERE_S)

    async def _drain(self, one: Kept) -> None:
        """Until the gateway has had the last answer of it, or its time is over."""
        self._tell_gateway()
        if one.drains and one.replica is not None:
            until = time.monotonic() + self.service.file.service.load_balancer.stream_timeout_seconds
            while self.gateway.in_flight(one.replica) and time.monotonic() < until:
                await asyncio.sleep(0.05)

    async def _finish(self, one: Kept) -> None:
        """Until nothing of it is left, which takes as many tries as it takes."""
        wait_s = RETRY_S
        while True:
            self._set(one, replace(one.member.facts, down=Step.RUNNING))
            try:
                op = self._op(one)
                if op is not None:
                    await self._in_thread(self.landing.end, op, one.member.why)
                break
            except SlipwayError as error:
                self.say(f"{one.member.run}: {error}")
                self._set(one, replace(one.member.facts, down=Step.FAILED))
                await asyncio.sleep(wait_s)
                wait_s = min(LONGEST_RETRY_S, 2 * wait_s)
        await self._in_thread(one.links.close)
        one.member = replace(one.member, ended_at=time.time())
        self._set(one, replace(one.member.facts, down=Step.SUCCEEDED))
        self.say(f"{one.member.run}: ended, nothing of it runs")
        if one.has_failed:
            self._retire(one)
        else:
            self._drop(one)

    def _retire(self, one: Kept) -> None:
        """Gone, and remembered for what went wrong."""
        self.past = [*self.past, one.member][-KEPT:]
        self._drop(one)

    def _drop(self, one: Kept) -> None:
        self.kept.pop(one.member.number, None)
        self.changed.set()

    def _adopt(self) -> None:
        """Take over what an earlier controller has left, and end what it did not know."""
        for member in self.seen.members:
            if member.facts.down is Step.SUCCEEDED:
                self.past.append(member)
                continue
            one = self.kept[member.number] = Kept(member)
            facts = replace(member.facts, passes=0, misses=0, first_miss_at=None)
            op = self._op(one)
            if op is not None and facts.launch in (Step.SCHEDULED, Step.RUNNING) and op.state in (READY, LOST):
                facts = replace(facts, launch=Step.SUCCEEDED)
            one.member = replace(member, facts=facts)
            if op is None and facts.launch in (Step.SCHEDULED, Step.RUNNING):
                self._drop(one)  # its pod was never asked for
                continue
            if facts.down is not None:
                one.drains, one.has_failed = False, facts.app_failed or facts.is_late
                one.told.set()
            elif facts.launch is not Step.SUCCEEDED:
                self._end(one, "its launch was cut off", drains=False)
            one.task = asyncio.create_task(self._guarded(one, self._keep(one)))
        if self.kept:
            self.say(f"{self.name}: taking over {', '.join(one.member.run for one in self.kept.values())}")

    # What is told.

    def _set(self, one: Kept, facts: Facts) -> None:
        before = one.member.state
        one.member = replace(one.member, facts=facts)
        if one.member.state is not before:
            self.changed.set()

    def _members(self) -> list[Member]:
        return sorted([*self.past, *(one.member for one in self.kept.values())], key=lambda one: one.number)

    def _tell_gateway(self) -> None:
        """The one way by which it learns of its replicas."""
        serving = (self.kept[number] for number in self.serving if number in self.kept)
        ready = [one.replica for one in serving if one.replica and one.member.state is State.READY]
        if ready != list(self.gateway.turns.fleet.seats):
            self.gateway.replace(ready)

    def _save(self) -> None:
        """Raises Fenced when another controller has taken over."""
        members = tuple(replace(one, facts=_lasting(one.facts)) for one in self._members())
        self.seen = replace(
            self.seen, members=members, next_number=self.next_number, memory=self.memory, rule_of=self.rule_of,
            held=self.held, serving=tuple(number for number in self.serving if number in self.kept),
        )  # fmt: skip
        text = write(self.seen)
        if text != self.saved:
            self.journal.saw(self.name, text, self.lease)
            self.saved = text
        ready = sum(one.member.state is State.READY for one in self.kept.values())
        if (ready, self.memory.target) != self.counted:
            self.counted = (ready, self.memory.target)
            with self.places.history.open("a", encoding="ascii") as file:
                line = {"at": round(time.time(), 1), "ready": ready, "target": self.memory.target}
                file.write(json.dumps(line) + "\n")

    def _op(self, one: Kept) -> Op | None:
        return next(reversed(self.journal.ops(run=one.member.run)), None)

    async def _in_thread(self, work: Callable[..., T], *words: Any) -> T:
        """To its end, also when this task is cancelled meanwhile: what it began must not be half done."""
        return await asyncio.get_running_loop().run_in_executor(self.pool, work, *words)


def _lasting(facts: Facts) -> Facts:
    """What another controller can use: it probes anew."""
    return replace(facts, passes=0, misses=0, first_miss_at=None)


def limits_of(service: Service) -> Limits:
    """Of the gateway, as far as the file has a word for it."""
    stream_s = service.file.service.load_balancer.stream_timeout_seconds
    return Limits(
        first_byte_s=stream_s,
        idle_s=stream_s,
        hold_s=service.ours.hold_seconds,
        affinity_chars=service.ours.affinity_chars,
    )


async def keep(name: str) -> None:
    logging.getLogger("infra.relay").setLevel(logging.ERROR)  # that nobody answers behind a port is told by probes
    settings = Settings.load(ROOT)
    with Journal.open(settings.state_file) as journal:
        lease = journal.take(lease_name(name))  # until this process is gone: whoever waits for that waits for its end
        controller = None
        try:
            controller = Controller(name, settings, journal, lease, _say)
            await controller.run()
        except Fenced:
            raise
        except BaseException as error:
            row = journal.service(name)
            if row is not None:
                seen = controller.seen if controller else seen_of(row.seen)
                text = str(error) or type(error).__name__
                journal.saw(name, write(replace(seen, problem=text)), lease)
            raise


def _say(text: str) -> None:
    stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    for line in text.splitlines():
        print(f"{stamp} {line}", file=sys.stderr, flush=True)


def main() -> None:
    if len(sys.argv) != 2:
        sys.exit("usage: python -m serve.controller NAME")
    try:
        run(keep(sys.argv[1]))
    except SlipwayError as error:
        _say(f"serve.controller: {error}")
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main()
