"""A sweep at work: each pod takes the next trial as soon as it is free, until none is left.

A trial is a launch of its own, in a process that outlives this one, so that it is followed, kept and brought back as
any other. This process begins them, compares them, and stops those that are behind. It can be killed at any time:
whoever types the sweep again goes on, and no trial costs more than was set aside for it.
"""

import json
import signal
import subprocess
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from flows.history.why import of_run as story_of
from flows.reading import run_figures
from flows.runs.follow import DETACHED as DETACHED_CODE
from infra.agent.limits import read_clocks
from infra.errors import NoOffer, OutOfMoney, SlipwayError
from infra.flags import as_typed
from infra.ledger import budgets, spend
from infra.ledger.journal import Journal
from infra.money import dollars
from infra.runs import run_rows
from infra.runs.lookup import find_run
from infra.runs.run_home import RunHome
from infra.runs.settle import settle
from infra.runs.sync.mirror import is_home
from infra.runs.timing import Say
from infra.selection import registry
from infra.settings import Settings
from infra.units import count
from packs.sweeps.control.halving import Halving
from packs.sweeps.control.plan import SweepPlan, makings
from packs.sweeps.control.pods import PodsAtWork, needed, share_costs
from packs.sweeps.control.trials import ranking
from packs.sweeps.control.trials import results as kept
from packs.sweeps.control.trials.records import shown
from packs.sweeps.control.trials.results import SweepResult
from packs.sweeps.control.trials.resume_sweep import inv
from store.artifacts.artifacts import Store
from store.manifest import StoreError
from trainer.reporting import jsonl_log

POLL_S = 0.3
LOOK_S = {"local": 1.0}  # between two looks at the figures of a trial at work; elsewhere a connection is made
LOOK_ELSEWHERE_S = 15.0
SETTLE_EVERY_S = 5.0
MOST_BEGUN = 5  # times that a launch which died is begun again
REST_S = 300.0  # by the vendor's clock, for a pod's place in the sweep for which there was no machine


@dataclass
class TrialAtWork:
    """A trial at work."""

    run: str
    lane: int
    child: subprocess.Popen[bytes]
    said: Path
    log: Path
    looked_at: float = 0.0
    stopping: subprocess.Popen[bytes] | None = None
    stop_at: int | None = None
    recoveries: int = 0
    """Recoveries that have been told."""


