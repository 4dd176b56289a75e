"""Supervisor of an installation: one background process that continues the work of finished commands.

    observe   the journal: runs without a keeper, pods of a set to replace, services without a controller, abandoned
              run groups, and rented pods due to end
    act       starts a keeper for each such run and pod in a thread, and a process for each service and run group;
              deletes each due pod until the vendor proves the pod gone; sends notices

The supervisor uses the same `infra.runs.keepers` as a launch in a terminal. A command that leaves work behind calls
`ensure`; without remaining work the supervisor exits. The lease `supervisor` admits a single active process. A process
silent for a minute is replaced, and exits after waking up. The last observations go to a file beside the journal for
`inv supervisor`.

If the checkout changes, the supervisor starts a successor with the new code and continues until the successor is up and
asks for the exit. Code that fails to start therefore replaces no running supervisor.

On a full disk, threads may be unable to release their leases. The process then starts no new work, waits until the
journal is writable, and hands over to a new process.
"""

import contextlib
import itertools
import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import TypeVar

from flows.runs import follow, run_groups
from flows.runs.run_groups import RunGroups
from flows.supervisor.due import is_watch_wanted, pods_to_end, runs_to_keep
from flows.supervisor.notice_watch import NoticeWatch
from flows.supervisor.supervisor_client import SupervisorState, start, state_file
from infra import checkout, job_environment
from infra.agent.job import STAYS
from infra.agent.limits import awake_s
from infra.agent.shortage import is_full
from infra.agent.state import NODE_LOST
from infra.checkout import ROOT, CodeWatch
from infra.errors import AuthError, LimitHit, OutOfMoney, SlipwayError, describe
from infra.interrupts import WorkTakenOver
from infra.journal_file import JournalFull
from infra.ledger import service_rows
from infra.ledger.journal import Journal
from infra.ledger.lease_termination import terminate_holders
from infra.ledger.leases import SILENT_S, SUPERVISOR, LeaseHeld, keeper_lease
from infra.ledger.op import LOST, READY, Op
from infra.ledger.service_rows import service_lease
from infra.notices.outbox import Notice, names_of, send_now
from infra.runs import run_rows
from infra.runs.journal_upkeep import settle_rows
from infra.runs.keepers.keeper import GivenUp
from infra.runs.keepers.pod_keeper import PodKeeper
from infra.runs.keepers.recovery import RUN, recovers
from infra.runs.run_home import RunHome
from infra.runs.timing import Say
from infra.settings import Settings, is_rented
from infra.units import moment
from serve.processes import controller_client
from store import credentials, local_files
from store.backoff import Backoff

EVERY_S = 1.0  # Pause between two looks.
HUNG_S = 120.0  # Maximum duration of a look while the machine is awake.
WRITE_EVERY_S = 5.0  # Interval of writes without changes.
ENDS = Backoff(first_s=2.0, longest_s=60.0)  # Pause between two delete requests for the same pods.
ROOM = Backoff(first_s=5.0, longest_s=15.0)  # Pause between two attempts to write to a full disk.
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
T = TypeVar("T")


@dataclass
class SupervisedItem:
    """The care for a run or service, with the start times."""

    thread: threading.Thread | None = None
    started_at: list[float] = field(default_factory=list)
    key: tuple[str, int] = ("", 0)
    """Token and epoch of the row at the end of the care; the care restarts after a change of the row."""
    is_done: bool = False
    failure_reason: str = ""


