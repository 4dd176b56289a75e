"""The guard: a watchdog that enforces the limits of a pod and keeps the agent alive.

    job.json, previous state/guard.json -> guard -> state/guard.json, rotated logs, a live agent, no process at the end

The report has the armed limits and the time and money used so far. The guard keeps an agent alive as long as there is
neither a verdict nor a stop request. Durations of `Limits` are measured on the job's clock, which runs `clock_scale`
times faster than the machine's clock. After the verdict the guard ends a rented pod that can end itself, and stays
alive until the pod is gone.

A pod that stays is held while there is no work: the limits keep counting, and the guard takes over the next job.json.
"""

import contextlib
import os
import signal
import subprocess
import time
from collections import deque
from dataclasses import asdict
from pathlib import Path
from typing import Any, Deque, Dict, Optional, Tuple

from infra.agent import limits as ends
from infra.agent.amounts import duration
from infra.agent.job import STAYS, Job, PodFolder
from infra.agent.lifecycle import log_rotation, self_terminate, start_timer
from infra.agent.process import become_subreaper, current_identity, describe_survivors, end_all, hide_memory, reap
from infra.agent.shortage import Backoff, exempt_from_oom_killer, retry_shortages, tolerate_shortage
from infra.agent.state import (
    LEFT,
    UNCARRIED,
    AgentError,
    acquire_lock,
    archive_verdict,
    ask_to_stop,
    attempt_file,
    grace_s,
    is_held,
    lock,
    machine_end_state,
    read_job,
    read_json,
    report,
    say,
    spawn,
    stop_file,
    try_write_json,
    upload_s_after_stop,
    verdict,
    write_missing_verdict,
)

TICK_S = 0.1
REPORT_EVERY_S = 5.0
LAST_RITES_S = 15.0  # time for an agent beyond the grace of a step
REVIVAL = Backoff(first_s=TICK_S, longest_s=60.0, certain=1.0)  # queried at every tick, so the wait must not be random
CRASH_LOOP = (5, 600.0)  # (number of agent starts, seconds on the job's clock)


def guard(root: Path) -> int:
    """Guard the pod until the verdict, or until the end of a pod that stays.

    Returns 0, or 1 when processes survive; 0 at once if the pod has a guard already.
    """
    pod = PodFolder(root)
    if acquire_lock(lock(pod, "guard")) is None:
        return 0
    # removed before the job is read: this guard takes over the current job at once
    pod.handed_over.unlink(missing_ok=True)
    job = read_job(pod)
    exempt_from_oom_killer()
    become_subreaper()
    watching = Guard(pod, job, _key_of(job))
    code = watching.watch()
    watching.terminate_pod()
    return code


def _key_of(job: Job) -> str:
    """Return the vendor's key for the end of the pod, passed by the launcher; "" if no key is needed or available.

    A guard restarted by the agent has no key; then the vendor's own limit ends the pod.
    """
    return self_terminate.read_key() if job.needs_key and hide_memory() else ""