@dataclass
class SweepWork:
    """All trials, those at work among them."""

    planned: SweepPlan
    result: SweepResult
    journal: Journal
    settings: Settings
    tell: Say
    halving: Halving | None = None
    told: dict[str, str] = field(default_factory=dict)
    """Reasons why trials that wait could not be paid yet."""
    running: dict[str, TrialAtWork] = field(default_factory=dict)
    begun: dict[str, int] = field(default_factory=dict)
    """Number of times that the launch of each trial has died."""
    settled_at: float = 0.0
    resting: dict[int, float] = field(default_factory=dict)
    """Times until which no trial starts on a lane while others are at work, as there was no machine for it."""
    is_leaving: bool = False
    pods: PodsAtWork | None = None
    """The pods that trials share, where they do."""

    def go(self) -> None:
        """Launch the trials until all have ended.

        KeyboardInterrupt: the launches have detached, and no further one begins.
        """
        self.result.write()
        try:
            while self._waiting() or self.running:
                self._reap()
                self._tell_recoveries()
                if self.pods:
                    self.pods.look(self._needed())
                    self._close_hopeless(self.pods)
                self._begin_what_may()
                self._compare()
                time.sleep(POLL_S)
        except BaseException:
            self._leave()
            raise
        finally:
            if self.pods:
                self.pods.leave(self._needed())
                self._share_costs()

    def _needed(self) -> set[str]:
        """Return the names of the pods that have work."""
        lanes, at_work = self.planned.lanes, {one.lane for one in self.running.values()}
        # One that was left behind at work needs its pod as well.
        left = [one.pod for one in self.result.trials.values() if one.state == kept.DETACHED]
        busy = {lanes[lane].host for lane in at_work} | {lane.host for lane in lanes if lane.pod in left}
        free = [number for number in range(len(lanes)) if number not in at_work]
        waiting = [] if self.is_leaving else self._waiting()
        return needed(lanes, free, busy, self.pods.ready() if self.pods else set(), waiting, self._fits)

    def _fits(self, run: str, lane: int) -> bool:
        """Return whether a trial may run on a lane: one of its pod if it has one, and the one where it already runs."""
        there, own = self.planned.lanes[lane], self.planned.trials[run].trial
        if self.pods is not None and self.planned.spec.pods:
            return own.run in there.runs
        live = next((op for op in self.journal.ops(live=True, run=run) if op.place), None)
        if live is None or not there.host:
            return True
        return there.host in (live.place, live.place.partition("/")[0]) and live.devices == there.devices

    def _close_hopeless(self, at_work: PodsAtWork) -> None:
        """Close the trials that wait for pods which are not to be had."""
        lost = at_work.given_up
        for run in self._waiting() if lost else ():
            hosts = {lane.host for number, lane in enumerate(self.planned.lanes) if self._fits(run, number)}
            if hosts <= lost.keys():
                self._close(run, kept.LIMIT, "; ".join(lost[host] for host in sorted(hosts)))

    def _share_costs(self) -> None:
        """Record for each trial the cost of its part of the pods that were shared."""
        assert self.planned.shared is not None
        now, scale = read_clocks(), self.settings.clock_scale if self.settings.rehearsal else 1.0
        share_costs(self.planned.shared, self.planned.lanes, self.result.trials, self.journal, now, scale)
        self.result.write()

    def _waiting(self) -> list[str]:
        return [run for run, one in self.result.trials.items() if one.state == kept.WAITING]

    def _begin_what_may(self) -> None:
        """Assign a trial to each free pod: one of its own queue, else the next that waits."""
        lanes = self.planned.lanes
        free = [number for number in range(len(lanes)) if number not in {one.lane for one in self.running.values()}]
        if self.pods:
            ready = self.pods.ready()
            free = [number for number in free if lanes[number].host in ready]
        if self.running:
            free = [number for number in free if self.resting.get(number, 0.0) <= time.monotonic()]
        for lane in free:
            waiting = [run for run in self._waiting() if self._fits(run, lane)]
            own = [run for run in lanes[lane].runs if run in waiting]
            others = [run for run in waiting if run not in own]
            run = next((run for run in (*own, *others) if self._may_begin(run)), "")
            if run:
                self._begin(run, lane)
        if self.planned.budget and not self.running and (left := self._waiting()) and self._is_all_spent():
            for run in left:
                self._close(run, kept.LIMIT, f"not begun: {self.told.get(run) or 'the limit does not cover it'}")

    def _is_all_spent(self) -> bool:
        """Return whether no running trial could free a part of the limit; pods that are over are ended."""
        found = budgets.state(self.journal, self.planned.budget, self.settings.clock_scale)
        live = [op.token for op in self.journal.ops(live=True) if op.budget_name == self.planned.budget]
        if live and time.monotonic() - self.settled_at > SETTLE_EVERY_S:
            settle(self.journal, self.settings, self.tell, live)
            self.settled_at = time.monotonic()
        return found.committed <= found.spent

    def _may_begin(self, run: str) -> bool:
        """Return whether a trial may start now; one that is not to start at all is closed."""
        if self.result.trials[run].state != kept.WAITING:
            return False
        if first := self._first_of_arm(run):
            ahead = self.result.trials[first]
            if ahead.state in (kept.STOPPED, kept.SKIPPED):
                self._close(run, kept.SKIPPED, f"its arm was stopped with another seed: {first}")
                return False
            if ahead.state in (kept.WAITING, kept.RUNNING):
                return False
        if self._is_being_made_elsewhere(run):
            return False
        return self._is_paid(run)

    def _is_paid(self, run: str) -> bool:
        """Reserve what a trial may cost; tell whether that could be done. Its own earlier cost is part of it."""
        if not self.planned.budget:
            return True
        most = self.planned.trials[run].most_micro_usd
        is_live = any(op.is_live for op in self.journal.ops(run=run))
        if most and not is_live and self._cost(run) >= most:
            self._close(run, kept.LIMIT, "its spend limit is used up")
            return False
        name, scale = self.planned.budget, self.settings.clock_scale
        found = budgets.state(self.journal, name, scale)
        most = most or (found.runs[run].reserved if run in found.runs else 0)  # at work: what it was begun with
        why = found.refusal(run, most)
        try:
            if not why:
                budgets.reserve(self.journal, name, run, most, scale)
        except OutOfMoney as error:  # another process was faster
            why = str(error)
        if why and self.told.get(run) != why:
            self.told[run] = why
            self._set(run, reason=f"waits: {why}")
        return not why

    def _first_of_arm(self, run: str) -> str:
        """Return the trial that decides for the arm of this one; "" for that one itself, and where none is stopped."""
        if self.halving is None:
            return ""
        first = self.planned.spec.arms[self.result.trials[run].arm][0].run
        return first if first != run else ""

    def _is_being_made_elsewhere(self, run: str) -> bool:
        """Return whether it would make an artifact that a running trial is making, which is made once and shared."""
        store, own = Store(self.settings.store), makings(self.planned.trials[run].plan).items()
        others = {item for one in self.running for item in makings(self.planned.trials[one].plan).items()}
        return any(not is_home(store, name, fingerprint) for name, fingerprint in own & others)

    def _begin(self, run: str, lane: int) -> None:
        one, berth = self.planned.trials[run], self.planned.lanes[lane]
        place = berth.pod
        on = ["--host", berth.host] if berth.host else []
        devices = one.trial.devices if self.pods is not None else berth.devices
        on += [f"--devices={devices or berth.devices}"] if devices or berth.devices else []
        on += ["--wait"] if on else []  # somebody else may have it just now: first come, first served
        env = [f"{name}={value}" for name, value in one.trial.env.items()]
        spec, paid = one.spec, list(self.planned.more)
        if self.planned.budget:
            if any(op.is_live for op in self.journal.ops(run=run)):
                # the run is joined, with the limit that it already has
                spec = replace(spec, spend_limit="")
            elif spec.spend_limit and one.most_micro_usd:  # earlier cost is part of what it may cost
                spec = replace(spec, spend_limit=dollars(one.most_micro_usd - self._cost(run)))
            paid += ["--budget", self.planned.budget]
        words = ["launch", "--provider", self.settings.provider, *on, *as_typed(spec), *paid]
        words += [word for name in (*self.settings.given, *env) for word in ("--env", name)]
        words += ["--run-name", run, "--keep-made", "--with-missing", "--yes", "--json"]
        home = RunHome.of(run, self.settings.homes)
        home.folder.mkdir(parents=True, exist_ok=True)
        self._say(run, "begins", place)
        with home.launch_answer.open("wb") as said, home.launch_log.open("ab") as log:
            child = subprocess.Popen(inv(words), stdin=subprocess.DEVNULL, stdout=said, stderr=log,
                                     start_new_session=True)  # fmt: skip
        self.running[run] = TrialAtWork(run, lane, child, home.launch_answer, home.launch_log,
                                        recoveries=self._recoveries(run))  # fmt: skip
        self._set(run, state=kept.RUNNING, pod=place, reason="")

    def _say(self, run: str, what: str, place: str = "") -> None:
        where = f"{place}: " if place else ""
        self.tell(f"{time.strftime('%H:%M:%S')} {where}{shown(run, self.result.name)} {what}")

    def _recoveries(self, run: str) -> int:
        rows = self.journal.ops(run=run)
        return rows[-1].recoveries if rows else 0

    def _tell_recoveries(self) -> None:
        """Say of each trial whose pod was taken away, or was silent, that it is brought back."""
        for run, one in self.running.items():
            if (now := self._recoveries(run)) > one.recoveries:
                one.recoveries = now
                self._say(run, f"is brought back ({count(now, 'time')} so far); see: inv why {run}")

    def _cause(self, run: str, reason: str) -> str:
        """Return why a trial has failed, as `inv why` says it; `reason` where nothing is on record."""
        rows = self.journal.ops(run=run)
        try:
            cause = story_of(rows[-1], self.journal, self.settings).cause if rows else None
        except SlipwayError:  # its pod cannot be read: what its launch said is all there is
            cause = None
        return f"{cause.name}: {cause.says}" if cause else reason

    def _reap(self) -> None:
        """Conclude the trials whose launches have left."""
        for run, one in list(self.running.items()):
            if one.child.poll() is None or (one.stopping and one.stopping.poll() is None):
                continue
            del self.running[run]
            document: Mapping[str, Any] = {}
            with suppress(ValueError):  # it died before it wrote anything: only its exit code is known
                document = json.loads(one.said.read_bytes())
            code = one.child.returncode
            if code == NoOffer.exit_code and self.running:
                self._rest(one, str(document.get("error") or "no machine is available"))
                continue
            is_unsaid = not document.get("state") and code != DETACHED_CODE and one.stop_at is None
            if is_unsaid and self._may_go_on(run, code):
                self._say(run, f"is started again: its launch exited with code {code} (see {one.log})")
                self._set(run, state=kept.WAITING, reason="its launch died, and is started again")
                continue
            state = document.get("state") or (kept.DETACHED if code == DETACHED_CODE else "failed")
            reason = document.get("reason") or document.get("error") or ""
            if code not in (0, DETACHED_CODE) and not reason:
                reason = f"its launch exited with code {code}; see {one.log}"
            steps = [step for step in document.get("steps") or () if isinstance(step, dict)]
            self._set(run, seconds=sum(step.get("elapsed_s") or 0.0 for step in steps))
            if one.stop_at is not None and state != kept.SUCCEEDED:
                state, reason = kept.STOPPED, f"behind after {one.stop_at} of {self.result.trials[run].steps} steps"
            elif state == "failed":
                reason = self._cause(run, reason)
            self._close(run, state, reason)

    def _rest(self, one: TrialAtWork, why: str) -> None:
        """Make a trial wait that got no machine: the machines of running trials are free for it later."""
        scale = self.settings.clock_scale if self.settings.rehearsal else 1.0
        self.resting[one.lane] = time.monotonic() + REST_S / scale
        if self.planned.budget:
            budgets.give_back(self.journal, self.planned.budget, one.run)
        self._set(one.run, state=kept.WAITING, pod="", reason=f"waits: {why.splitlines()[0]}")
        place = self.planned.lanes[one.lane].pod
        self._say(one.run, f"waits, as there is no machine for it: {why.splitlines()[0]}", place)

    def _may_go_on(self, run: str, code: int) -> bool:
        """Return whether a trial is at work, or was when its pod went, though nobody follows it any more.

        A launch that is begun again joins it, or goes on from its newest checkpoint; so does one that was killed (exit
        code below 0) before it had a pod. That is done a few times.
        """
        rows = self.journal.ops(run=run)
        self.begun[run] = self.begun.get(run, 0) + 1
        is_unfinished = not run_rows.is_over(rows[-1]) if rows else code < 0
        return is_unfinished and self.begun[run] <= MOST_BEGUN

    def _close(self, run: str, state: str, reason: str = "") -> None:
        """Write down how a trial has ended, with its figures and what it has cost."""
        found = self.result.trials[run]
        if state not in (kept.SKIPPED, kept.LIMIT):
            self._gather(run, state)
        cost = self._cost(run)
        if self.pods:
            self._share_costs()
        if self.planned.budget:
            budgets.give_back(self.journal, self.planned.budget, run)
        self._set(run, state=state, reason=reason)
        if self.pods is None:
            self._set(run, micro_usd=cost)
        if state == kept.STOPPED and found.seconds and found.at:
            rest = max(0, found.steps - found.at) / found.at
            self.result.saved_s += found.seconds * rest
            self.result.saved_micro_usd += round(cost * rest)
        if state == kept.SKIPPED and (first := self._first_of_arm(run)):
            ahead = self.result.trials[first]
            if ahead.seconds and ahead.at:
                self.result.saved_s += ahead.seconds * ahead.steps / ahead.at
                self.result.saved_micro_usd += round(ahead.micro_usd * ahead.steps / ahead.at)
        self.result.write()
        score = "" if found.score is None else f", {self.planned.spec.rank.by} {found.score:.4g}"
        self._say(run, f"{state}{score} {reason}".rstrip(), found.pod)

    def _gather(self, run: str, state: str) -> None:
        """Keep the figures of a trial that has ended, and score it."""
        found, content = self.result.trials[run], self._figures(run)
        if content is not None:
            self.result.keep_lines(run, content)
        lines = jsonl_log.parse((content or b"").decode("utf-8", "replace"))
        if lines:
            found.at = lines[-1]["step"]
            found.steps = found.steps or found.at  # it was made before, and the maker recorded the figure
        if state == kept.SUCCEEDED:
            made: Mapping[str, Any] = {}
            with suppress(StoreError):  # a store elsewhere that does not answer now: its steps have the figure too
                made = Store(self.settings.store).find(*found.made).about
            found.score = ranking.score(lines, self.planned.spec.rank, found.steps, made)
            found.beside = ranking.beside(lines, self.planned.spec.beside, found.steps, made)

    def _figures(self, run: str) -> bytes | None:
        """Return the figures of a trial's last phase so far; None while they cannot be read."""
        found = self.result.trials[run]
        name, fingerprint = found.made
        if self.planned.trials[run].plan.job is None:
            return run_figures.of_artifact(self.settings.store, name, fingerprint, "metrics.jsonl")
        if run not in self.journal.runs():
            return None
        op = find_run(self.journal, run)
        # of a pod that was rented and is gone its key is gone, too: it is not asked
        op = op if op.is_live or registry.provider(self.settings, op.vendor).is_here else replace(op, address=None)
        for place in run_figures.places(op, self.settings, self.tell):
            if content := place(found.phase, "metrics.jsonl"):
                return content
        return None

    def _cost(self, run: str) -> int:
        now, scale = read_clocks(), self.settings.clock_scale if self.settings.rehearsal else 1.0
        return sum(spend.spent(op, now, scale) for op in self.journal.ops(run=run) if op.rate)

    def _compare(self) -> None:
        """Look at the trials that decide for their arms, and stop those that are behind."""
        if self.halving is None:
            return
        every_s = LOOK_S.get(self.settings.provider, LOOK_ELSEWHERE_S)
        for run, one in self.running.items():
            if one.stopping or self._first_of_arm(run) or time.monotonic() - one.looked_at < every_s:
                continue
            one.looked_at = time.monotonic()
            lines = jsonl_log.parse((self._figures(run) or b"").decode("utf-8", "replace"))
            self._hear(run, lines)
            if one.stop_at is not None and one.child.poll() is None:
                self._say(run, f"is stopped: behind after {one.stop_at} steps")
                with one.log.open("ab") as log:
                    one.stopping = subprocess.Popen(inv(["down", run]), stdin=subprocess.DEVNULL, stdout=log,
                                                    stderr=log, start_new_session=True)  # fmt: skip

    def _hear(self, run: str, lines: ranking.Lines) -> None:
        assert self.halving is not None
        steps, rank = self.result.trials[run].steps, self.planned.spec.rank
        reached = {rung: ranking.figure_at(lines, rank, steps, rung) for rung in self.halving.rungs}
        values = {rung: rank.sign * value for rung, value in reached.items() if value is not None}
        if lines:
            self.result.trials[run].at = lines[-1]["step"]
        self.running[run].stop_at = self.halving.hear(run, values)

    def _set(self, run: str, **values: Any) -> None:
        for name, value in values.items():
            setattr(self.result.trials[run], name, value)
        self.result.write()

    def _leave(self) -> None:
        """Detach the launches; what runs goes on."""
        self.is_leaving = True
        for one in self.running.values():
            one.child.send_signal(signal.SIGINT)
        for one in self.running.values():
            one.child.wait()
        for run in list(self.running):
            self._set(run, state=kept.DETACHED)
