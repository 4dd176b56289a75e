"""The agent: runs the steps of a job in order and writes the verdict.

    end leftovers of an earlier agent -> environments -> each step without a mark -> last uploads -> verdict

The agent reads job.json, secrets.json and code/, and writes progress.json, marks, logs and verdict.json. Every exit
path runs `finish`; after a SIGKILL the guard starts a new agent.
"""

import os
import signal
import subprocess
import sys
import time
import traceback
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Callable, Dict, List, Optional, Set

from infra.agent import limits, step_zero
from infra.agent.execution import steps
from infra.agent.execution.nodes import NodeCallbacks, Nodes, environ_of, nodes_of
from infra.agent.execution.progress import Growth, Progress, RecordTail, Redactor
from infra.agent.execution.sidecars import Sidecar
from infra.agent.execution.trackers import Tracker
from infra.agent.job import Job, PodFolder, Step, private
from infra.agent.process import (
    TOKEN,
    become_subreaper,
    current_identity,
    descendants,
    describe_survivors,
    end_all,
    find,
    send,
)
from infra.agent.shortage import exempt_from_oom_killer, retry_shortages, tolerate_shortage
from infra.agent.state import (
    ENGINE,
    LEFT,
    NODE_LOST,
    UNCARRIED,
    AgentError,
    acquire_lock,
    ask_to_stop,
    grace_s,
    is_held,
    live_process,
    lock,
    machine_end_state,
    read_job,
    read_json,
    release_space,
    report,
    reserve_space,
    say,
    spawn,
    stop_file,
    try_read_json,
    try_write_json,
    upload_s_after_stop,
    verdict,
    write_json,
)

REVIVE_EVERY_S = 0.5
TAKEN_S = 3.0  # maximum delay between the end of a step by an engine's signal and the arrival of the stop request
TRACKERS_S = 60.0  # time for trackers to send remaining metrics on a free machine, where their environment may be new
TRACKERS_PAID_S = 10.0  # the same on a rented machine, and for a tracker that does not answer
TRACKERS_ASKED_S = 5.0  # the same after a stop request


def run(root: Path) -> int:
    """Run the job to the verdict; return 0 if the job succeeded or an engine restarts the work, else 1.

    Returns 0 at once if the pod has an agent or a verdict.
    """
    pod = PodFolder(root)
    job = read_job(pod)
    if acquire_lock(lock(pod, "agent")) is None or pod.verdict.exists():
        return 0
    exempt_from_oom_killer()
    become_subreaper()
    agent = Agent(pod, job, read_json(pod.secrets))
    signal.signal(signal.SIGTERM, agent.on_sigterm)
    try:
        ending = agent.run_job()
    except AgentError as error:
        ending = verdict(job, "failed", str(error), agent.step)
    except Exception as error:  # every failure must produce a verdict
        ending = verdict(job, "failed", f"the agent failed: {error}", agent.step)
        ending["tail"] = traceback.format_exc()
    return agent.finish(ending)


