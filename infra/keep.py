"""A run's keeper: it follows the run, brings home what it makes, and brings the run back when its pod has died.

In: a journal row. Out: what `follow` yields, over every pod that the run gets. One process keeps a run at a time: it
holds the lease `keep:<run>`, which is free when that process has died, and never by age. A pod is called dead only by
its own machine's word, and gone only by its provider's; one that does not answer is waited for.

    dead   guard and agent have ended without a verdict   their start, on the same pod
    gone   the pod is proven absent, or its vendor says    another pod, from what was brought home (`keepsake`), or
           that it has stopped                             from the store, where the pod itself puts its checkpoints
"""

import contextlib
import json
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from infra import home, keepsake, launch, pods, spend, watch
from infra.agent.job import Job
from infra.agent.process import myself, send
from infra.errors import LimitHit, NoOffer, SlipwayError
from infra.follow import Seen, follow
from infra.journal import Fenced, Held, Journal, Lease, Op
from infra.launch import Terms
from infra.providers import Provider, Vendors, clock_scale, market
from infra.records import Offer, Plan, Request
from infra.stages import Say
from infra.states import LOST, READY
from infra.transport import Lost, TimedOut, Transport, Unreachable
from store import Store, StoreError

MOST_RECOVERIES = 5
FIRST_WAIT_S, LONGEST_WAIT_S = 1.0, 300.0
BRING_EVERY_S = 2.0
RETRY_S = 2.0
POLL_S = 0.25
LEAVE_S = 10.0


def lease_name(run: str) -> str:
    return f"keep:{run}"


def end_keeper(run: str, journal: Journal, patience_s: float = LEAVE_S) -> None:
    """Of a run that was ended: it sees that by itself, and is told when it is slow to. Not this process."""
    deadline = time.monotonic() + patience_s
    while (holder := journal.holder(lease_name(run))) and holder != myself():
        if time.monotonic() > deadline:
            send(holder, signal.SIGTERM)
            return
        time.sleep(POLL_S)


Find = Callable[[Request], Sequence[Offer]]


