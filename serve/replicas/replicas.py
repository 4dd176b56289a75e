"""Replica manager of a service: a task for each replica, from the launch of the pod to the proven end.

    begin -> launched -> cared for (probed, engine watched) -> end requested -> drained -> ended, with proof

The controller decides which replicas begin and end. `members` returns the state of each replica; `changed` is set when
a state changes.
"""

import asyncio
import contextlib
import sqlite3
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import aiohttp

from infra.errors import NoOffer, OutOfMoney, SlipwayError
from infra.ledger.journal import Journal
from infra.ledger.op import LOST, READY, Op
from infra.runs.keepers.recovery import REPLICA, RecoveryAction, decide
from infra.runs.observation import AskedParties, Observation, ObservationKind
from serve import variants
from serve.engines import OWN_RUN
from serve.gateway.routing import Target
from serve.policy import replica_states
from serve.policy.replica_states import Facts, ProcessStatus
from serve.policy.service_state import Member, WantedService, served_name
from serve.processes.gateway_client import GatewayClient
from serve.processes.gateway_orders import ReplicaEndpoint
from serve.replicas.prober import Prober
from serve.replicas.replica_pod import ReplicaLauncher, Stage
from serve.replicas.variant_loader import VariantLoader
from serve.service import Service
from store.backoff import Backoff

FATE_S, FATE_THERE_S = 0.5, 5.0  # interval between checks of an engine's verdict, on this machine and elsewhere
LAUNCHES = 4  # simultaneous launches
THREADS = 64
NO_OFFER_S = 30.0  # pause before the next search for a machine
RETRY_S = 2.0
BACKOFF = Backoff(first_s=RETRY_S, longest_s=60.0)  # waits after an end without proof
GONE_EVERY_S = 10.0  # interval between checks of the pod of a silent replica
KEPT = 20  # number of failed replicas to remember

T = TypeVar("T")


