"""A vendor drill: tests of a new vendor's promises on rented machines before real work depends on the vendor.

    planning.plan -> Drill.run -> Evidence -> packs.drill.control.clauses.judge -> Report

A drill ends every rented machine, even after errors. Renting, connecting, guarding, saving and ending use the
same code as a launch; `Watch` sits between that code and the vendor and records every call. `inv drill` asks for
confirmation first.

The drill rents these machines in sequence, each from the cheapest offer:

- TIMED, only for a vendor with a hidden timer: the drill leaves this machine to the timer.
- WORKER is rented like a launch, works for a minute and ends like finished work.
- STRAY: the drill discards the reply to the create request.
- LEAVERS, only for a vendor with self-deleting pods: each machine tests the self-delete requests.
- SPOT, only for a vendor with spot machines: the drill rents and returns this machine.
"""

import contextlib
import json
import re
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from urllib.parse import urlsplit

from infra import job_environment
from infra.agent.job import Call, Job, Limits
from infra.agent.limits import read_clocks
from infra.checkout import ROOT
from infra.errors import NoOffer, RateLimited, SlipwayError
from infra.interrupts import defer_interrupts
from infra.ledger import spend
from infra.ledger.journal import Journal
from infra.ledger.op import FAILED, TERMINATED, Op
from infra.ledger.reconcile import reconcile
from infra.machines import host_memory
from infra.machines.survey import same_gpu
from infra.names import random_word, run_name
from infra.providers import LAG_S, Market
from infra.records import Offer, Pod, Request
from infra.runs import boot, observation, pods
from infra.runs import launch as runs_launch
from infra.runs.acceptance import terms_for
from infra.runs.renting import Terms
from infra.runs.throttling import Throttling
from infra.runs.timing import Say, stage
from infra.settings import Settings
from infra.transport.host_keys import HostKeyMismatch
from infra.transport.protocol import Transport
from infra.transport.ssh import Ssh
from infra.units import duration
from packs.drill.control import clauses
from packs.drill.control.evidence import (
    LEAVERS,
    SPOT,
    STRAY,
    TIMED,
    WORKER,
    DrillObservations,
    Evidence,
    SelfDelete,
    Trial,
    Vendor,
)
from packs.drill.control.planning import Planned, work_of
from packs.drill.control.watch import Watch
from store.run_sync.run_folder import MANIFEST, RunFolder, by_folder

TIMER_S = 600.0  # time limit of the TIMED machine
# Deadline for the verdict of the work: `WORK_S` by the vendor's clock, at least `LEAST_WORK_S` of local time.
WORK_S, LEAST_WORK_S = 900.0, 180.0
# Time for which the drill polls listings to find a duplicate machine or a missing pod.
DOUBLE_S = 30.0
POLL_S, LEAST_POLL_S = 5.0, 0.2
# Patience with a deletion: `PATIENCE_S` by the vendor's clock, at least `LEAST_PATIENCE_S` of local time.
PATIENCE_S, LEAST_PATIENCE_S = 150.0, 45.0
# Observation delay in local time: replies in transit, or process start-up in a rehearsal.
LATE_S, REHEARSED_LATE_S = 5.0, 60.0
MOST_DELETIONS = 3
CUT = "by the end of the connection"  # answer text when the connection ends before a status arrives
ASK_AGAIN_S = 60.0  # retry interval for unanswered calls, by the vendor's clock
# Sends a self-termination request from the pod with the guard's own code and prints the result.
LEAVE = """
import json, os, sys
from infra.agent.job import Call
from infra.agent.lifecycle import self_terminate
for words in self_terminate.attempt([Call(**json.loads(sys.argv[1]))], os.getpid()):
    print(words.rpartition(": ")[2])
"""