@dataclass
class Keeper:
    """Keeps a run; `folder` is where what is brought home of it lies."""

    journal: Journal
    vendors: Vendors
    find: Find  # offers that satisfy a request, in the order in which they are tried; raises NoOffer
    folder: Path
    secrets: Mapping[str, str]
    say: Say
    terms: Terms = launch.PLAIN
    lost: Callable[[Op], None] = lambda _: None  # told of every pod that is gone
    lease: Lease | None = None  # None: another process has it, and this one only follows

    @contextlib.contextmanager
    def keeping(self, run: str) -> Iterator[None]:
        """Hold the lease meanwhile, if nobody else does."""
        self._take(run)
        try:
            yield
        finally:
            if self.lease is not None:
                self.journal.release(self.lease)
                self.lease = None

    def keep(self, op: Op) -> Iterator[Seen]:
        """Yields at every look until the verdict of the run's last pod.

        Raises SlipwayError when it cannot be brought back, LimitHit when its time or money is used up.
        """
        before = op.recoveries
        while True:
            transport, heard = self.vendors(op.vendor).reach(pods.pod_of(op)), False
            try:
                with self._bringing(op, transport):
                    for progress, verdict in follow(op, self.journal, transport, lambda: self._said_elsewhere(op)):  # noqa: B023
                        heard = True
                        yield {**progress, "recoveries": op.recoveries}, verdict
                return
            except SlipwayError as error:
                now = self.journal.ops(run=op.run)[-1]
                if pods.is_over(now):
                    raise
                if now.token == op.token and not heard and self._is_well(now, transport):
                    raise  # it lives, and only we cannot read it
                failure = error
            op = self._bring_back(op, failure, before)

    def _bring_back(self, op: Op, failure: SlipwayError, before: int) -> Op:
        """The row to follow next: the run is at work again, here or elsewhere. Raises `failure` when it is over."""
        tries = 0
        while True:
            op = self.journal.ops(run=op.run)[-1]
            if pods.is_over(op):
                raise failure
            self._take(op.run)
            if self.lease is None:  # its keeper is at it
                self._rest(op, RETRY_S)
                return self.journal.ops(run=op.run)[-1]
            done = op.recoveries - before
            if done >= MOST_RECOVERIES:
                raise SlipwayError(f"{failure}; it was brought back {done} times, which is enough")
            try:
                provider = self.vendors(op.vendor)
                if not op.is_live and provider.is_rented:
                    tries += 1
                    return self._recover(op, provider)
                transport = provider.reach(pods.pod_of(op))
                if op.is_live and op.state not in (READY, LOST):  # whoever rented it may live, and go on
                    pods.settle(provider, op, self.journal, transport)
                    self._rest(op, RETRY_S)
                elif op.is_live and self._is_well(op, transport):
                    return op
                elif not self._rest(op, min(LONGEST_WAIT_S, FIRST_WAIT_S * 2 ** (done + tries))):
                    tries += 1
                    self.lease = self.journal.renew(self.lease)
                    return self._recover(op, provider)
            except (Lost, TimedOut, Unreachable, NoOffer) as error:
                self.say(f"{op.run}: {error}")
                if tries > MOST_RECOVERIES:
                    raise
                self._rest(op, RETRY_S)

    def _said_elsewhere(self, op: Op) -> dict[str, Any]:
        """The verdict of another node of a run whose node 0 does not answer; {} while there is none.

        SlipwayError: the vendor says that the pod is no more.
        """
        self._look_after(op)
        for other in pods.nodes_of(op, self.journal)[1:]:
            with contextlib.suppress(SlipwayError):  # it does not answer either
                if verdict := pods.verdict_of(other, self.vendors(other.vendor).reach(pods.pod_of(other))):
                    return verdict
        return {}

    def _look_after(self, op: Op) -> None:
        """Raises SlipwayError when its vendor says that it is no more; nothing while the vendor says nothing."""
        if rented := market(self.vendors(op.vendor)):
            said = ""
            with contextlib.suppress(SlipwayError):  # no word is no proof
                said = pods.fate(rented, op)
            if said:
                raise SlipwayError(f"{op.run}: {said}")

    def _is_well(self, op: Op, transport: Transport) -> bool:
        """Something of it lives, or it has a verdict. Raises SlipwayError when nobody can tell."""
        if self._is_gone(op):
            return False
        return watch.is_alive(op, transport) or bool(pods.verdict_of(op, transport))

    def _is_gone(self, op: Op) -> bool:
        provider = self.vendors(op.vendor)
        rented = market(provider)
        return bool(pods.fate(rented, op)) if rented else pods.is_absent(provider, op)

    def _recover(self, op: Op, provider: Provider) -> Op:
        """Each write names the row as it was last seen: whoever ended or took over the run meanwhile is not undone."""
        if op.is_live and not self._is_gone(op):
            op = self.journal.note(op, recoveries=op.recoveries + 1)
            self.say(f"{op.run}: neither its guard nor its agent lives; going on there (recovery {op.recoveries})")
            op = launch.resume(op, provider, self.journal, self.secrets)
            now = self.journal.op(op.token)
            if now.epoch != op.epoch:  # ended while it was being started: then it must not have been
                provider.delete(op.remote_id or op.token)
                raise Fenced(f"{op.run}: another process changed it meanwhile; run: inv status")
            return op
        if op.is_live:
            op = pods.end(provider, op, self.journal, pods.GONE)
        self.say(f"{op.run}: {op.place or 'its pod'} is gone; looking for another (recovery {op.recoveries + 1})")
        self.lost(op)
        if provider.is_here:
            new = launch.resume(op, provider, self.journal, self.secrets)
            return self.journal.note(new, recoveries=op.recoveries + 1)
        return self.elsewhere(op, op.recoveries + 1)

    def elsewhere(self, op: Op, recoveries: int = 0) -> Op:
        """The run of a pod that has ended on the next offer, with the code that it began with. Raises LimitHit."""
        code = self.folder / "code"
        if not code.is_dir():
            raise SlipwayError(f"{op.run}: its pod is gone, and its code was not kept; run: inv launch")
        request = Request(**json.loads(op.request)) if op.request else Request(run=op.run, provider=op.vendor)
        for other in pods.nodes_of(op, self.journal)[1:]:  # they cannot go on without node 0: all begin anew together
            pods.end(self.vendors(other.vendor), other, self.journal, pods.GONE)
        plan = Plan(target=op.target, store=op.store, artifacts=(), job=self._rest_of(op), request=request)

        def prepare(new: Op, transport: Transport) -> None:
            if self.vendors(new.vendor).pod_store:  # else the pod fetches it from the store
                keepsake.restore(new, transport, self.folder, Store(op.store))

        terms = replace(self.terms, prepare=prepare, recoveries=recoveries)
        offers = self.find(request)
        return launch.start(plan, offers, self.vendors, self.journal, code, self.secrets, self.say, terms)

    def _rest_of(self, op: Op) -> Job:
        """The job with what is left of its time and money. Raises LimitHit."""
        job, provider = Job.from_json(op.job), self.vendors(op.vendor)
        if provider.is_rented:
            now, scale = time.time(), clock_scale(provider)
            used_s, used_micro_usd = spend.age_s(op, now, scale), spend.spent(op, now, scale)
        else:  # as its guard last said
            guard = home.words_at_home(op, self.folder).get("guard", {})
            used_s, used_micro_usd = guard.get("elapsed_s", 0.0), guard.get("spent_micro_usd", 0)
        limits = replace(job.limits, billed_s=0.0)
        if limits.time_s is not None:
            limits = replace(limits, time_s=limits.time_s - used_s)
        if limits.spend_micro_usd is not None:
            limits = replace(limits, spend_micro_usd=limits.spend_micro_usd - used_micro_usd)
        if any(left is not None and left <= 0 for left in (limits.time_s, limits.spend_micro_usd)):
            raise LimitHit(f"{op.run}: its pod is gone, and its limit is reached; run: inv launch")
        return replace(job, limits=limits)

    def _take(self, run: str) -> None:
        if self.lease is None:
            with contextlib.suppress(Held):
                self.lease = self.journal.take(lease_name(run))

    def _rest(self, op: Op, seconds: float) -> bool:
        """Wait; True at once when somebody changes the run meanwhile."""
        deadline = time.monotonic() + seconds
        while (is_same := self.journal.ops(run=op.run)[-1] == op) and time.monotonic() < deadline:
            time.sleep(min(POLL_S, seconds))
        return not is_same

    @contextlib.contextmanager
    def _bringing(self, op: Op, transport: Transport) -> Iterator[None]:
        """Meanwhile what grows on another machine is brought home; big files hold up nobody who looks."""
        if self.vendors(op.vendor).is_here or self.lease is None:
            yield
            return
        over = threading.Event()
        thread = threading.Thread(target=self._bring, args=(op, transport, over), daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join(BRING_EVERY_S)  # what it is at now may be big; its end is not waited for

    def _bring(self, op: Op, transport: Transport, over: threading.Event) -> None:
        told = ""
        pod_store = self.vendors(op.vendor).pod_store
        parts: list[Callable[[], object]] = [
            lambda: home.bring_logs(op, transport, self.folder),
            lambda: home.bring_words(op, transport, self.folder),
        ]
        if pod_store:  # else the pod itself brings them to the store
            parts += [
                lambda: keepsake.bring(op, transport, self.folder),
                lambda: home.bring_artifacts(op, pod_store, transport, Store(op.store)),
            ]
        while not over.wait(BRING_EVERY_S):
            for part in parts:
                try:
                    part()
                except (Lost, TimedOut, Unreachable):  # told by who follows
                    break
                except (SlipwayError, StoreError, OSError, ValueError) as error:
                    if str(error) != told:
                        told = str(error)
                        self.say(f"{op.run}: bringing home: {error}")