@dataclass
class KeptReplica:
    """A replica with the state that the controller keeps in memory."""

    member: Member
    end_requested: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the replica must end."""
    drains: bool = True
    has_failed: bool = False
    """True if the replica is remembered after the end."""
    replica: Target | None = None
    """Target of the probes; None until the engine is reachable."""
    endpoint: ReplicaEndpoint | None = None
    """Endpoint for the gateway; None until the pod has received the job."""
    prober: Prober = field(default_factory=Prober)
    stage: Stage = Stage()
    task: "asyncio.Task[None] | None" = None
    links: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)


class Replicas:
    """Replicas of the service `name`.

    Use within a single event loop, as a context manager; on exit the replicas keep running.
    """

    def __init__(
        self,
        name: str,
        wanted: WantedService,
        journal: Journal,
        landing: ReplicaLauncher,
        gateway: GatewayClient,
        take_off: Callable[[], None],
        say: Callable[[str], None],
    ) -> None:
        self.name, self.journal, self.launcher, self.gateway, self.say = name, journal, landing, gateway, say
        self.take_off = take_off
        """Callback that sends the gateway the list of replicas without ending replicas."""
        self.wanted = wanted
        self.kept: dict[int, KeptReplica] = {}
        self.past: list[Member] = []
        """Replicas that have failed and are gone."""
        self.changed = asyncio.Event()
        self.trouble: BaseException | None = None
        """Error in our own code."""
        self.no_offer = ""
        """Reason why the last launch found no machine; no further launch before `not_before`."""
        self.not_before = 0.0
        self.pool = ThreadPoolExecutor(THREADS)
        self.launching = asyncio.Semaphore(LAUNCHES)

    async def __aenter__(self) -> "Replicas":
        self.session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0, force_close=True))
        return self

    async def __aexit__(self, *_: object) -> None:
        """Cancel the tasks, and wait for launches and ends in progress: a thread cannot be interrupted."""
        for one in self.kept.values():
            if one.task:
                one.task.cancel()
        await asyncio.gather(*(one.task for one in self.kept.values() if one.task), return_exceptions=True)
        await asyncio.get_running_loop().run_in_executor(None, self.pool.shutdown)
        for one in self.kept.values():
            one.links.close()
        await self.session.close()

    @property
    def service(self) -> Service:
        return self.wanted.newest.service

    def start(self, member: Member, write_down: Callable[[], None]) -> None:
        """Launch a replica after `write_down` has recorded the member."""
        one = self.kept[member.number] = KeptReplica(member)
        write_down()
        one.task = asyncio.create_task(self._run_guarded(one, self._launch(one)))

    def request_end(
        self, one: KeptReplica, why: str, facts: Facts | None = None, *, drains: bool, has_failed: bool = False
    ) -> None:
        """Request the end of a replica. After a repeated call the first reason counts."""
        if one.end_requested.is_set():
            return
        facts = facts or one.member.facts
        launch = (
            ProcessStatus.INTERRUPTED
            if facts.launch in (ProcessStatus.SCHEDULED, ProcessStatus.RUNNING)
            else facts.launch
        )
        one.drains, one.has_failed = drains, has_failed
        one.member = replace(one.member, why=why)
        self.say(f"{one.member.run}: ending: {why}")
        self.set_facts(one, replace(facts, launch=launch, down=ProcessStatus.SCHEDULED))
        one.end_requested.set()

    # Tasks of the replicas.

    async def _run_guarded(self, one: KeptReplica, life: Awaitable[None]) -> None:
        """Run the care of a replica.

        A bug in our own code ends this controller and not only the care of the replica; a transient shortage ends
        neither.
        """
        try:
            await life
        except asyncio.CancelledError:
            raise
        except BaseException as error:
            if not is_resource_shortage(error):
                self.trouble = error
                self.changed.set()
                return
            self.say(f"{one.member.run}: tried again in {RETRY_S:g} s: {error}")
            one.task = asyncio.create_task(self._run_guarded(one, self._retry_later(one)))

    async def _retry_later(self, one: KeptReplica) -> None:
        await asyncio.sleep(RETRY_S)
        await self._in_thread(one.links.close)
        self._take_over(one)

    async def _launch(self, one: KeptReplica) -> None:
        version = self.wanted.version(one.member.version)
        try:
            async with self.launching:
                if not one.end_requested.is_set():
                    self.set_facts(one, replace(one.member.facts, launch=ProcessStatus.RUNNING))
                    self.say(f"{one.member.run}: launching version {version.number}")
                    op = await self._in_thread(self.launcher.launch, version, one.member)
                    cap = one.member.cap_micro_usd if op.rate else None
                    one.member = replace(one.member, vendor=op.vendor, cap_micro_usd=cap)
                    one.endpoint = self._endpoint(one, op)
        except SlipwayError as error:  # the launch has cleaned up behind itself
            if isinstance(error, (NoOffer, OutOfMoney)):  # a machine or money may become available
                self.no_offer, self.not_before = str(error), time.monotonic() + NO_OFFER_S
                self.say(f"{one.member.run}: {error}")
                self._drop(one)
                return
            self.say(f"{one.member.run}: the launch failed: {error}")
            one.member = replace(one.member, why=str(error), ended_at=time.time())
            self.set_facts(one, replace(one.member.facts, launch=ProcessStatus.FAILED, down=ProcessStatus.SUCCEEDED))
            self._retire(one)
            return
        if not one.end_requested.is_set():
            self.set_facts(one, replace(one.member.facts, launch=ProcessStatus.SUCCEEDED))
        await self._manage(one)

    async def _manage(self, one: KeptReplica) -> None:
        """Manage a replica from the hand-over to the end."""
        op = self._op(one)
        if op is not None and not one.end_requested.is_set():
            try:
                port = one.member.port
                way = self.launcher.reach(op).forward(port if self.launcher.vendor(op.vendor).is_here else 0, port)
                near = await self._in_thread(one.links.enter_context, way)
                one.replica = Target(
                    replica_id=one.member.run,
                    url=f"http://127.0.0.1:{near}",
                    version=one.member.version,
                    key=self._key_of(one),
                )
                await self._supervise(one)
            except SlipwayError as error:
                facts = replace(one.member.facts, app_failed=True)
                self.request_end(one, f"the replica cannot be reached: {error}", facts, drains=False, has_failed=True)
        await one.end_requested.wait()
        await self._drain(one)
        await self._finish(one)

    async def _supervise(self, one: KeptReplica) -> None:
        """Probe and watch a replica until an end is requested."""
        cares = [asyncio.create_task(care(one)) for care in (self._probe, self._watch, self._load_variants)]
        told = asyncio.create_task(one.end_requested.wait())
        try:
            done, _ = await asyncio.wait([told, *cares], return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in (told, *cares):
                task.cancel()
            await asyncio.gather(told, *cares, return_exceptions=True)

    async def _probe(self, one: KeptReplica) -> None:
        assert one.replica is not None
        gone_asked_at = 0.0
        while True:
            asked, service = self.launcher.probe_of(self.service), self.wanted.version(one.member.version).service
            engine = self.wanted.version(one.member.version).engine
            model, prober = "" if engine == OWN_RUN else served_name(self.name, service), one.prober
            doubt, known = prober.doubt, prober.why
            try:
                found = await prober.probe(self.session, one.replica, model, asked, one.member.facts.is_ready)
            except OSError as error:  # not probed: this machine has no file descriptor left
                self.say(f"{one.member.run}: no probe: {error}")
                await asyncio.sleep(RETRY_S)
                continue
            if engine == OWN_RUN and one.member.facts.first_ready_at is None and one.stage.engine_s is None:
                # A different program may have the port during `setup`.
                found = replace(found, passed=False, why="its `run` has not begun")
                prober.why = found.why
            now = time.monotonic()
            is_new = found.why != known and one.member.ready_at is None
            if found.why and (is_new or not known):  # the state shows later reasons
                self.say(f"{one.member.run}: {found.why}")
            if verdict := prober.doubt_message(doubt):
                self.say(f"{one.member.run}: {verdict}")
            facts = replica_states.after_probe(one.member.facts, found.passed, now)
            if facts.first_ready_at is not None and one.member.ready_at is None:
                one.member = replace(one.member, ready_at=time.time())
            if facts.is_ready is not one.member.facts.is_ready:
                self.say(f"{one.member.run}: {'ready' if facts.is_ready else f'not ready: {found.why}'}")
            self.set_facts(one, facts)
            facts, why = replica_states.with_end_reason(facts, asked, now)
            if why:
                at = f"; it was at: {one.stage.phase}" if facts.is_late else ""
                self.request_end(one, f"{why}{at}; its last probe: {found.why}", facts, drains=False, has_failed=True)
                return
            op = self._op(one)
            if not found.passed and op and op.is_live and now - gone_asked_at > GONE_EVERY_S:
                gone_asked_at = now
                if self._is_lost(one, op, await self._in_thread(self.launcher.observe, op, AskedParties.ALL)):
                    return
            await prober.wait_due(asked, facts.is_ready and found.passed, doubt.is_open)

    async def _watch(self, one: KeptReplica) -> None:
        """Watch the engine and the startup progress, as reported by the pod's agent."""
        while True:
            op = self._op(one)
            seen = await self._in_thread(self.launcher.observe, op, AskedParties.FILES) if op else Observation(False)
            if self._is_lost(one, op, seen):
                return
            if op and seen.progress and one.member.facts.first_ready_at is None:
                with contextlib.suppress(SlipwayError, OSError, ValueError):  # probes detect readiness
                    engine = self.wanted.version(one.member.version).engine
                    stage = await self._in_thread(self.launcher.stage, op, seen.progress, one.stage, engine)
                    self._record_stage(one, stage)
            await asyncio.sleep(FATE_S if op and self.launcher.vendor(op.vendor).is_here else FATE_THERE_S)

    async def _load_variants(self, one: KeptReplica) -> None:
        """Load and unload variants of the model until the engine has the wanted variants, and again after changes."""
        assert one.replica is not None

        def record(loaded: Mapping[str, str], refused: Mapping[str, str], failed: Mapping[str, str]) -> None:
            one.member = replace(one.member, variants=dict(loaded), refused=dict(refused), failed=dict(failed))
            self.changed.set()

        loader = VariantLoader(
            self.session,
            one.replica,
            record,
            lambda said: self.say(f"{one.member.run}: {said}"),
            has_some=bool(one.member.variants),
        )
        version = self.wanted.version(one.member.version)
        can_load = variants.can_load(version.engine, version.service.slipway.engine.variants)
        while True:
            wanted = self.wanted.variants if can_load else {}
            if one.member.facts.is_ready and loader.is_due(wanted):
                await loader.reconcile(wanted, self._gateway_has_order)
            await asyncio.sleep(FATE_S)

    async def _gateway_has_order(self) -> None:
        """Wait until the gateway works by the newest list of replicas and variants."""
        self.take_off()
        while not self.gateway.is_applied:
            await asyncio.sleep(0.05)

    def _is_lost(self, one: KeptReplica, op: Op | None, seen: Observation) -> bool:
        """Request the end of a replica whose pod will never serve again, and return True. Silence proves no loss."""
        if decide([seen], REPLICA).action is not RecoveryAction.BEGIN_ANEW:
            return False
        facts = one.member.facts
        if op is not None and op.is_live and seen.kind is ObservationKind.GONE:
            self.request_end(
                one, f"the machine was taken away: {seen.why}", replace(facts, preempted=True), drains=False
            )
            return True
        if op is None:
            why = "the row is no longer in the journal"
        elif not op.is_live:
            why = op.reason or "it was ended"
        elif seen.verdict:
            state = seen.verdict["state"]
            state = "exit code 0" if state == "succeeded" else state  # vLLM's exit code after the core has died
            is_own = self.wanted.version(one.member.version).engine == OWN_RUN
            why = f"{'`run`' if is_own else 'the engine'} has ended: {seen.verdict['reason'] or state}"
        else:
            why = "neither the guard nor the agent is running"
        self.request_end(one, why, replace(facts, app_failed=True, is_ready=False), drains=False, has_failed=True)
        return True

    def _record_stage(self, one: KeptReplica, stage: Stage) -> None:
        """Record a new report of the pod; a silent agent reports nothing new."""
        if stage.told_at != one.stage.told_at:
            facts = replica_states.after_engine_report(one.member.facts, stage.engine_s, time.monotonic())
            one.member = replace(one.member, facts=facts)
        if stage.phase not in [phase for phase, _ in one.member.phases]:
            one.member = replace(one.member, phases=(*one.member.phases, (stage.phase, time.time())))
            self.changed.set()
        one.stage = stage

    async def _drain(self, one: KeptReplica) -> None:
        """Wait until the gateway has the last answer of the replica, or for the stream timeout."""
        self.take_off()
        if one.drains and one.endpoint is not None:
            until = time.monotonic() + self.service.file.service.load_balancer.stream_timeout_seconds
            while self.gateway.in_flight(one.member.run) and time.monotonic() < until:
                await asyncio.sleep(0.05)

    async def _finish(self, one: KeptReplica) -> None:
        """End the replica, with retries and backoff until the end is proven."""
        failures, op = 0, self._op(one)
        if one.member.facts.app_failed and op is not None:
            error = await self._in_thread(self.launcher.last_error, op)
            if error and error not in one.member.why:
                one.member = replace(one.member, why=f"{one.member.why}: {error}")
                self.say(f"{one.member.run}: {error}")
        while True:
            self.set_facts(one, replace(one.member.facts, down=ProcessStatus.RUNNING))
            try:
                op = self._op(one)
                if op is not None:
                    await self._in_thread(self.launcher.end, op, one.member.why)
                break
            except SlipwayError as error:
                self.say(f"{one.member.run}: {error}")
                self.set_facts(one, replace(one.member.facts, down=ProcessStatus.FAILED))
                failures += 1
                await asyncio.sleep(BACKOFF.wait_s(failures))
        await self._in_thread(one.links.close)
        one.member = replace(one.member, ended_at=time.time())
        self.set_facts(one, replace(one.member.facts, down=ProcessStatus.SUCCEEDED))
        self.say(f"{one.member.run}: ended, nothing of it runs")
        if one.has_failed:
            self._retire(one)
        else:
            self._drop(one)

    def _retire(self, one: KeptReplica) -> None:
        """Drop the replica, and remember the failure."""
        self.past = [*self.past, one.member][-KEPT:]
        self._drop(one)

    def _drop(self, one: KeptReplica) -> None:
        self.kept.pop(one.member.number, None)
        self.changed.set()

    def adopt(self, members: Sequence[Member]) -> None:
        """Take over the replicas of an earlier controller, and end launches that were cut off."""
        for member in members:
            if member.facts.down is ProcessStatus.SUCCEEDED:
                self.past.append(member)
                continue
            self.kept[member.number] = KeptReplica(member)
            self._take_over(self.kept[member.number])
        if self.kept:
            self.say(f"{self.name}: taking over {', '.join(one.member.run for one in self.kept.values())}")

    def _take_over(self, one: KeptReplica) -> None:
        """Take over a replica in any state, as the earlier care may have been cut off anywhere."""
        facts = replace(one.member.facts, passes=0, misses=0, first_miss_at=None, waits_since=None)
        op = self._op(one)
        if (
            op is not None
            and facts.launch in (ProcessStatus.SCHEDULED, ProcessStatus.RUNNING)
            and op.state in (READY, LOST)
        ):
            facts = replace(facts, launch=ProcessStatus.SUCCEEDED)
        one.member = replace(one.member, facts=facts)
        if op is None and facts.launch in (ProcessStatus.SCHEDULED, ProcessStatus.RUNNING):
            self._drop(one)  # no pod was requested
            return
        if facts.down is not None:
            one.drains, one.has_failed = False, facts.app_failed or facts.is_late
            one.end_requested.set()
        elif facts.launch is not ProcessStatus.SUCCEEDED:
            self.request_end(one, "its launch was cut off", drains=False)
        if op is not None and op.address:
            one.endpoint = self._endpoint(one, op)
        one.task = asyncio.create_task(self._run_guarded(one, self._manage(one)))

    def _key_of(self, one: KeptReplica) -> str:
        """Return the API key of an engine; a program of the user gets no key, and no Authorization header of ours."""
        is_own = self.wanted.version(one.member.version).engine == OWN_RUN
        return "" if is_own else self.launcher.key_of(one.member.run)

    def _endpoint(self, one: KeptReplica, op: Op) -> ReplicaEndpoint:
        return ReplicaEndpoint(
            replica_id=one.member.run,
            version=one.member.version,
            key=self._key_of(one),
            port=one.member.port,
            vendor=op.vendor,
            pod_id=op.remote_id or "",
            token=op.token,
            address=op.address or "",
        )

    def set_facts(self, one: KeptReplica, facts: Facts) -> None:
        before = one.member.state
        one.member = replace(one.member, facts=facts)
        if one.member.state is not before:
            self.changed.set()

    def members(self) -> list[Member]:
        return sorted([*self.past, *(one.member for one in self.kept.values())], key=lambda one: one.number)

    def _op(self, one: KeptReplica) -> Op | None:
        return next(reversed(self.journal.ops(run=one.member.run)), None)

    async def _in_thread(self, work: Callable[..., T], *words: Any) -> T:
        """Run `work` in a thread to the end, even after a cancellation of this task: no work may stay half done."""
        return await asyncio.get_running_loop().run_in_executor(self.pool, work, *words)


def is_resource_shortage(error: BaseException) -> bool:
    """Return whether the error comes from a shortage on this machine: descriptors, memory, threads or disk."""
    wants = (OSError, MemoryError, sqlite3.OperationalError)
    return isinstance(error, wants) or isinstance(error.__cause__, wants) or str(error) == "can't start new thread"
