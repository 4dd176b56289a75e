"""Execution of a sweep: each free pod takes the next trial until no trial is left.

A trial is a separate launch in an independent process, so a trial is followed, stored and recovered like any other run.
The sweep's process starts and compares the trials, and stops the weaker trials. The process can be killed at any time:
the same command resumes the sweep, and no trial costs more than the reserved amount.
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
from infra.flags import command_words
from infra.ledger import budgets, spend
from infra.ledger.journal import Journal
from infra.runs import run_rows
from infra.runs.journal_upkeep import settle
from infra.runs.lookup import find_run
from infra.runs.run_home import RunHome
from infra.runs.sync.mirror import is_in_local_store
from infra.runs.timing import Say
from infra.selection import registry
from infra.settings import Settings
from infra.units import count, dollars
from packs.sweeps.control.halving import Halving
from packs.sweeps.control.plan import SweepPlan, makings
from packs.sweeps.control.pods import WorkingPods, pods_with_work, share_costs
from packs.sweeps.control.trials import ranking
from packs.sweeps.control.trials import results as kept
from packs.sweeps.control.trials.records import shown
from packs.sweeps.control.trials.results import SweepResult
from packs.sweeps.control.trials.resume_sweep import inv
from store.artifacts.artifacts import Store
from store.manifest import StoreError
from trainer.reporting import jsonl_log

POLL_S = 0.3
LOOK_S = {"local": 1.0}  # polling interval for a running trial's figures; a remote read opens a connection
LOOK_ELSEWHERE_S = 15.0
SETTLE_EVERY_S = 5.0
MOST_BEGUN = 5  # restarts of a launch after its death
REST_S = 300.0  # by the vendor's clock, before a lane without an available machine is tried again


@dataclass
class TrialAtWork:
    """Running trial."""

    run: str
    lane: int
    child: subprocess.Popen[bytes]
    answer_file: Path
    log: Path
    looked_at: float = 0.0
    stopping: subprocess.Popen[bytes] | None = None
    stop_at: int | None = None
    recoveries: int = 0
    """Recoveries already reported."""


@dataclass
class SweepWork:
    """State of a running sweep: all trials, and the launches in progress."""

    planned: SweepPlan
    result: SweepResult
    journal: Journal
    settings: Settings
    tell: Say
    halving: Halving | None = None
    unpaid_reasons: dict[str, str] = field(default_factory=dict)
    """Reasons why waiting trials could not be paid yet."""
    running: dict[str, TrialAtWork] = field(default_factory=dict)
    num_relaunches: dict[str, int] = field(default_factory=dict)
    """Number of deaths of each trial's launch."""
    settled_at: float = 0.0
    lane_retry_at: dict[int, float] = field(default_factory=dict)
    """Times before which no trial starts on a lane without an available machine, while other trials run."""
    is_detaching: bool = False
    pods: WorkingPods | None = None
    """Pods shared by the trials; None when each trial has its own pod."""

    def run(self) -> None:
        """Launch the trials and wait until all have ended.

        On KeyboardInterrupt, detaches the launches, starts no further trials and re-raises.
        """
        self.result.write()
        try:
            while self._waiting() or self.running:
                self._reap()
                self._report_recoveries()
                if self.pods:
                    self.pods.reconcile(self._needed())
                    self._close_unplaceable(self.pods)
                self._start_ready_trials()
                self._compare()
                time.sleep(POLL_S)
        except BaseException:
            self._detach()
            raise
        finally:
            if self.pods:
                self.pods.finish(self._needed())
                self._share_costs()

    def _needed(self) -> set[str]:
        """Return the names of the pods with work."""
        lanes, at_work = self.planned.lanes, {one.lane for one in self.running.values()}
        # A detached but running trial also needs its pod.
        left = [one.pod for one in self.result.trials.values() if one.state == kept.DETACHED]
        busy = {lanes[lane].host for lane in at_work} | {lane.host for lane in lanes if lane.pod in left}
        free = [number for number in range(len(lanes)) if number not in at_work]
        waiting = [] if self.is_detaching else self._waiting()
        return pods_with_work(lanes, free, busy, self.pods.ready_names() if self.pods else set(), waiting, self._fits)

    def _fits(self, run: str, lane: int) -> bool:
        """Return whether a trial may run on a lane: on the assigned pod, and a live run only on the machine in use."""
        there, own = self.planned.lanes[lane], self.planned.trials[run].trial
        if self.pods is not None and self.planned.spec.pods:
            return own.run in there.runs
        live = next((op for op in self.journal.ops(live=True, run=run) if op.place), None)
        if live is None or not there.host:
            return True
        return there.host in (live.place, live.place.partition("/")[0]) and live.devices == there.devices

    def _close_unplaceable(self, at_work: WorkingPods) -> None:
        """Close the waiting trials after the loss of all suitable pods."""
        lost = at_work.given_up
        for run in self._waiting() if lost else ():
            hosts = {lane.host for number, lane in enumerate(self.planned.lanes) if self._fits(run, number)}
            if hosts <= lost.keys():
                self._close(run, kept.LIMIT, "; ".join(lost[host] for host in sorted(hosts)))

    def _share_costs(self) -> None:
        """Record each trial's share of the shared pods' cost."""
        assert self.planned.shared is not None
        now, scale = read_clocks(), self.settings.clock_scale if self.settings.rehearsal else 1.0
        share_costs(self.planned.shared, self.planned.lanes, self.result.trials, self.journal, now, scale)
        self.result.write()

    def _waiting(self) -> list[str]:
        return [run for run, one in self.result.trials.items() if one.state == kept.WAITING]

    def _start_ready_trials(self) -> None:
        """Start a trial on each free lane: the next trial of the lane's queue, else the next waiting trial."""
        lanes = self.planned.lanes
        free = [number for number in range(len(lanes)) if number not in {one.lane for one in self.running.values()}]
        if self.pods:
            ready = self.pods.ready_names()
            free = [number for number in free if lanes[number].host in ready]
        if self.running:
            free = [number for number in free if self.lane_retry_at.get(number, 0.0) <= time.monotonic()]
        for lane in free:
            waiting = [run for run in self._waiting() if self._fits(run, lane)]
            own = [run for run in lanes[lane].runs if run in waiting]
            others = [run for run in waiting if run not in own]
            run = next((run for run in (*own, *others) if self._can_start(run)), "")
            if run:
                self._start_trial(run, lane)
        if self.planned.budget and not self.running and (left := self._waiting()) and self._is_all_spent():
            for run in left:
                self._close(
                    run, kept.LIMIT, f"not begun: {self.unpaid_reasons.get(run) or 'the limit does not cover it'}"
                )

    def _is_all_spent(self) -> bool:
        """Return whether no more of the budget can become free, because all committed money is spent.

        Also settles ended pods, at most every `SETTLE_EVERY_S` seconds.
        """
        found = budgets.state(self.journal, self.planned.budget, self.settings.clock_scale)
        live = [op.token for op in self.journal.ops(live=True) if op.budget_name == self.planned.budget]
        if live and time.monotonic() - self.settled_at > SETTLE_EVERY_S:
            settle(self.journal, self.settings, self.tell, live)
            self.settled_at = time.monotonic()
        return found.committed <= found.spent

    def _can_start(self, run: str) -> bool:
        """Return whether a trial may start now; close a trial of a stopped arm."""
        if self.result.trials[run].state != kept.WAITING:
            return False
        if first := self._first_of_arm(run):
            ahead = self.result.trials[first]
            if ahead.state in (kept.STOPPED, kept.SKIPPED):
                self._close(run, kept.SKIPPED, f"the arm was stopped with another seed: {first}")
                return False
            if ahead.state in (kept.WAITING, kept.RUNNING):
                return False
        if self._is_artifact_in_progress(run):
            return False
        return self._reserve_cost(run)

    def _reserve_cost(self, run: str) -> bool:
        """Reserve the trial's highest cost, earlier cost included; return whether the budget allows the reservation.

        Closes the trial when the trial's own spend limit is used up.
        """
        if not self.planned.budget:
            return True
        most = self.planned.trials[run].most_micro_usd
        is_live = any(op.is_live for op in self.journal.ops(run=run))
        if most and not is_live and self._cost(run) >= most:
            self._close(run, kept.LIMIT, "the spend limit of the run is used up")
            return False
        name, scale = self.planned.budget, self.settings.clock_scale
        found = budgets.state(self.journal, name, scale)
        most = most or (found.runs[run].reserved if run in found.runs else 0)  # running: the reservation at the start
        why = found.refusal(run, most)
        try:
            if not why:
                budgets.reserve(self.journal, name, run, most, scale)
        except OutOfMoney as error:  # a different process was faster
            why = str(error)
        if why and self.unpaid_reasons.get(run) != why:
            self.unpaid_reasons[run] = why
            self._update_result(run, reason=f"waits: {why}")
        return not why

    def _first_of_arm(self, run: str) -> str:
        """Return the trial that decides for this trial's arm.

        Returns "" for the deciding trial itself, and without early stopping.
        """
        if self.halving is None:
            return ""
        first = self.planned.spec.arms[self.result.trials[run].arm][0].run
        return first if first != run else ""

    def _is_artifact_in_progress(self, run: str) -> bool:
        """Return whether a running trial is making an artifact shared with this trial."""
        store, own = Store(self.settings.store), makings(self.planned.trials[run].plan).items()
        others = {item for one in self.running for item in makings(self.planned.trials[one].plan).items()}
        return any(not is_in_local_store(store, name, fingerprint) for name, fingerprint in own & others)

    def _start_trial(self, run: str, lane: int) -> None:
        one, berth = self.planned.trials[run], self.planned.lanes[lane]
        place = berth.pod
        on = ["--host", berth.host] if berth.host else []
        devices = one.trial.devices if self.pods is not None else berth.devices
        on += [f"--devices={devices or berth.devices}"] if devices or berth.devices else []
        on += ["--wait"] if on else []  # the machine may be in use by a different run; wait in turn
        env = [f"{name}={value}" for name, value in one.trial.env.items()]
        spec, paid = one.spec, list(self.planned.more)
        if self.planned.budget:
            if any(op.is_live for op in self.journal.ops(run=run)):
                # Join the live run, which keeps its limit.
                spec = replace(spec, spend_limit="")
            elif spec.spend_limit and one.most_micro_usd:  # earlier cost counts towards the limit
                spec = replace(spec, spend_limit=dollars(one.most_micro_usd - self._cost(run)))
            paid += ["--budget", self.planned.budget]
        words = ["launch", "--provider", self.settings.provider, *on, *command_words(spec), *paid]
        words += [word for name in (*self.settings.given, *env) for word in ("--env", name)]
        words += ["--run-name", run, "--keep-made", "--with-missing", "--yes", "--json"]
        home = RunHome.for_run(run, self.settings.homes)
        home.folder.mkdir(parents=True, exist_ok=True)
        self._report(run, "begins", place)
        with home.launch_answer.open("wb") as said, home.launch_log.open("ab") as log:
            child = subprocess.Popen(
                inv(words), stdin=subprocess.DEVNULL, stdout=said, stderr=log, start_new_session=True
            )
        self.running[run] = TrialAtWork(
            run, lane, child, home.launch_answer, home.launch_log, recoveries=self._recoveries(run)
        )
        self._update_result(run, state=kept.RUNNING, pod=place, reason="")

    def _report(self, run: str, what: str, place: str = "") -> None:
        where = f"{place}: " if place else ""
        self.tell(f"{time.strftime('%H:%M:%S')} {where}{shown(run, self.result.name)} {what}")

    def _recoveries(self, run: str) -> int:
        rows = self.journal.ops(run=run)
        return rows[-1].recoveries if rows else 0

    def _report_recoveries(self) -> None:
        """Report each new recovery of a running trial, after the pod was lost or silent."""
        for run, one in self.running.items():
            if (now := self._recoveries(run)) > one.recoveries:
                one.recoveries = now
                self._report(
                    run, f"was resumed after the loss of the pod ({count(now, 'time')} so far); see: inv why {run}"
                )

    def _cause(self, run: str, reason: str) -> str:
        """Return the cause of a trial's failure as `inv why` reports it; `reason` if no cause is on record."""
        rows = self.journal.ops(run=run)
        try:
            cause = story_of(rows[-1], self.journal, self.settings).cause if rows else None
        except SlipwayError:  # pod unreadable: only the launch's answer is known
            cause = None
        return f"{cause.name}: {cause.says}" if cause else reason

    def _reap(self) -> None:
        """Close or restart the trials with an exited launch."""
        for run, one in list(self.running.items()):
            if one.child.poll() is None or (one.stopping and one.stopping.poll() is None):
                continue
            del self.running[run]
            document: Mapping[str, Any] = {}
            with suppress(ValueError):  # no answer written: only the exit code is known
                document = json.loads(one.answer_file.read_bytes())
            code = one.child.returncode
            if code == NoOffer.exit_code and self.running:
                self._requeue(one, str(document.get("error") or "no machine is available"))
                continue
            is_unsaid = not document.get("state") and code != DETACHED_CODE and one.stop_at is None
            if is_unsaid and self._can_relaunch(run, code):
                self._report(run, f"is started again: the launch exited with code {code} (see {one.log})")
                self._update_result(run, state=kept.WAITING, reason="the launch died, and is started again")
                continue
            state = document.get("state") or (kept.DETACHED if code == DETACHED_CODE else "failed")
            reason = document.get("reason") or document.get("error") or ""
            if code not in (0, DETACHED_CODE) and not reason:
                reason = f"the launch exited with code {code}; see {one.log}"
            steps = [step for step in document.get("steps") or () if isinstance(step, dict)]
            self._update_result(run, seconds=sum(step.get("elapsed_s") or 0.0 for step in steps))
            if one.stop_at is not None and state != kept.SUCCEEDED:
                state, reason = kept.STOPPED, f"behind after {one.stop_at} of {self.result.trials[run].steps} steps"
            elif state == "failed":
                reason = self._cause(run, reason)
            self._close(run, state, reason)

    def _requeue(self, one: TrialAtWork, why: str) -> None:
        """Put a trial without a machine back into the wait queue, until a running trial frees a machine."""
        scale = self.settings.clock_scale if self.settings.rehearsal else 1.0
        self.lane_retry_at[one.lane] = time.monotonic() + REST_S / scale
        if self.planned.budget:
            budgets.release_reservation(self.journal, self.planned.budget, one.run)
        self._update_result(one.run, state=kept.WAITING, pod="", reason=f"waits: {why.splitlines()[0]}")
        place = self.planned.lanes[one.lane].pod
        self._report(one.run, f"waits, because no machine is available: {why.splitlines()[0]}", place)

    def _can_relaunch(self, run: str, code: int) -> bool:
        """Return whether an unattended trial should be launched again, and count the attempt.

        A new launch joins a live run, or resumes from the newest checkpoint. A launch killed (exit code below 0) before
        renting a pod is repeated as well. Each trial is repeated at most `MOST_BEGUN` times.
        """
        rows = self.journal.ops(run=run)
        self.num_relaunches[run] = self.num_relaunches.get(run, 0) + 1
        is_unfinished = not run_rows.is_over(rows[-1]) if rows else code < 0
        return is_unfinished and self.num_relaunches[run] <= MOST_BEGUN

    def _close(self, run: str, state: str, reason: str = "") -> None:
        """Record the end of a trial, with figures, cost and savings."""
        found = self.result.trials[run]
        if state not in (kept.SKIPPED, kept.LIMIT):
            self._save_figures(run, state)
        cost = self._cost(run)
        if self.pods:
            self._share_costs()
        if self.planned.budget:
            budgets.release_reservation(self.journal, self.planned.budget, run)
        self._update_result(run, state=state, reason=reason)
        if self.pods is None:
            self._update_result(run, micro_usd=cost)
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
        self._report(run, f"{state}{score} {reason}".rstrip(), found.pod)

    def _save_figures(self, run: str, state: str) -> None:
        """Store and score the figures of an ended trial."""
        found, content = self.result.trials[run], self._figures(run)
        if content is not None:
            self.result.save_figures(run, content)
        lines = jsonl_log.parse((content or b"").decode("utf-8", "replace"))
        if lines:
            found.at = lines[-1]["step"]
            found.steps = found.steps or found.at  # the artifact existed before, with recorded figures
        if state == kept.SUCCEEDED:
            made: Mapping[str, Any] = {}
            with suppress(StoreError):  # a remote store may not answer; the steps have the figure too
                made = Store(self.settings.store).find(*found.made).about
            found.score = ranking.score(lines, self.planned.spec.rank, found.steps, made)
            found.beside = ranking.beside(lines, self.planned.spec.beside, found.steps, made)

    def _figures(self, run: str) -> bytes | None:
        """Return the figures of the trial's last phase so far; None when unreadable."""
        found = self.result.trials[run]
        name, fingerprint = found.made
        if self.planned.trials[run].plan.job is None:
            return run_figures.of_artifact(self.settings.store, name, fingerprint, "metrics.jsonl")
        if run not in self.journal.runs():
            return None
        op = find_run(self.journal, run)
        # The key of a rented pod is deleted with the pod, so the pod's address is not tried.
        op = op if op.is_live or registry.provider(self.settings, op.vendor).is_here else replace(op, address=None)
        for place in run_figures.metric_readers(op, self.settings, self.tell):
            if content := place(found.phase, "metrics.jsonl"):
                return content
        return None

    def _cost(self, run: str) -> int:
        now, scale = read_clocks(), self.settings.clock_scale if self.settings.rehearsal else 1.0
        return sum(spend.spent(op, now, scale) for op in self.journal.ops(run=run) if op.rate)

    def _compare(self) -> None:
        """Compare the deciding trial of each arm with the others, and stop the weaker trials."""
        if self.halving is None:
            return
        every_s = LOOK_S.get(self.settings.provider, LOOK_ELSEWHERE_S)
        for run, one in self.running.items():
            if one.stopping or self._first_of_arm(run) or time.monotonic() - one.looked_at < every_s:
                continue
            one.looked_at = time.monotonic()
            lines = jsonl_log.parse((self._figures(run) or b"").decode("utf-8", "replace"))
            self._record_figures(run, lines)
            if one.stop_at is not None and one.child.poll() is None:
                self._report(run, f"is stopped: behind after {one.stop_at} steps")
                with one.log.open("ab") as log:
                    one.stopping = subprocess.Popen(
                        inv(["down", run]), stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
                    )

    def _record_figures(self, run: str, lines: ranking.Lines) -> None:
        assert self.halving is not None
        steps, rank = self.result.trials[run].steps, self.planned.spec.rank
        reached = {rung: ranking.figure_at(lines, rank, steps, rung) for rung in self.halving.rungs}
        values = {rung: rank.sign * value for rung, value in reached.items() if value is not None}
        if lines:
            self.result.trials[run].at = lines[-1]["step"]
        self.running[run].stop_at = self.halving.record(run, values)

    def _update_result(self, run: str, **values: Any) -> None:
        for name, value in values.items():
            setattr(self.result.trials[run], name, value)
        self.result.write()

    def _detach(self) -> None:
        """Detach from the launches; the runs continue."""
        self.is_detaching = True
        for one in self.running.values():
            one.child.send_signal(signal.SIGINT)
        for one in self.running.values():
            one.child.wait()
        for run in list(self.running):
            self._update_result(run, state=kept.DETACHED)