class Supervisor:
    def __init__(self, settings: Settings, journal: Journal, since: float, tell: Say) -> None:
        self.settings, self.journal, self.since, self.tell = settings, journal, since, tell
        self.items: dict[str, SupervisedItem] = {}
        self.looked_at = awake_s()
        self.is_leaving = threading.Event()
        self.is_disk_full = threading.Event()
        self.written: tuple[float, SupervisorState] | None = None
        self.conclude_lock = threading.Lock()
        self.watch_thread: threading.Thread | None = None
        self.end_thread: threading.Thread | None = None
        self.code, self.renewed_for = CodeWatch(), ""
        self.successor: subprocess.Popen[bytes] | None = None

    def run(self) -> None:
        """Look after all due work until no work is left or the process must exit.

        Return when no work is left, the journal file is gone, an exit was requested, or a write failed on a full disk.
        Raises WorkTakenOver.
        """
        while not (self.is_leaving.is_set() or self.is_disk_full.is_set()):
            self.journal.leases.check_held()
            self.looked_at = awake_s()
            if not self.settings.state_file.exists():  # No other process reads later writes.
                self.tell(f"{self.settings.state_file} is gone")
                self.is_leaving.set()
            elif not self.start_due_work():
                return
            self.start_successor()
            self.is_leaving.wait(EVERY_S)

    def start_successor(self) -> None:
        """Start a successor, once for each new version of the checkout's code."""
        if self.successor is not None and self.successor.poll() is not None:
            self.tell(
                f"the supervisor with the new code has exited with code {self.successor.returncode}; this process "
                "continues with the older code"
            )
            self.successor = None
        other = self.code.changed_stamp()
        if other and other != self.renewed_for:
            self.tell("the code of the checkout has changed; starting a supervisor with the new code")
            self.renewed_for, self.successor = other, start(self.settings, renews=True)

    def is_healthy(self) -> bool:
        """Return True if the last look began recently; a process hanging in a look is replaced."""
        return awake_s() - self.looked_at < HUNG_S

    def start_due_work(self) -> bool:
        """Look once, and start missing work; return True if any work remains."""
        runs = {keeper_lease(op.run): op for op in runs_to_keep(self.journal, self.settings)}
        services = {service_lease(one.name): one for one in service_rows.list_services(self.journal)}
        held = self.journal.leases.held_names()
        for lease, op in runs.items():
            self._start_item(lease, (op.token, op.epoch), self._keep_pod if recovers(op) else self._keep, op.run)
        for lease, service in services.items():
            if lease not in held:
                self._start_item(lease, (service.name, service.epoch), self._control, service.name)
        groups = run_groups.due(self.journal, self.settings)
        for lease, (kind, name) in groups.items():
            self._start_item(lease, (name, 0), partial(self._restart_group, kind), name)
        self._watch()
        ends = pods_to_end(self.journal, self.settings)
        if ends and (self.end_thread is None or not self.end_thread.is_alive()):
            self.end_thread = threading.Thread(target=self._run_logged, args=(self._end,), name="ends", daemon=True)
            self.end_thread.start()
        self._write(services.keys())
        at_work = [lease for lease, care in self.items.items() if care.thread and care.thread.is_alive()]
        cares = [self.items[lease] for lease in (*runs, *groups)]
        waits = [one for one in cares if not (one.is_done or one.failure_reason)]
        is_wanted = run_groups.is_any_active(self.journal) or is_watch_wanted(self.journal, self.settings)
        return bool(at_work or services or waits or ends) or is_wanted or self._is_any_billing(runs.values())

    def has_more_work(self) -> bool:
        """Return True if any work remains besides the work that this process finished or gave up."""
        runs = runs_to_keep(self.journal, self.settings)
        keys = {keeper_lease(op.run): (op.token, op.epoch) for op in runs}
        keys |= {lease: (name, 0) for lease, (_, name) in run_groups.due(self.journal, self.settings).items()}
        settled = {lease: care.key for lease, care in self.items.items() if care.is_done or care.failure_reason}
        is_left = any(settled.get(lease) != key for lease, key in keys.items()) or self._is_any_billing(runs)
        is_left = is_left or bool(service_rows.list_services(self.journal) or pods_to_end(self.journal, self.settings))
        return is_left or run_groups.is_any_active(self.journal) or is_watch_wanted(self.journal, self.settings)

    def _is_any_billing(self, runs: Iterable[Op]) -> bool:
        """Return True if a live pod of these runs is rented: even after a run was given up, its pod must end in time.

        With guard and timer gone, the supervisor alone ends the pod at the limit.
        """
        names = {op.run for op in runs}
        live = self.journal.ops(live=True)
        return any(is_rented(op.vendor) and run_rows.run_of(op) in names for op in live)

    def _run_logged(self, work: Callable[[], None]) -> None:
        """Run `work` and log an error; the next look starts the work again."""
        try:
            work()
        except WorkTakenOver:  # The next look logs the replacement and is the last.
            return
        except Exception as error:
            self._fail("supervisor", error)

    def _fail(self, name: str, error: Exception) -> None:
        if isinstance(error, JournalFull) or is_full(error):
            self.is_disk_full.set()
        self.tell(f"{name}: {describe(error)}")

    def _end(self) -> None:
        """End the due pods, and repeat with backoff until all pods are proven gone."""
        tries, told = 0, set[str]()

        def tell(text: str) -> None:
            if text not in told:  # A vendor outage of hours must not fill the log.
                told.add(text)
                self.tell(text)

        with Journal.open(self.settings.state_file) as journal:
            while ops := pods_to_end(journal, self.settings):
                settle_rows(journal, load(), tell, [op.token for op in ops])
                tries += 1
                if self.is_leaving.wait(ENDS.wait_s(tries)):
                    return

    def _watch(self) -> None:
        """Run the notice watch in a thread, because a hook may be slow."""
        if self.watch_thread is None or not self.watch_thread.is_alive():
            self.watch_thread = threading.Thread(
                target=self._run_logged, args=(self._run_notice_watch,), name="watch", daemon=True
            )
            self.watch_thread.start()

    def _run_notice_watch(self) -> None:
        with Journal.open(self.settings.state_file) as journal:
            one = NoticeWatch(journal, self.tell)
            while not self.is_leaving.wait(EVERY_S):
                journal.leases.check_held()
                one.send_due_notices(load())

    def _start_item(self, lease: str, key: tuple[str, int], work: Callable[[str], Op | None], name: str) -> None:
        care = self.items.setdefault(lease, SupervisedItem())
        if care.thread and care.thread.is_alive():
            return
        if care.key != key and (care.failure_reason or care.is_done):
            care.failure_reason, care.is_done, care.started_at = "", False, []
        if care.failure_reason or care.is_done:
            return
        now = time.time()
        wait_s = RUN.retries.wait_s(care.started_at, now)
        if wait_s is None:
            care.key, care.failure_reason = (
                key,
                f"the supervisor has tried {len(care.started_at)} times, and each attempt ended early",
            )
            self.tell(f"{name}: given up: {care.failure_reason}")
            self._notify_given_up(name, care.failure_reason)
        elif wait_s <= 0:
            care.started_at = [*care.started_at, now][-RUN.retries.most :]
            care.thread = threading.Thread(target=self._run_item, args=(care, work, name), name=lease, daemon=True)
            care.thread.start()

    def _run_item(self, care: SupervisedItem, work: Callable[[str], Op | None], name: str) -> None:
        """Run `work` in a thread. An error stays limited to this run; a returned row marks the work as done."""
        why, row = "", None
        try:
            row = work(name)
        except WorkTakenOver:
            return
        except (AuthError, GivenUp, LimitHit, OutOfMoney) as error:  # The user has to act.
            why = str(error)
            self.tell(f"{name}: given up: {error}")
            self._notify_given_up(name, why)
        except Exception as error:  # Restarted at the pace of the retries.
            self._fail(name, error)
            if work == self._keep and not self._will_continue(name):
                self._notify_given_up(name, describe(error))
        if why:
            with Journal.open(self.settings.state_file) as journal:
                row = next(iter(journal.ops(run=name)[-1:]), None)
        if row is not None:
            care.key, care.failure_reason, care.is_done = (row.token, row.epoch), why, not why

    def _will_continue(self, run: str) -> bool:
        """Return True if a run with a failed keeper will be kept again, or was ended on request."""
        with Journal.open(self.settings.state_file) as journal:
            is_over = run_rows.is_over(journal.ops(run=run)[-1])
            return is_over or run in [op.run for op in runs_to_keep(journal, self.settings)]

    def _notify_given_up(self, name: str, why: str) -> None:
        with Journal.open(self.settings.state_file) as journal:
            op = next(iter(journal.ops(run=name)[-1:]), None)
        if op is not None:
            notice = Notice(subject=name, event="given up", key=f"{op.token} {op.epoch}", note=why)
            send_now(notice, names_of(op, self.settings), self.settings, self.tell)

    def _log_of(self, run: str, settings: Settings) -> Say:
        """Return a function for writing to the log of a kept run, and report the path of the log."""
        log = RunHome.for_run(run, settings.homes).keep_log
        log.parent.mkdir(parents=True, exist_ok=True)

        def tell(text: str) -> None:
            with contextlib.suppress(OSError), log.open("a") as file:  # A full disk only loses a line.
                file.write(f"{moment(time.time())} {text}\n")

        self.tell(f"{run}: kept by the supervisor from now on; log: {log}")
        return tell

    def _keep_pod(self, name: str) -> Op:
        """Keep a pod of a set without work; return the last row."""
        settings = load()
        with Journal.open(settings.state_file) as journal:
            op = journal.ops(run=name)[-1]
            keeper = PodKeeper.for_op(op, journal, settings, self._log_of(name, settings))
            with keeper.hold_lease(name):
                return keeper.watch_pod(op)

    def _keep(self, run: str) -> Op | None:
        """Keep a run to the end, as `inv keep` does; return the last row, or None after a request to exit.

        After an error while the results are downloaded, repeat until the pod has ended: a pod that cannot end itself
        bills until the limit.
        """
        settings = load()
        tell = self._log_of(run, settings)
        with Journal.open(settings.state_file) as journal:
            for tries in itertools.count(1):
                op, state = self._keep_to_verdict(run, journal, settings, tell)
                is_left = _is_left_at_work(op, state)
                if tries == 1:
                    self.tell(f"{run}: {state or 'it was ended'}{', but the pod was not ended; retrying' * is_left}")
                if not is_left:
                    return op
                if self.is_leaving.wait(ENDS.wait_s(tries)):
                    break
        return None

    def _keep_to_verdict(self, run: str, journal: Journal, settings: Settings, tell: Say) -> tuple[Op, str]:
        """Keep a run up to a verdict and settle the pods; return the last row and the state of the verdict or ""."""
        op, verdict = journal.ops(run=run)[-1], dict[str, object]()
        with follow.keep_run(op, journal, settings, tell, is_asked=False) as seen:
            for _, verdict in seen:
                if run_rows.is_over(now := journal.ops(run=run)[-1]) and not verdict:
                    return now, ""
        op = journal.ops(run=run)[-1]
        if run_rows.is_over(op) and op.is_live:
            return op, ""  # A different process ends the run.
        state = str(verdict["state"])
        with self.conclude_lock:
            only = [one.token for one in run_rows.nodes_of(op, journal)]
            follow.settle_run(op, state, journal, settings, tell, only)
        return journal.ops(run=run)[-1], state

    def _restart_group(self, kind: RunGroups, name: str) -> None:
        """Restart the process of a run group, and wait for the end of the process."""
        with Journal.open(self.settings.state_file) as journal:
            kind.restart(name, journal, load(), self.tell)

    def _control(self, name: str) -> None:
        """Start the controller of a service."""
        settings = load()
        with Journal.open(settings.state_file) as journal:
            if service_rows.find(journal, name) is not None:
                controller_client.ensure(name, settings, journal, self.tell)

    def _write(self, services: object) -> None:
        """Write the supervisor state to the state file after a change, or every `WRITE_EVERY_S` seconds."""
        runs = [lease for lease, care in self.items.items() if care.thread and care.thread.is_alive()]
        state = SupervisorState(
            pid=os.getpid(),
            since=self.since,
            looked_at=round(time.time(), 1),
            runs=tuple(sorted(one.partition(":")[2] for one in runs if one.startswith("keep:"))),
            services=tuple(sorted(one.name for one in service_rows.list_services(self.journal))),
            given_up={
                lease.partition(":")[2]: care.failure_reason
                for lease, care in self.items.items()
                if care.failure_reason
            },
        )
        if self.written is not None:
            at, before = self.written
            same = asdict(before) | {"looked_at": 0} == asdict(state) | {"looked_at": 0}
            if same and time.monotonic() - at < WRITE_EVERY_S:
                return
        with contextlib.suppress(OSError):  # A full disk must not stop other work.
            local_files.replace(state_file(self.settings), json.dumps(asdict(state)).encode(), 0o600)
        self.written = time.monotonic(), state