class Guard:
    def __init__(self, pod: PodFolder, job: Job, key: str = "") -> None:
        self.pod = pod
        self.job = job
        self.key = key
        self.idle_gpu = ends.IdleGpu(job.limits, job.clock_scale, job.devices)
        self.agent: Optional[subprocess.Popen[bytes]] = None
        self.starts: Deque[float] = deque(maxlen=CRASH_LOOP[0])
        self.missed_at: Optional[float] = None  # since when the agent has been missing
        self.orphans: Dict[int, int] = {}  # exit codes by pid of orphans adopted after the agent's death
        self.asked_at: Optional[float] = None
        self.saved_for_s: Optional[float] = None  # the limit for which a checkpoint was requested
        self.is_holding = self._should_hold()
        self.armed_at = ends.boottime_s()
        self.elapsed_before_s = self._elapsed_before_s()
        self.job = ends.ending_in_time(job, self.elapsed_s)
        self.limit_s = ends.hard_limit_s(self.job.limits)
        self.reported_at = 0.0
        self.is_terminating = False
        if self.limit_s is not None and job.has_start_timer:
            start_timer.update_deadline(self.limit_s, self.limit_s - self.elapsed_s, job.clock_scale)
        self._report()
        # After the report: an agent that ends leftovers spares the guard named in guard.json.
        self.received_sigterm = False
        signal.signal(signal.SIGTERM, self._on_sigterm)
        limit = "none" if self.limit_s is None else duration(self.limit_s)
        say(f"guard armed: limit {limit}, elapsed {duration(self.elapsed_s)}")

    @property
    def elapsed_s(self) -> float:
        return self.elapsed_before_s + (ends.boottime_s() - self.armed_at) * self.job.clock_scale

    def _is_limit_reached(self) -> bool:
        return self.limit_s is not None and self.elapsed_s >= self.limit_s

    def watch(self) -> int:
        """Watch until the end; afterwards this process is the only process of the pod. Return the exit code."""
        while True:
            with tolerate_shortage(say, "checking the pod"):
                while True:
                    self.is_holding = self._should_hold()
                    exit_code = self._hold() if self.is_holding else self._watch_work()
                    if exit_code is not None:
                        return exit_code
            if self.job.self_terminate_calls and self._is_limit_reached():
                return 1  # the verdict cannot be written, but the pod must end anyway
            time.sleep(TICK_S)

    def _should_hold(self) -> bool:
        """Return whether there is no work and the pod stays."""
        if self.job.kind == "hold":
            return not self.pod.verdict.exists()
        return self.job.stays and read_json(self.pod.verdict).get("state") in STAYS

    def _hold(self) -> Optional[int]:
        """Hold the pod until `start` hands over a job, then return None; at the end of the pod return the exit code.

        A job.json alone does not start work, because job.json is written before the code is complete, and the following
        `start` would begin the job a second time.
        """
        if read_json(stop_file(self.pod)).get("state") in STAYS:  # the stop request was only for the work
            stop_file(self.pod).unlink()
        self._report()
        say("the pod is held without work")
        while not self.pod.handed_over.exists():
            reap()
            state, reason = self._reason_to_end()
            if state:
                if state != "stopped" or self.received_sigterm:
                    # otherwise the pod is not needed any more, and the verdict of the work stays valid
                    archive_verdict(self.pod)
                return self._end(state, reason, patience_s=2.0)
            if time.monotonic() - self.reported_at >= REPORT_EVERY_S:
                self._report()
            time.sleep(TICK_S)
        with contextlib.suppress(AgentError):  # `start` has read the job and reports the error
            self.job = ends.ending_in_time(read_job(self.pod), self.elapsed_s)
        self.pod.handed_over.unlink()
        self.limit_s = ends.hard_limit_s(self.job.limits)
        self.idle_gpu = ends.IdleGpu(self.job.limits, self.job.clock_scale, self.job.devices)
        self.agent = self.missed_at = self.asked_at = None
        self.starts.clear()
        self.is_holding = False
        self._report()
        say("starting the work")
        return None

    def _reason_to_end(self) -> Tuple[str, str]:
        """Return (state, reason) for the end of a held pod; both "" while the pod may live on."""
        if self._is_limit_reached():
            return "limit", f"the {ends.limit_words(self.job.limits)} is reached"
        if asked := read_json(stop_file(self.pod)):
            return asked["state"], asked["reason"]
        if self.received_sigterm:
            return "stopped", "the guard received SIGTERM"
        idle = self.idle_gpu.stop_reason()
        return ("limit", idle) if idle else ("", "")

    def _watch_work(self) -> Optional[int]:
        """Watch the work until the verdict; afterwards this process is the only process of the pod.

        Returns the exit code, or None when the pod stays.
        """
        while not self.pod.verdict.exists():
            self.orphans.update(reap(keep=self.agent.pid if self.agent else None))
            if self._is_limit_reached():
                return self._end("limit", f"the {ends.limit_words(self.job.limits)} is reached", patience_s=0.0)
            self._ask_to_save()
            request = read_json(stop_file(self.pod)) or self._reason_to_stop()
            if not request:
                self._ensure_agent()
            elif self.asked_at is None:
                self.asked_at = time.monotonic()
                say(f"stopping: {request['reason']}")
            elif not self._is_agent_alive() or time.monotonic() > self.asked_at + self._patience_s(request):
                break
            if time.monotonic() - self.reported_at >= REPORT_EVERY_S:
                self._report()
                log_rotation.rotate(self.pod)
            time.sleep(TICK_S)
        else:
            request = {"state": "", "reason": ""}
            deadline = time.monotonic() + LAST_RITES_S
            while self._is_agent_alive() and time.monotonic() < deadline:
                time.sleep(TICK_S)
        exit_code = self._end(request["state"], request["reason"], patience_s=2.0)
        return None if self._should_hold() else exit_code

    def _reason_to_stop(self) -> Dict[str, Any]:
        """Ask the agent to stop if there is a reason; return the stop request, or {}."""
        grace = grace_s()
        if self.received_sigterm:
            return ask_to_stop(self.pod, machine_end_state(), "the guard received SIGTERM", grace)
        if self.limit_s is not None:
            save_s, upload_s = ends.leads_s(self.limit_s)
            left_s = self.limit_s - self.elapsed_s
            if left_s <= save_s:
                scale, why = self.job.clock_scale, f"the {ends.limit_words(self.job.limits)} is near"
                grace, carry = max(0.0, left_s - upload_s) / scale, min(left_s, upload_s) / scale
                return ask_to_stop(self.pod, "limit", why, grace, carry)
        if full := ends.full_disk(self.pod.root, self.job.limits):
            return ask_to_stop(self.pod, "failed", full, grace)
        idle = self.idle_gpu.stop_reason()
        return ask_to_stop(self.pod, "limit", idle, grace) if idle else {}

    def _ask_to_save(self) -> None:
        """Ask the training once per limit to save a checkpoint, when most of the limit is used."""
        if self.saved_for_s != self.limit_s and ends.is_save_due(self.elapsed_s, self.limit_s):
            self.saved_for_s = self.limit_s
            if read_json(self.pod.save_request).get("limit_s") != self.limit_s:  # an earlier guard has not asked
                say(f"{ends.SAVE_AT:.0%} of the {ends.limit_words(self.job.limits)} is used: asking for a checkpoint")
                try_write_json(self.pod.save_request, {"limit_s": self.limit_s})

    def _patience_s(self, request: Dict[str, Any]) -> float:
        """Return the seconds to wait for an agent after a stop request."""
        return float(request["grace_s"]) + upload_s_after_stop(self.job, request) + LAST_RITES_S

    def _is_agent_alive(self) -> bool:
        young = self.agent is not None and self.agent.poll() is None
        return young or is_held(lock(self.pod, "agent"))

    def _ensure_agent(self) -> None:
        # in this order, because the agent writes the verdict before ending
        if self._is_agent_alive() or self.pod.verdict.exists():
            self.missed_at = None
            return
        if self.agent is not None and self.missed_at is None:
            self.missed_at = time.monotonic()
            say(f"the agent ended without a verdict (exit code {self.agent.returncode})")
        most, within_s = CRASH_LOOP
        if len(self.starts) == most and self.elapsed_s - self.starts[0] < within_s:
            reason = f"the agent ended {most} times in {duration(within_s)} without a verdict; see logs/agent.log"
            ask_to_stop(self.pod, "failed", reason, 0.0)
            return
        if self.missed_at is not None and time.monotonic() < self.missed_at + REVIVAL.wait_s(len(self.starts) + 1):
            return  # the cause of the agent's end may last a while, and may also be ending the step
        self._record_orphan()
        self.agent = spawn(self.pod, self.job, "run")
        self.starts.append(self.elapsed_s)
        self.missed_at = None

    def _record_orphan(self) -> None:
        """Record for the next agent the exit code of a step that ended with, or soon after, the last agent."""
        attempt = read_json(attempt_file(self.pod))
        if attempt.get("pid") in self.orphans:
            try_write_json(attempt_file(self.pod), {"exit_code": self.orphans[attempt["pid"]], **attempt})
        self.orphans.clear()

    def _end(self, state: str, reason: str, patience_s: float) -> int:
        """End every process of the pod, write the verdict if the agent could not, and return the exit code."""
        survivors = end_all(self.job.token, patience_s)
        remaining = describe_survivors(survivors)
        if state == LEFT and not self.pod.verdict.exists():
            self._report()
            say(f"exited for a restart by the engine: {reason}; {remaining or 'no process is left'}")
            return 1 if survivors else 0
        ending = write_missing_verdict(
            self.pod, verdict(self.job, state, f"{reason}; {remaining}" if remaining else reason)
        )
        self._report()
        say(f"the end: {ending['state']} {ending['reason']}; {remaining or 'no process is left'}")
        return 1 if survivors else 0

    def terminate_pod(self) -> None:
        """End the pod itself after the verdict, if possible and due; then never return."""
        ending = read_json(self.pod.verdict) or verdict(self.job, "limit")
        if not self_terminate.is_due(self.job, ending):
            return
        if self.job.needs_key and not self.key:
            say("the work has ended; the guard was started without the key, so the vendor's own limit ends the pod")
            return
        self.is_terminating = True
        self._report()
        say("the work has ended; the guard deletes the pod")
        self._sleep(self_terminate.wait_s(self.job))
        if UNCARRIED in ending["reason"] and self.limit_s is not None and not self._is_limit_reached():
            say(f"waiting for the {ends.limit_words(self.job.limits)}: {ending['reason']}")
            self._sleep((self.limit_s - self.elapsed_s) / self.job.clock_scale)
        self_terminate.terminate_self(
            self.job.self_terminate_calls, self.job.clock_scale, os.getpid(), self._sleep, self.key
        )

    def _sleep(self, seconds: float) -> None:
        """Sleep for some seconds of real time, and keep the guard's report fresh."""
        deadline = time.monotonic() + seconds
        while (left_s := deadline - time.monotonic()) > 0:
            reap()
            if time.monotonic() - self.reported_at >= REPORT_EVERY_S:
                self._report()
            time.sleep(min(TICK_S, left_s))

    @retry_shortages
    def _elapsed_before_s(self) -> float:
        """Return the time used under earlier guards of this pod, including the gap since the last guard."""
        before = read_json(report(self.pod, "guard"))
        if before.get("token") != self.job.token:
            return self.job.limits.billed_s
        clocks = before["clocks"]
        gap = ends.gap_s(ends.Clocks(**clocks), ends.read_clocks()) if clocks else 0.0
        return before["elapsed_s"] + gap * self.job.clock_scale

    @retry_shortages
    def _report(self) -> None:
        self.reported_at = time.monotonic()
        clocks = ends.read_clocks()  # read before elapsed_s, so that the time in between counts twice rather than never
        elapsed_s = self.elapsed_s
        said = {
            "run": self.job.run,
            "token": self.job.token,
            "identity": asdict(current_identity()),
            "armed": True,
            "holds": self.is_holding,
            "limits": asdict(self.job.limits),
            "limit_s": self.limit_s,
            "stop_at_s": None if self.limit_s is None else self.limit_s - ends.leads_s(self.limit_s)[0],
            "elapsed_s": elapsed_s,
            "clock_scale": self.job.clock_scale,
            "spent_micro_usd": ends.spent_micro_usd(elapsed_s, self.job.limits),
            "clocks": asdict(clocks),
            "is_leaving": self.is_terminating,
            "idle_s": self.idle_gpu.idle_s,
            "start_timer": start_timer.read_timer() if self.job.has_start_timer else {},
            "self_end": "" if not self.job.needs_key else "armed" if self.key else "lost",
        }
        try_write_json(report(self.pod, "guard"), said)

    def _on_sigterm(self, *_: Any) -> None:
        self.received_sigterm = True
