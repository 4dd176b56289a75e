"""A drill: the first contact with a vendor, whose promises are tried on machines of its own before work relies on them.

    plan -> Drill.run -> Evidence -> infra.drill.clauses.judge -> Report

In: a vendor with a key, an amount of money. Out: the evidence, and a journal in which everything is ended again. What
rents, reaches, guards, saves and ends is the code of every launch; a recorder stands between it and the vendor. `inv
drill` asks before it begins.

Up to three machines, each of the cheapest offer: the worker is rented as by a launch, does a minute's work and ends as
finished work does; the answer to the stray's request is thrown away; and where a vendor does not show the timer that
it has armed, one machine is left to it.
"""

import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from flows.jobs.work import JobWork
from infra import job_environment
from infra.agent.job import Job, Limits
from infra.agent.limits import read_clocks
from infra.checkout import ROOT
from infra.drill import clauses
from infra.drill.evidence import STRAY, TIMED, WORKER, Evidence, Ground, Trial, Vendor
from infra.drill.watch import Watch
from infra.errors import NoOffer, SlipwayError, UsageError
from infra.interrupts import finishing
from infra.jobs import job_file
from infra.ledger import spend
from infra.ledger.journal import Journal
from infra.ledger.life_cycle import FAILED, TERMINATED
from infra.ledger.op import Op
from infra.ledger.reconcile import reconcile
from infra.machines.survey import same_gpu
from infra.names import random_word, run_name
from infra.providers import Market, market, registry
from infra.records import Offer, Pod, Request
from infra.runs import boot, pods, sight
from infra.runs import launch as street
from infra.runs.acceptance_policy import terms_for
from infra.runs.launch import Terms
from infra.runs.settle import settle
from infra.runs.timing import Say, stage
from infra.selection import choose, preflight
from infra.settings import VENDORS, Settings
from infra.transport.host_keys import StrangeHost
from infra.transport.protocol import Transport
from infra.transport.ssh import Ssh
from store.artifacts.artifacts import Store
from store.run_sync.run_folder import MANIFEST, RunFolder, by_folder

LIMIT_S = 4 * 3600.0  # time limit of each machine: a backstop, the drill itself takes minutes
TIMER_S = 600.0  # time limit of the machine that is left to its vendor's timer
EXPECTED_S = 900.0  # time for which a machine exists, as a rule
MOST_OFFERS = 3  # tried for the worker, where others are faster
WORK_S, LEAST_WORK_S = 900.0, 180.0  # time until the work has its verdict, by the vendor's clock and by ours
DOUBLE_S = 30.0  # time for which listings are watched: for a second machine of one request, and for one left out
POLL_S, LEAST_POLL_S = 5.0, 0.2
PATIENCE_S, LEAST_PATIENCE_S = 150.0, 45.0  # with one deletion, likewise
LATE_S, REHEARSED_LATE_S = 5.0, 60.0  # by our clock: delay of an answer, and of the processes of a rehearsal
MOST_DELETIONS = 3
SMI = ("nvidia-smi", "--query-gpu=name", "--format=csv,noheader")
WORK = """python - <<'END'
from slipway import checkpoint
checkpoint.Saver("drill").save({{"word": "{word}"}}, 1)
print("{word}", flush=True)
END
"""


@dataclass(frozen=True, kw_only=True)
class Planned:
    """The machines that a drill would rent, and the most that they would cost."""

    vendor: Market
    request: Request
    offers: tuple[Offer, ...]
    trials: tuple[str, ...]
    limits: Limits
    """Limits of each machine."""

    @property
    def expected_micro_usd(self) -> int:
        return round(len(self.trials) * EXPECTED_S * self.offers[0].micro_usd_per_hour / 3600)

    @property
    def most_micro_usd(self) -> int:
        return len(self.trials) * (self.limits.spend_micro_usd or 0)