def _is_left_at_work(op: Op, state: str) -> bool:
    """Return True if the pod of a run with a verdict should have ended, and neither ended nor got a request to end."""
    if op.state not in (READY, LOST) or state in ("", NODE_LOST) or op.outlives_run and state in STAYS:
        return False
    return not (state == "failed" and is_rented(op.vendor) and op.read_job().on_failure == "keep")


def load() -> Settings:
    """Return the current settings, and lend their credentials to the stores."""
    found = Settings.load(ROOT)
    found.lend_environment()
    credentials.set_credentials(job_environment.secrets(found))
    return found


def serve(tell: Say, renews: bool = False) -> None:
    """Run as the supervisor of this installation; return when no work is left, or after a request to exit.

    Return at once if a supervisor is already alive. With `renews`, first ask a supervisor with other code to exit.
    """
    settings = load()
    with _when_there_is_room(lambda: Journal.open(settings.state_file), tell) as journal:
        if renews:
            living = [one for one in journal.leases.holders() if one.lease == SUPERVISOR]
            try:
                terminate_holders(
                    [one for one in living if one.code != checkout.stamp()], "runs other code", tell, HUNG_S + SILENT_S
                )
            except SlipwayError as error:  # A hanging process is silent by now, so the lease is free.
                tell(str(error))
        while True:
            try:
                lease = _when_there_is_room(lambda: journal.leases.acquire(SUPERVISOR, checkout.stamp()), tell)
            except LeaseHeld as error:
                tell(str(error))
                return
            supervisor = Supervisor(settings, journal, time.time(), tell)
            journal.leases.set_health_check(supervisor.is_healthy)
            for number in SIGNALS:
                signal.signal(number, lambda *_: supervisor.is_leaving.set())  # noqa: B023
            tell(f"process {os.getpid()} looks after {settings.state_file}")
            try:
                supervisor.run()
            except WorkTakenOver as error:
                tell(f"process {os.getpid()} exits: {error}")
                return
            for number in SIGNALS:
                signal.signal(number, signal.SIG_DFL)  # A signal can safely kill a process waiting for disk space.
            is_handing_on = supervisor.is_disk_full.is_set() and not supervisor.is_leaving.is_set()
            if is_handing_on:
                time.sleep(ROOM.first_s)  # With only some other disk full, successors must not follow in a tight loop.
            _when_there_is_room(lambda: journal.leases.release(lease), tell)  # noqa: B023
            if is_handing_on:
                tell("exiting, because a write failed; a new supervisor takes over")
                start(settings)
                return
            # A command that just left work behind saw this lease taken, and so started no supervisor.
            if supervisor.is_leaving.is_set() or not supervisor.has_more_work():
                tell("exiting: " + ("a stop was requested" if supervisor.is_leaving.is_set() else "no work is left"))
                return


def _when_there_is_room(write: Callable[[], T], tell: Say) -> T:
    """Return the result of a journal write; retry while the disk is full. Raises JournalError for other failures."""
    tries = 0
    while True:
        try:
            return write()
        except JournalFull as error:
            if not tries:
                tell(f"{error}; retrying until the write succeeds")
            tries += 1
            time.sleep(ROOM.wait_s(tries))