class Agent:
    def __init__(self, pod: PodFolder, job: Job, secrets: Dict[str, str]) -> None:
        self.pod = pod
        self.job = job
        self.secrets = secrets
        self.redact = Redactor(secrets)
        self.received_sigterm = False
        self.step = ""
        self.unreported_exits: Dict[str, int] = {}
        self.guard: Optional[subprocess.Popen[bytes]] = None
        self.revived_at = 0.0
        zero = step_zero.step_of(job, pod.code)
        self.steps = [zero, *job.steps] if zero.config["names"] else list(job.steps)
        self.pythons: Dict[str, str] = {"": sys.executable}
        try_write_json(report(pod, "agent"), {"token": job.token, "identity": asdict(current_identity())})
        self.nodes: Optional[Nodes] = None
        self.uploader: Optional[Sidecar] = None
        if job.beside and not job.group.rank:
            self.uploader = self.create_uploader(job.beside)
        self.trackers = [self.create_tracker(step) for step in job.trackers] if not job.group.rank else []
        self.progress = Progress(pod, job, [step.name for step in self.steps], self.redact)

    def run_job(self) -> Dict[str, Any]:
        """Run the steps of the job; return the verdict."""
        self.nodes = nodes_of(self.job.group)
        self.restart_guard()
        self.unreported_exits = steps.unreported_exits(self.pod)
        self.end_tree(steps.LEFTOVER_GRACE_S)  # also ends the sidecars of an earlier agent
        for stale in (self.pod.ending, self.pod.waiting):
            retry_shortages(stale.unlink)(missing_ok=True)
        reserve_space(self.pod)
        missing = [name for name in self.job.secrets if name not in self.secrets]
        if missing:
            return verdict(self.job, "failed", f"not in {self.pod.secrets.name}: {', '.join(missing)}")
        for step in self.steps:
            self.step = step.name
            if self.stop_request():
                return self.stopped_verdict(None)
            with tolerate_shortage(say, "checking the sidecars"):
                self.supervise_sidecars()
            ending = self.run_step(step)
            if ending:
                return ending
        self.step = ""
        return verdict(self.job, "succeeded", exit_code=0)

    def run_step(self, step: Step) -> Optional[Dict[str, Any]]:
        """Run a step; return None when the step is done, else the verdict."""
        mark = steps.read_mark(self.pod, step)
        if mark:
            self.progress.end(step.name, "reused", mark["result"])
            if self.nodes:
                self.nodes.announce_done(step.name, mark["result"])
            return None
        write_json(self.pod.config(step.name), step.config)
        if self.nodes and step.together:
            return self.run_on_all_nodes(step)
        if step.name in self.unreported_exits:  # for example, memory would run out again
            code = self.unreported_exits[step.name]
            return self.record_failure(step, steps.describe_failure(steps.AttemptOutcome(code), step), code)
        for _ in range(1 + step.max_restarts):
            ending = self.attempt(step)
            say(f"{step.name}: exit code {ending.exit_code} {ending.stop_reason}")
            # torchrun leaves with RESUME_ME when asked to stop, also if the processes then publish the model.
            is_stopped, result = ending.stop_reason == "stop", self.progress.steps[step.name]["result"]
            left_with_result = is_stopped and ending.exit_code == steps.RESUME_ME and result
            if left_with_result or ending.exit_code == 0 and ending.stop_reason in ("", "stop"):
                self.record_done(step)
                return None
            if is_stopped:
                self.progress.end(step.name, "waiting")
                return self.stopped_verdict(ending.exit_code)
            if ending.stop_reason == "timeout" or ending.stop_reason == "" and ending.exit_code != steps.RESUME_ME:
                return self.record_failure(step, steps.describe_failure(ending, step), ending.exit_code)
        why = "fell silent" if ending.stop_reason == "silent" else f"ended with exit code {steps.RESUME_ME}"
        return self.record_failure(step, f"step {step.name} {why} {1 + step.max_restarts} times", ending.exit_code)

    def run_on_all_nodes(self, step: Step) -> Optional[Dict[str, Any]]:
        """Run a step on all nodes at the same time; return None when the step is done, else the verdict."""
        assert self.nodes is not None

        def wait(text: str) -> None:
            self.progress.add_records(step.name, [{"kind": "note", "at": time.time(), "text": text}])
            self.supervise_sidecars()
            time.sleep(steps.POLL_S)

        here = NodeCallbacks(lambda why_over: self.attempt(step, why_over), lambda: bool(self.stop_request()), wait)
        outcome = self.nodes.run(step, here)
        say(f"{step.name}: {outcome.state} {outcome.reason}")
        if outcome.state == "done":
            self.record_done(step, outcome.result)
            self.nodes.announce_done(step.name, self.progress.steps[step.name]["result"])
            return None
        if self.stop_request():
            self.progress.end(step.name, "waiting")
            return self.stopped_verdict(outcome.exit_code)
        if outcome.state == "failed":
            return self.record_failure(step, outcome.reason, outcome.exit_code)
        self.progress.end(step.name, "waiting")
        return verdict(self.job, outcome.state, outcome.reason, step.name, outcome.exit_code, outcome.lost)

    def attempt(self, step: Step, why_over: Callable[[], str] = str) -> steps.AttemptOutcome:
        records, log = RecordTail(self.pod.records(step.name)), Growth(self.pod.log(step.name))
        self.progress.begin(step.name)

        def tick() -> bool:
            fresh = records.read()
            self.progress.add_records(step.name, fresh)
            log.record_if_due()
            self.supervise_sidecars()
            return bool(fresh)

        several = self.nodes is not None or self.job.num_gpus > 1
        before = step.together if several else ()
        words = [self.pythons[step.environment], *before, *step.words, "--config", str(self.pod.config(step.name))]
        if self.nodes and self.job.group.rank and step.together:
            step = replace(step, silent_s=None)  # only node 0 writes records, so only node 0 watches for silence
        watch = steps.StepWatch(tick, self.stop_grace_s, self.signal_all, self.end_tree, why_over)
        ending = steps.attempt(self.pod, step, words, self.environ(step), watch)
        log.record_size()
        if not ending.stop_reason and ending.exit_code not in (0, steps.RESUME_ME) and self.is_preempted(TAKEN_S):
            return replace(ending, stop_reason="stop")
        return ending

    def is_preempted(self, within_s: float) -> bool:
        """Return whether an engine is taking this machine away.

        Waits up to `within_s` seconds for the stop request, because the engine signals all processes and the step may
        end first.
        """
        deadline = time.monotonic() + within_s
        while os.environ.get(ENGINE) and self.stop_request().get("state") != LEFT and time.monotonic() < deadline:
            time.sleep(steps.POLL_S)
        return bool(os.environ.get(ENGINE)) and self.stop_request().get("state") == LEFT

    def record_done(self, step: Step, result: Any = None) -> None:
        result = self.progress.steps[step.name]["result"] or result
        if step.name == step_zero.NAME:  # step 0 checks the environments again in every agent
            self.pythons.update(result["pythons"])
        else:
            steps.mark(self.pod, step, self.redact(result))
        self.progress.end(step.name, "done", result)

    def record_failure(self, step: Step, reason: str, exit_code: Optional[int]) -> Dict[str, Any]:
        self.progress.end(step.name, "failed")
        ending = verdict(self.job, "failed", reason, step.name, exit_code)
        ending["tail"] = steps.tail(self.pod, step.name)
        return ending

    def stopped_verdict(self, exit_code: Optional[int]) -> Dict[str, Any]:
        request = self.stop_request()
        ending = verdict(self.job, request["state"], request["reason"], self.step, exit_code)
        if exit_code not in (None, steps.RESUME_ME):  # the step did not stop cleanly
            ending["tail"] = steps.tail(self.pod, self.step)
        return ending

    def finish(self, ending: Dict[str, Any]) -> int:
        """End all steps, upload the results, close the progress and write the verdict; return the exit code."""
        self.end_steps(ending, steps.LEFTOVER_GRACE_S)
        ending = {name: self.redact(one) if name in ("reason", "tail") else one for name, one in ending.items()}
        if ending["state"] == "failed":
            self.write_error(ending)
        if ending["state"] == NODE_LOST and os.environ.get(ENGINE):  # the engine restarts all nodes
            ending["state"] = LEFT
        if self.nodes:
            self.nodes.close(ending["state"], ending["reason"], ending["lost"])
        if ending["state"] == LEFT:
            return self.exit_for_engine(ending)
        with tolerate_shortage(say, "stopping the trackers"):
            self.stop_trackers(ending)
        if self.uploader:
            self.finish_uploads(self.uploader, ending)
        release_space(self.pod.verdict)  # no other process writes to the disk any more
        self.progress.close(ending["state"])
        say(f"verdict: {ending['state']} {ending['reason']}")
        while not self.pod.verdict.exists():
            with tolerate_shortage(say, "writing the verdict"):
                write_json(self.pod.verdict, ending)
                break
            with tolerate_shortage(say, "checking the guard"):  # the guard enforces the limits meanwhile
                self.restart_guard()
        if self.job.self_terminate_calls and not is_held(lock(self.pod, "guard")):  # the guard ends the pod
            spawn(self.pod, self.job, "guard")
        return 0 if ending["state"] == "succeeded" else 1

    def exit_for_engine(self, ending: Dict[str, Any]) -> int:
        """Exit without a verdict, because the engine restarts the work."""
        ask_to_stop(self.pod, LEFT, ending["reason"], 0.0)  # prevents the guard from restarting this agent
        self.progress.close("waiting")
        say(f"exiting for a restart by the engine: {ending['reason']}")
        return 0

    def end_steps(self, ending: Dict[str, Any], patience_s: float) -> None:
        """End all steps; add surviving processes to the reason of the verdict."""
        try:
            self.end_tree(patience_s)
        except AgentError as error:
            _add(ending, str(error))

    def finish_uploads(self, beside: Sidecar, ending: Dict[str, Any]) -> None:
        """Wait for the sidecar's remaining uploads within the time allowed by the guard; report missing uploads."""
        asked = self.stop_request()
        guard = try_read_json(report(self.pod, "guard"))
        ends_at = time.monotonic() + (
            0.9 * upload_s_after_stop(self.job, asked) if asked else limits.upload_allowance_s(self.job, guard)
        )
        try_write_json(self.pod.ending, {**ending, "ends_at_monotonic_s": ends_at})

        def deadline() -> float:
            nonlocal asked, ends_at
            if not asked:
                asked = self.stop_request()
                if asked:  # a stop request shortens the deadline
                    ends_at = min(ends_at, time.monotonic() + 0.9 * upload_s_after_stop(self.job, asked))
            return ends_at

        if self.job.beside and self.job.beside.environment not in self.pythons:
            _add(ending, "the logs are not in the store: the pod has no environment to upload the logs")
        elif not beside.finish(deadline, self.refresh):
            names = try_read_json(self.pod.waiting).get("names", [])
            _add(ending, f"{UNCARRIED}: {', '.join(names) or f'see logs/{beside.step.name}.log'}")
        self.uploader = None  # from here on the sidecar may be ended too
        self.end_steps(ending, 0.0)

    def stop_trackers(self, ending: Dict[str, Any]) -> None:
        """Wait briefly for the trackers to send remaining metrics, and add the trackers without them to the reason.

        The state of the verdict does not depend on trackers.
        """
        # A report after the request is not silence: the last metrics of a tracker that works may take a while.
        silent = [one for one in self.trackers if one.problem()]
        for one in self.trackers:
            one.terminate()
        began = time.monotonic()
        guard = try_read_json(report(self.pod, "guard"))
        is_paid = bool(self.job.limits.micro_usd_per_hour)
        longest_s = min(TRACKERS_PAID_S if is_paid else TRACKERS_S, limits.upload_allowance_s(self.job, guard) / 4)
        while running := [one for one in self.trackers if one.pid() is not None]:
            silent = [one for one in silent if one.problem()]
            are_silent = all(one in silent for one in running)
            patience_s = min(longest_s, TRACKERS_PAID_S) if are_silent else longest_s
            if time.monotonic() - began > (TRACKERS_ASKED_S if self.stop_request() else patience_s):
                say("a tracker did not finish in time; the agent ended the tracker")
                break
            self.refresh()
            time.sleep(steps.POLL_S)
        for one in self.trackers:
            if problem := one.missing():
                name, command = one.step.config["tracker"], one.step.config.get("sent_later_by")
                hint = f"; to send them: {command} {self.job.run}" if command else ""
                _add(ending, f"not all metrics are in {name} ({problem}); they are in work/runs of the run{hint}")
        self.trackers = []

    def refresh(self) -> None:
        self.restart_guard()
        self.progress.refresh()

    def write_error(self, ending: Dict[str, Any]) -> None:
        when = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
        text = f"run {self.job.run}, step {ending['step'] or '-'}: {ending['reason']}\n\n{ending['tail']}\n"
        try:
            with open(self.pod.log(f"error-{when}"), "w", encoding="utf-8", opener=private) as log:
                log.write(text)
        except OSError as error:
            say(f"could not write the error log: {error}")

    def environ(self, step: Step) -> Dict[str, str]:
        pod, python = self.pod, Path(self.pythons[step.environment])
        environ = {**os.environ, **self.job.environ}
        if step.name != step_zero.NAME:
            environ.update({name: self.secrets[name] for name in self.job.secrets if name in self.secrets})
        environ.update(
            {
                TOKEN: self.job.token,
                "SLIPWAY_RUN_ID": self.job.group.run or self.job.run,
                "SKYPILOT_TASK_ID": self.job.group.run or self.job.run,
                **environ_of(self.job.group, self.job.num_gpus),
                "SLIPWAY_WORK": str(pod.work),
                "SLIPWAY_RECORDS": str(pod.records(step.name)),
                "SLIPWAY_SAVE_REQUEST": str(pod.save_request),
                "SLIPWAY_GUARD_REPORT": str(report(pod, "guard")),
                "PYTHONPATH": str(pod.code),
                "PYTHONUNBUFFERED": "1",
                # Container images often disable bytecode files; every step would then compile all imports of torch.
                "PYTHONDONTWRITEBYTECODE": "",
                "PATH": os.pathsep.join([str(python.parent), environ.get("PATH", os.defpath)]),
            }
        )
        return environ

    def stop_request(self) -> Dict[str, Any]:
        """Return the stop request (state, reason, grace), or {} without a request."""
        asked = read_json(stop_file(self.pod))
        if not asked and self.received_sigterm:
            return {"state": machine_end_state(), "reason": "the agent received SIGTERM", "grace_s": grace_s()}
        return asked

    def stop_grace_s(self) -> Optional[float]:
        return self.stop_request().get("grace_s")

    def on_sigterm(self, *_: Any) -> None:
        self.received_sigterm = True

    def create_uploader(self, step: Step) -> Sidecar:
        def words() -> List[str]:
            try_write_json(self.pod.config(step.name), step.config)
            return [self.pythons[step.environment], *step.words, "--config", str(self.pod.config(step.name))]

        return Sidecar(self.pod, step, words, lambda: self.environ(step))

    def create_tracker(self, step: Step) -> Tracker:
        """Return the sidecar for a tracker; the sidecar builds a separate environment by itself."""

        def words() -> List[str]:
            try_write_json(self.pod.config(step.name), step.config)
            return [self.pythons[step.environment], *step.words, "--config", str(self.pod.config(step.name))]

        def environ() -> Dict[str, str]:
            own = {"SLIPWAY_ENVIRONMENTS": self.job.environments} if self.job.environments else {}
            return {**self.environ(step), **own}

        return Tracker(self.pod, step, words, environ)

    def supervise_sidecars(self) -> None:
        """Keep the guard alive, and each sidecar once the environment of the sidecar exists."""
        self.restart_guard()
        for one in self.trackers:
            if one.step.environment in self.pythons:
                one.ensure_running()
        if self.uploader and self.job.beside and self.job.beside.environment in self.pythons:
            self.uploader.ensure_running()

    def restart_guard(self) -> None:
        """Restart the guard, except after a stop request."""
        now = time.monotonic()
        if now - self.revived_at < REVIVE_EVERY_S or is_held(lock(self.pod, "guard")) or self.stop_request():
            return
        self.revived_at = now
        if self.guard is None or self.guard.poll() is not None:
            say("the guard is not running; starting a guard")
            self.guard = spawn(self.pod, self.job, "guard")

    def protected_pids(self) -> Set[int]:
        guard = live_process(self.pod, "guard")
        asked = self.progress.figures.asked  # on a broken driver nvidia-smi cannot be killed
        young = {one.pid for one in (self.guard, asked) if one and one.poll() is None}
        for beside in (self.uploader, *self.trackers):
            pid = beside.pid() if beside else None
            young |= descendants(pid) if pid else set()
        # the parent may be a guard without a written report
        return young | ({guard.pid} if guard else set()) | {os.getppid()}

    def signal_all(self, number: int) -> None:
        spared = self.protected_pids() | {os.getpid()}
        for one in find(self.job.token):
            if one.pid not in spared:
                send(one, number)

    @retry_shortages
    def end_tree(self, patience_s: float) -> None:
        """End all processes of the pod except guard and agent. Raises AgentError with the surviving processes."""
        if self.is_preempted(steps.POLL_S):  # children of the step may have received the signal too, and be saving
            patience_s = grace_s()
        left = end_all(self.job.token, min(patience_s, grace_s()), self.protected_pids())
        if left:
            raise AgentError(describe_survivors(left))


def _add(ending: Dict[str, Any], words: str) -> None:
    """Append `words` to the reason of a verdict, unless the reason contains the words already."""
    if words not in ending["reason"]:
        ending["reason"] = f"{ending['reason']}; {words}".lstrip("; ")