def plan(provider: str, gpu: str, spend_micro_usd: int, journal: Journal, settings: Settings, tell: Say) -> Planned:
    """Return what a drill would rent; nothing is rented yet. Raises UsageError, NoOffer, OutOfMoney, AuthError."""
    if provider not in VENDORS:
        raise UsageError(f"--provider {provider or '(none)'}: a drill is of one vendor: {', '.join(VENDORS)}")
    if not settings.rehearsal and "://" not in settings.store:
        raise UsageError(
            f"the drill's log and checkpoint would go to {settings.store}, which no rented machine can reach; "
            "give a store off the pod: --store hf://user/repo, s3://bucket/folder or gs://bucket/folder"
        )
    Store(settings.store).check_writable()
    settle(journal, settings, tell)
    vendor = market(registry.provider(settings, provider))
    assert vendor is not None, provider
    request = Request(run="new", provider=provider, gpu=gpu, num_gpus=1)
    offers = choose.payable(choose.find([vendor], request, settings, tell), 1, settings, tell)
    trials = (WORKER, STRAY) if vendor.can.tells_limits else (TIMED, WORKER, STRAY)
    limits = Limits(time_s=LIMIT_S, spend_micro_usd=spend_micro_usd // len(trials))
    found = Planned(vendor=vendor, request=request, offers=tuple(offers[:MOST_OFFERS]), trials=trials, limits=limits)
    work = _work("word").plan(settings, request, vendor, limits)
    lasting = preflight.lasting(work, found.offers, settings)
    return replace(found, offers=tuple(lasting))


@dataclass
class Drill:
    """One drill. `stages` of it may be called by nobody but `run`."""

    planned: Planned
    settings: Settings
    journal: Journal
    tell: Say
    is_light: bool = False  # the worker is held, and gets no work: all but log, checkpoint and self-end is tried
    watch: Watch = field(init=False)
    runs: dict[str, str] = field(default_factory=dict)  # names of runs by trial
    failures: dict[str, str] = field(default_factory=dict)  # likewise
    ground: Ground = Ground()
    creates: int | None = None
    offer: Offer = field(init=False)  # the offer of the next machine
    offers: dict[str, Offer] = field(default_factory=dict)  # the requested offers by trial

    def __post_init__(self) -> None:
        self.watch = Watch(self.planned.vendor)
        self.offer = self.planned.offers[0]
        stem = f"drill-{self.planned.vendor.name}"
        name = run_name([op.run for op in self.journal.ops()], stem)
        self.runs = {one: name if one == WORKER else f"{name}-{one}" for one in self.planned.trials}

    @property
    def scale(self) -> float:
        return self.planned.vendor.clock_scale

    def run(self) -> Evidence:
        """Carry the drill out, and end all that it has rented whatever happens."""
        problems: list[str] = []
        with self.watch.listening():
            try:
                self.watch.look_at(self.offer, self.planned.request)
                for trial, stage_of in ((TIMED, self._begin_timed), (WORKER, self._work), (STRAY, self._lose_reply)):
                    if trial in self.runs:
                        self._try(trial, stage_of)
                if TIMED in self.runs:
                    self._try(TIMED, self._await_timer)
            finally:
                with finishing("the machines of the drill are being ended", self.tell):
                    problems += self._end_all()
            with contextlib.suppress(SlipwayError):  # the watch records the failure, and the clauses judge it
                self.watch.list()
        if problems:
            self.tell("; ".join(problems))
        return self.evidence()

    def evidence(self) -> Evidence:
        """Return the evidence so far."""
        can = self.planned.vendor.can
        vendor = Vendor(
            name=self.planned.vendor.name, time_limit=can.time_limit, time_grain_s=can.time_grain_s,
            spend_limit=can.spend_limit, tells_limits=can.tells_limits, self_terminate=can.self_terminate,
            slack_s=max(spend.VENDOR_LATE_S, boot.LATE_S * self.scale), late_s=self._late_s, clock_scale=self.scale,
        )  # fmt: skip
        trials = tuple(self._trial(name, op) for name in self.runs if (op := self._row(name)))
        return Evidence(
            vendor=vendor, asked=tuple(self.watch.asked), trials=trials, ground=self.ground, creates=self.creates
        )

    # The stages.

    def _begin_timed(self) -> None:
        limits, self.offers[TIMED] = replace(self.planned.limits, time_s=TIMER_S), self.offer
        pods.rent(self.watch.as_market, self._request(TIMED), self.offer, self._hold(TIMED, limits), self.journal)

    def _work(self) -> None:
        word = f"drilled-{random_word(12)}"
        op = self._start(word)
        guard, host_key = self._guard(op), self._host_key(op)
        self.ground = replace(self.ground, machine=self._machine(op), guard=guard, host_key=host_key)
        if not self.is_light:
            self._await_verdict(op)
            self.ground = replace(self.ground, log=self._log(op, word), checkpoint=self._checkpoint(op))
        self._poll(DOUBLE_S, lambda: False)  # does it stay in the listing?
        self._ask_bill(op)
        if self.planned.vendor.farewell and not self.is_light:
            self._await_absence(op, clauses.FAREWELL_S + self._late_s)
        self._end(op)
        self._ask_bill(op)

    def _lose_reply(self) -> None:
        seen = self.evidence()
        worker = seen.trial(WORKER)
        if worker is None or {clauses.token(seen).state, clauses.listing(seen).state} != {clauses.KEPT}:
            raise SlipwayError("the listing has not shown the worker's token in time, so it might not be found again")
        before, self.watch.is_losing, self.offers[STRAY] = self.watch.creates, True, self.offer
        try:
            with stage("rent, and lose the answer", self.tell):
                op = pods.rent(self.watch.as_market, self._request(STRAY), self.offer,
                               self._hold(STRAY, self.planned.limits), self.journal)  # fmt: skip
        finally:
            self.watch.is_losing, self.creates = False, self.watch.creates - before
        self._poll(DOUBLE_S, lambda: False)
        self._ask_bill(op)
        self._end(op)
        self._ask_bill(op)

    def _await_timer(self) -> None:
        op = self._row(TIMED)
        if op is None or not op.is_live:
            return
        made = next(one for one in self.watch.asked if one.verb == "create" and one.word == op.token)
        left_s = made.began_at + TIMER_S + self.evidence().vendor.slack_s + self._late_s - self.planned.vendor.now()
        with stage("wait for the vendor's timer", self.tell):
            self._await_absence(op, left_s)

    # Parts of the trials.

    def _start(self, word: str) -> Op:
        """Return the worker at its work. Raises SlipwayError when none of the offers will do."""
        terms, tried = terms_for(self.settings, self.planned.vendor, unchecked=True), 0  # a slow disk is no promise
        for offer in self.planned.offers:
            self.offer, self.offers[WORKER], tried = offer, offer, tried + 1
            self.watch.look_at(offer, self.planned.request)
            try:
                return self._hold_worker(offer, terms) if self.is_light else self._launch(offer, word, terms)
            except NoOffer:
                row = self._row(WORKER)
                if tried == len(self.planned.offers) or (row and row.state != FAILED):
                    raise
        raise AssertionError("there is one offer at least")

    def _launch(self, offer: Offer, word: str, terms: Terms) -> Op:
        limits = self.planned.limits
        work = _work(word).plan(self.settings, self._request(WORKER), self.planned.vendor, limits)
        assert work.job is not None
        secrets = job_environment.secrets_for(work.job.secrets, self.settings)
        work = replace(work, target="")  # the same work at another vendor is another drill
        return street.start(work, [offer], self._vendors, self.journal, ROOT, secrets, self.tell, terms)

    def _hold_worker(self, offer: Offer, terms: Terms) -> Op:
        request, limits = self._request(WORKER), self.planned.limits
        return street.hold(request, limits, [offer], self._vendors, self.journal, self.tell, terms, self.scale)

    def _vendors(self, _: str) -> Market:
        return self.watch.as_market

    def _guard(self, op: Op) -> str:
        """Return what is wrong with the guard of a pod, "" when nothing is."""
        try:
            said = sight.ask(op, self._way(op))["guard"]
        except SlipwayError as error:
            return f"not heard: {error}"
        if not (said.get("alive") and said.get("armed")):
            return "dead" if not said.get("alive") else "not armed"
        limits, mine = said["limits"], op.read_job().limits
        told = (said["token"], limits["time_s"], limits["spend_micro_usd"])
        return "" if told == (op.token, mine.time_s, mine.spend_micro_usd) else f"it has other limits: {told}"

    def _machine(self, op: Op) -> str:
        """Return what a pod has instead of the GPUs of its offer, "" when it has those."""
        try:
            done = self._way(op).run(SMI, timeout_s=boot.COMMAND_S)
        except SlipwayError as error:
            return f"not heard: {error}"
        found, offer = done.stdout.split("\n")[:-1], self.offers[WORKER]
        is_same = len(found) == offer.num_gpus and all(same_gpu(offer.gpu, one) for one in found)
        return "" if is_same else f"{', '.join(found) or 'no GPU'} instead of {offer.num_gpus} x {offer.gpu}"

    def _host_key(self, op: Op) -> str:
        """Return what a second connection to a pod has met, "" for the host key of the first."""
        way = self.planned.vendor.reach(pods.pod_of(op))
        assert isinstance(way, Ssh), way
        try:
            with Ssh(way.address, way.known_hosts) as second:
                second.run(["true"], timeout_s=boot.COMMAND_S)
        except StrangeHost:
            return "another host key"
        except SlipwayError as error:
            return f"no second connection: {error}"
        return ""

    def _await_verdict(self, op: Op) -> None:
        """Wait until the work is over. Raises SlipwayError when it has not succeeded in time."""
        deadline = time.monotonic() + max(LEAST_WORK_S, WORK_S / self.scale)
        with stage("work", self.tell):
            while time.monotonic() < deadline:
                if verdict := sight.verdict_of(op, self._way(op)):
                    if verdict["state"] != "succeeded":
                        raise SlipwayError(f"its work has {verdict['state']}: {verdict['reason']}")
                    return
                time.sleep(self._poll_s)
        raise SlipwayError("its work had no verdict in time")

    def _log(self, op: Op, word: str) -> str:
        try:
            said = RunFolder(op.store, op.run).read("logs/run.log").decode(errors="replace")
        except FileNotFoundError:
            return "the store has no logs/run.log of it"
        return "" if word in said else "the store's logs/run.log lacks what the work has printed"

    def _checkpoint(self, op: Op) -> str:
        folder = RunFolder(op.store, op.run)
        found = [one for names in by_folder(folder.names()).values() for one in names]
        return folder.problem(found[0]) if found else f"the store has no {MANIFEST} of it"

    def _ask_bill(self, op: Op) -> None:
        with contextlib.suppress(SlipwayError):  # an absent answer is recorded as well
            self.watch.billed(op.remote_id or "")

    def _await_absence(self, op: Op, within_s: float) -> None:
        """Watch a pod leave by itself; within_s: by the vendor's clock."""

        def is_gone() -> bool:
            with contextlib.suppress(SlipwayError):  # without an answer it is not known to be gone
                return all(not self._is_of(pod, op) for pod in self.watch.list())
            return False

        self._poll(within_s, is_gone)

    def _poll(self, within_s: float, is_over: Callable[[], bool]) -> None:
        deadline = time.monotonic() + within_s / self.scale
        while time.monotonic() < deadline and not is_over():
            time.sleep(self._poll_s)
            with contextlib.suppress(SlipwayError):  # the watch records the failure; the next look asks again
                self.watch.list()

    def _end(self, op: Op) -> Op:
        """End a pod, by more than one deletion where one is not enough. Raises SlipwayError when it is not proven."""
        patience_s = max(LEAST_PATIENCE_S, PATIENCE_S / self.scale)
        turns_up_by = time.monotonic() + self.planned.vendor.settle_s + patience_s  # if the machine exists at all
        tries = 0
        while True:
            now, tries = self.journal.op(op.token), tries + 1
            try:
                return pods.end(self.watch.as_market, now, self.journal, "the drill has seen it", patience_s=patience_s)
            except SlipwayError:
                if tries >= MOST_DELETIONS and (now.remote_id or time.monotonic() > turns_up_by):
                    raise
            with contextlib.suppress(SlipwayError):  # the next round tries again
                # anything else with this token is ended too, such as the machine whose answer was lost
                reconcile(self.watch.as_market, self.journal)
            time.sleep(self._poll_s)

    def _end_all(self) -> list[str]:
        """End whatever is left; return what could not be ended, in words."""
        problems = []
        for op in [op for op in self.journal.ops(live=True) if op.run in self.runs.values()]:
            try:
                self._end(op)
            except Exception as error:  # an error about one machine must not keep the others from being ended
                problems.append(str(error))
        return problems

    def _try(self, trial: str, stage_of: Callable[[], None]) -> None:
        try:
            stage_of()
        except SlipwayError as error:  # the clauses judge the failure
            self.failures[trial] = str(error).removeprefix(f"{self.runs[trial]}: ")
            self.tell(f"{self.runs[trial]}: {self.failures[trial]}")

    # Helpers.

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

    def _way(self, op: Op) -> Transport:
        return self.watch.reach(pods.pod_of(op))

    def _row(self, trial: str) -> Op | None:
        return next(iter(self.journal.ops(run=self.runs[trial])[::-1]), None)

    @staticmethod
    def _is_of(pod: Pod, op: Op) -> bool:
        return pod.token == op.token or bool(pod.pod_id) and pod.pod_id == op.remote_id

    def _trial(self, name: str, op: Op) -> Trial:
        counted = spend.spent(op, read_clocks(), self.scale)
        return Trial(name=name, token=op.token, pod_id=op.remote_id or "", offer=self.offers[name], run=op.run,
                     ledger_micro_usd=counted, is_gone=op.state in (TERMINATED, FAILED),
                     failure=self.failures.get(name, ""))  # fmt: skip


def _work(word: str) -> JobWork:
    return JobWork(file=job_file.of_command(WORK.format(word=word), None), envs=({},), secrets={})