@dataclass
class Drill:
    """State of a drill. `run` is the only entry point; the stage methods are private."""

    planned: Planned
    settings: Settings
    journal: Journal
    tell: Say
    # Hold the worker without work; skips the clauses log, checkpoint and self-end.
    is_light: bool = False
    trials: tuple[str, ...] = ()  # trials to run; () = all planned trials
    watch: Watch = field(init=False)
    runs: dict[str, str] = field(default_factory=dict)  # run name per trial
    failures: dict[str, str] = field(default_factory=dict)  # failure message per trial
    has_ssh: bool = True  # False for an extension without SSH
    ground: DrillObservations = DrillObservations()
    self_deletes: tuple[SelfDelete, ...] = ()
    creates: int | None = None
    spot_in_v2: bool | None = None
    offer: Offer = field(init=False)  # offer for the next machine
    offers: dict[str, Offer] = field(default_factory=dict)  # offer used per trial

    def __post_init__(self) -> None:
        self.watch = Watch(self.planned.vendor)
        self.offer = self.planned.offers[0]
        stem = f"drill-{self.planned.vendor.name}"
        name = run_name([op.run for op in self.journal.ops()], stem)
        wanted = [one for one in self.planned.trials if not self.trials or one in self.trials]
        self.runs = {one: name if one == WORKER else f"{name}-{one}" for one in wanted}

    @property
    def scale(self) -> float:
        return self.planned.vendor.clock_scale

    def run(self) -> Evidence:
        """Run all planned trials, end every rented machine and return the evidence."""
        problems: list[str] = []
        with self.watch.record_traffic():
            try:
                self.watch.read_price(self.offer, self.planned.request)
                for trial, stage_of in (
                    (TIMED, self._begin_timed),
                    (WORKER, self._run_worker),
                    (STRAY, self._lose_reply),
                    (LEAVERS[0], self._test_self_deletes),
                    (SPOT, self._rent_spot),
                ):
                    if trial in self.runs:
                        self._try(trial, stage_of)
                if TIMED in self.runs:
                    self._try(TIMED, self._await_timer)
            finally:
                with defer_interrupts("the drill is ending the machines", self.tell):
                    problems += self._end_all()
            with contextlib.suppress(SlipwayError):  # The watch records the failure for the clauses.
                self.watch.list()
            self._await_answers()
        if problems:
            self.tell("; ".join(problems))
        return self.evidence()

    def evidence(self) -> Evidence:
        """Return the evidence collected so far."""
        can, theirs = self.planned.vendor.documented, self.planned.vendor
        vendor = Vendor(
            name=theirs.name,
            time_limit=can.time_limit,
            time_grain_s=can.time_grain_s,
            spend_limit=can.spend_limit,
            tells_limits=can.tells_limits,
            resets_timer=can.resets_timer,
            self_terminate=can.self_terminate,
            start_timer=can.start_timer,
            spot=can.spot,
            tells_bills=can.tells_bills,
            has_ssh=self.has_ssh,
            self_deletes=tuple(map(call_name, theirs.self_terminate_calls)),
            slack_s=max(spend.VENDOR_LATE_S, boot.LATE_S * self.scale),
            late_s=self._late_s,
            clock_scale=self.scale,
        )
        trials = tuple(self._trial(name, op) for name in self.runs if (op := self._row(name)))
        return Evidence(
            vendor=vendor,
            calls=tuple(self.watch.calls),
            trials=trials,
            ground=self.ground,
            creates=self.creates,
            throttled=self.watch.throttled,
            unknown_refusals=tuple(self.watch.unknown_refusals),
            slices=tuple(self.watch.slices.values()),
            self_deletes=self.self_deletes,
            spot_in_v2=self.spot_in_v2,
        )

    # Stages.

    def _begin_timed(self) -> None:
        limits, self.offers[TIMED] = replace(self.planned.limits, time_s=TIMER_S), self.offer
        self._rent(self._request(TIMED), self.offer, self._hold(TIMED, limits))

    def _run_worker(self) -> None:
        word = f"drilled-{random_word(12)}"
        op = self._start(word)
        guard, host_key = self._guard(op), self._host_key(op)
        self.ground = replace(self.ground, machine=self._machine(op), guard=guard, host_key=host_key)
        if not self.is_light:
            self._await_verdict(op)
            self.ground = replace(self.ground, log=self._log(op, word), checkpoint=self._checkpoint(op))
        self._poll(DOUBLE_S, lambda: False)  # Check that the pod stays listed.
        self._ask_bill(op)
        if self.planned.vendor.self_terminate_calls and not self.is_light:
            self._await_absence(op, clauses.SELF_TERMINATE_S + self._late_s)
        self._end(op)
        self._ask_bill(op)

    def _lose_reply(self) -> None:
        seen = self.evidence()
        worker = seen.trial(WORKER)
        if worker is None or {clauses.token(seen).state, clauses.listing(seen).state} != {clauses.KEPT}:
            raise SlipwayError("the listing did not show the worker's token in time, so a machine could be lost")
        before, self.watch.discards_next_reply, self.offers[STRAY] = self.watch.creates, True, self.offer
        try:
            with stage("rent, and lose the answer", self.tell):
                op = self._rent(self._request(STRAY), self.offer, self._hold(STRAY, self.planned.limits))
        finally:
            self.watch.discards_next_reply, self.creates = False, self.watch.creates - before
        self._poll(DOUBLE_S, lambda: False)
        self._ask_bill(op)
        self._end(op)
        self._ask_bill(op)

    def _test_self_deletes(self) -> None:
        """Test every self-delete request of the vendor on a pod.

        A pod surviving one request also tests the next request.
        """
        terms = terms_for(self.settings, self.planned.vendor, unchecked=True)
        leavers, op = list(LEAVERS), None
        for call in self.planned.vendor.self_terminate_calls:
            if op is None:
                if not leavers:
                    return
                name = leavers.pop(0)
                self.offers[name] = self.offer
                op = self._rent_held_pod(name, self.offer, terms)
            with stage(f"the pod deletes itself by {call_name(call)}", self.tell):
                answer = self._send_self_delete(op, call)
                if answer.startswith("2") or answer == CUT:
                    self._await_absence(op, clauses.DELETED_S + self._late_s)
            is_gone = self._is_absent(op)
            self.self_deletes += (SelfDelete(name=call_name(call), answer=answer, is_gone=is_gone),)
            op = None if is_gone else op
        if op is not None:
            self._end(op)

    def _send_self_delete(self, op: Op, call: Call) -> str:
        """Send a self-delete request from the pod.

        Return the HTTP status, `CUT` if the connection ended first, or the exit code of a silent process.
        """
        pod, way = observation.folder_of(op), self._transport(op)
        try:
            done = way.run(
                [way.python, "-c", LEAVE, json.dumps(asdict(call))],
                timeout_s=boot.COMMAND_S,
                env={"PYTHONPATH": str(pod.code)},
            )
        except SlipwayError:  # The pod's deletion closes the connection.
            return CUT
        return done.stdout.strip() or f"nothing: exit code {done.exited}"

    def _rent_spot(self) -> None:
        offer = self.planned.spot[0]
        self.offers[SPOT] = offer
        request = replace(self._request(SPOT), spot=True)
        op = self._rent(request, offer, self._hold(SPOT, self.planned.limits))
        self._poll(LAG_S + self._late_s, lambda: self._is_listed(op))
        self._poll(DOUBLE_S, lambda: False)  # Check that the pod stays listed.
        with contextlib.suppress(SlipwayError):  # On failure the value stays None.
            self.spot_in_v2 = self.watch.as_market.lists_spot_pod(op.remote_id or "") if self._is_listed(op) else None
        self._end(op)
        self._ask_bill(op)

    def _await_answers(self) -> None:
        """Retry calls without any answer so far, for about an hour or until Ctrl-C.

        All machines are already ended at this point.
        """
        began_at = self.planned.vendor.now()
        pending = clauses.unanswered(self.evidence())
        if not pending:
            return
        self.tell(
            f"all machines have ended; {self.planned.vendor.name} has not answered yet: "
            f"{', '.join(pending)}. The drill asks again for {duration(clauses.ANSWER_S)}; Ctrl-C stops "
            "the waiting"
        )
        with contextlib.suppress(KeyboardInterrupt):
            while pending and self.planned.vendor.now() - began_at < clauses.ANSWER_S + ASK_AGAIN_S:
                time.sleep(ASK_AGAIN_S / self.scale)
                for verb in pending:
                    self._ask_again(verb)
                pending = clauses.unanswered(self.evidence())

    def _ask_again(self, verb: str) -> None:
        rented = [op for one in self.runs if (op := self._row(one)) and op.remote_id]
        with contextlib.suppress(SlipwayError):  # The watch records the failure.
            if verb == "catalog":
                self.watch.read_price(self.offer, self.planned.request)
            elif verb == "list":
                self.watch.list()
            elif verb == "find" and rented:
                self.watch.find(rented[0].remote_id or "")
            elif verb == "billed" and rented:
                self.watch.billed(rented[0].remote_id or "")

    def _await_timer(self) -> None:
        op = self._row(TIMED)
        if op is None or not op.is_live:
            return
        made = next(one for one in self.watch.calls if one.verb == "create" and one.word == op.token)
        left_s = made.began_at + TIMER_S + self.evidence().vendor.slack_s + self._late_s - self.planned.vendor.now()
        with stage("wait for the vendor's timer", self.tell):
            self._await_absence(op, left_s)

    # Helpers of the trials.

    def _start(self, word: str) -> Op:
        """Start the worker on the first working offer and return the operation.

        Raise SlipwayError if every offer fails.
        """
        terms, tried = terms_for(self.settings, self.planned.vendor, unchecked=True), 0  # a slow disk is acceptable
        for offer in self.planned.offers:
            self.offer, self.offers[WORKER], tried = offer, offer, tried + 1
            # Later offers need two look-ups for the price comparison; the first offer was looked up before renting.
            for _ in range(min(tried, 2)):
                self.watch.read_price(offer, self.planned.request)
            try:
                return self._rent_held_pod(WORKER, offer, terms) if self.is_light else self._launch(offer, word, terms)
            except NoOffer:
                row = self._row(WORKER)
                if tried == len(self.planned.offers) or (row and row.state != FAILED):
                    raise
        raise AssertionError("there is one offer at least")

    def _launch(self, offer: Offer, word: str, terms: Terms) -> Op:
        limits = self.planned.limits
        work = work_of(word).plan(self.settings, self._request(WORKER), self.planned.vendor, limits)
        assert work.job is not None
        secrets = job_environment.secrets_for(work.job.secrets, self.settings)
        work = replace(work, target="")  # Without a target, the work counts as new at every vendor.
        return runs_launch.start(work, [offer], self._vendors, self.journal, ROOT, secrets, self.tell, terms)

    def _rent_held_pod(self, trial: str, offer: Offer, terms: Terms) -> Op:
        request, limits = self._request(trial), self.planned.limits
        return runs_launch.hold(request, limits, [offer], self._vendors, self.journal, self.tell, terms, self.scale)

    def _rent(self, request: Request, offer: Offer, job: Job) -> Op:
        """Rent a machine without waiting for boot; pause and retry on a rate limit as a launch does."""
        throttling = Throttling(self.tell)
        while True:
            try:
                return pods.rent(self.watch.as_market, request, offer, job, self.journal)
            except RateLimited as error:
                if not throttling.wait_for_retry(self.watch.as_market, offer.offer_id, error):
                    raise

    def _vendors(self, _: str) -> Market:
        return self.watch.as_market

    def _guard(self, op: Op) -> str:
        """Return the problem with the guard of a pod, or "" if the guard is alive with the right token and limits."""
        try:
            said = observation.query_agent(op, self._transport(op))["guard"]
        except SlipwayError as error:
            return f"not heard: {error}"
        if not (said.get("alive") and said.get("armed")):
            return "dead" if not said.get("alive") else "not armed"
        limits, mine = said["limits"], op.read_job().limits
        told = (said["token"], limits["time_s"], limits["spend_micro_usd"])
        return "" if told == (op.token, mine.time_s, mine.spend_micro_usd) else f"the guard has other limits: {told}"

    def _machine(self, op: Op) -> str:
        """Return the difference between the pod's GPUs and the GPUs of the offer, or "" if both match."""
        way = self._transport(op)
        try:
            facts = host_memory.ask(way, way.python, "facts")
        except SlipwayError as error:
            return f"not heard: {error}"
        found, offer = [one["name"] for one in facts["gpus"]], self.offers[WORKER]
        is_same = len(found) == offer.num_gpus and all(same_gpu(offer.gpu, one) for one in found)
        return "" if is_same else f"{', '.join(found) or 'no GPU'} instead of {offer.num_gpus} x {offer.gpu}"

    def _host_key(self, op: Op) -> str | None:
        """Return the problem with a second SSH connection, "" for an unchanged host key, or None without SSH."""
        way = self.planned.vendor.reach(observation.pod_of(op))
        if not isinstance(way, Ssh):
            self.has_ssh = False
            return None
        try:
            with Ssh(way.address, way.known_hosts) as second:
                second.run(["true"], timeout_s=boot.COMMAND_S)
        except HostKeyMismatch:
            return "another host key"
        except SlipwayError as error:
            return f"no second connection: {error}"
        return ""

    def _await_verdict(self, op: Op) -> None:
        """Wait for the verdict of the work. Raise SlipwayError on a failure or after the deadline."""
        deadline = time.monotonic() + max(LEAST_WORK_S, WORK_S / self.scale)
        with stage("work", self.tell):
            while time.monotonic() < deadline:
                if verdict := observation.verdict_of(op, self._transport(op)):
                    if verdict["state"] != "succeeded":
                        raise SlipwayError(f"the work has {verdict['state']}: {verdict['reason']}")
                    return
                time.sleep(self._poll_s)
        raise SlipwayError("the work had no verdict in time")

    def _log(self, op: Op, word: str) -> str:
        try:
            said = RunFolder(op.store, op.run).read("logs/run.log").decode(errors="replace")
        except FileNotFoundError:
            return "the store has no logs/run.log of the work"
        return "" if word in said else "logs/run.log in the store lacks the output of the work"

    def _checkpoint(self, op: Op) -> str:
        folder = RunFolder(op.store, op.run)
        found = [one for names in by_folder(folder.file_sizes()).values() for one in names]
        return folder.problem(found[0]) if found else f"the store has no {MANIFEST} of the work"

    def _ask_bill(self, op: Op) -> None:
        with contextlib.suppress(SlipwayError):  # The watch records a missing answer.
            self.watch.billed(op.remote_id or "")

    def _await_absence(self, op: Op, within_s: float) -> None:
        """Poll listings until a pod is gone or `within_s` seconds by the vendor's clock have passed."""
        self._poll(within_s, lambda: self._is_absent(op))

    def _is_absent(self, op: Op) -> bool:
        with contextlib.suppress(SlipwayError):  # Without an answer, the pod does not count as gone.
            return all(not self._belongs_to(pod, op) for pod in self.watch.list())
        return False

    def _is_listed(self, op: Op) -> bool:
        last = self.watch.calls[-1]
        return last.verb == "list" and any(self._belongs_to(pod, op) for pod in last.pods)

    def _poll(self, within_s: float, is_over: Callable[[], bool]) -> None:
        deadline = time.monotonic() + within_s / self.scale
        while time.monotonic() < deadline and not is_over():
            time.sleep(self._poll_s)
            with contextlib.suppress(SlipwayError):  # The watch records the failure; the next poll retries.
                self.watch.list()

    def _end(self, op: Op) -> Op:
        """Delete a pod until the deletion is proven.

        Raise SlipwayError after `MOST_DELETIONS` attempts. A machine without a known id gets further attempts until the
        latest time at which the machine can appear.
        """
        patience_s = max(LEAST_PATIENCE_S, PATIENCE_S / self.scale)
        # Latest time at which a machine with a lost reply can appear.
        turns_up_by = time.monotonic() + self.planned.vendor.settle_s + patience_s
        tries = 0
        while True:
            now, tries = self.journal.op(op.token), tries + 1
            try:
                return pods.end(self.watch.as_market, now, self.journal, "the drill has seen it", patience_s=patience_s)
            except SlipwayError:
                if tries >= MOST_DELETIONS and (now.remote_id or time.monotonic() > turns_up_by):
                    raise
            with contextlib.suppress(SlipwayError):  # The next round retries.
                # Also end other machines of the same token, such as the machine with the lost reply.
                reconcile(self.watch.as_market, self.journal)
            time.sleep(self._poll_s)

    def _end_all(self) -> list[str]:
        """End all live machines of the drill and return the error messages of failed deletions."""
        problems = []
        for op in [op for op in self.journal.ops(live=True) if op.run in self.runs.values()]:
            try:
                self._end(op)
            except Exception as error:  # An error on one machine must not stop the cleanup of the others.
                problems.append(str(error))
        return problems

    def _try(self, trial: str, stage_of: Callable[[], None]) -> None:
        try:
            stage_of()
        except SlipwayError as error:  # The clauses judge the failure.
            self.failures[trial] = str(error).removeprefix(f"{self.runs[trial]}: ")
            self.tell(f"{self.runs[trial]}: {self.failures[trial]}")

    # Small helpers.

    @property
    def _late_s(self) -> float:
        return (REHEARSED_LATE_S if self.settings.rehearsal else LATE_S) * self.scale

    @property
    def _poll_s(self) -> float:
        return max(LEAST_POLL_S, POLL_S / self.scale)

    def _request(self, trial: str) -> Request:
        return replace(self.planned.request, run=self.runs[trial])

    def _hold(self, trial: str, limits: Limits) -> Job:
        return Job(run=self.runs[trial], token="", steps=(), kind="hold", limits=limits, clock_scale=self.scale)

    def _transport(self, op: Op) -> Transport:
        return self.watch.reach(observation.pod_of(op))

    def _row(self, trial: str) -> Op | None:
        return next(iter(self.journal.ops(run=self.runs[trial])[::-1]), None)

    @staticmethod
    def _belongs_to(pod: Pod, op: Op) -> bool:
        return pod.token == op.token or bool(pod.pod_id) and pod.pod_id == op.remote_id

    def _trial(self, name: str, op: Op) -> Trial:
        counted = spend.spent(op, read_clocks(), self.scale)
        return Trial(
            name=name,
            token=op.token,
            pod_id=op.remote_id or "",
            offer=self.offers[name],
            run=op.run,
            ledger_micro_usd=counted,
            is_gone=op.state in (TERMINATED, FAILED),
            failure=self.failures.get(name, ""),
        )


def call_name(call: Call) -> str:
    """Return the name of a self-delete request: HTTP method and path without ids."""
    return f"{call.method} {re.sub(r'/[{][A-Z_]+[}]', '', urlsplit(call.url).path)}"
