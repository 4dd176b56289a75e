"""A single attempt at a step: starts the process in a new session, and watches until the process tree is gone.

Real work runs at real speed, so `timeout_s` and `silent_s` are measured on the machine's clock, independent of the
job's `clock_scale`.
"""

import hashlib
import json
import os
import re
import signal
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable, Dict, List, Optional

from infra.agent.amounts import duration
from infra.agent.job import PodFolder, Step, earlier_part, private
from infra.agent.process import reap
from infra.agent.shortage import prefer_for_oom_kill, retry_shortages, tolerate_shortage
from infra.agent.state import AgentError, attempt_file, grace_s, read_json, say, try_write_json, write_json

RESUME_ME = 75  # exit code of a step after a clean stop, ready to resume
POLL_S = 0.05
LEFTOVER_GRACE_S = 5.0  # grace for processes that outlive their step or agent
LEAVE_S = 3.0  # time for a step to notice the loss of a node
DUMP_S = 2.0  # time for faulthandler to write the stacks of a silent step
TAIL_BYTES, TAIL_LINES = 8000, 40
# The report of torchrun on a failed program; the error of the program stands above.
TORCHRUN_REPORT = re.compile(
    r"^(?:.*torch[./]distributed[./]elastic.* Sending process .*\n)*"
    r".*torch[./]distributed[./]elastic.*failed \(exitcode[\s\S]*?(?:^Root Cause[\s\S]*?^=+\n?|\Z)",
    re.MULTILINE,
)


@dataclass(frozen=True)
class AttemptOutcome:
    """The outcome of an attempt; `cut` is the agent's reason to end the step: stop, timeout, silent, nodes, or ""."""

    exit_code: int
    stop_reason: str = ""


@dataclass(frozen=True)
class StepWatch:
    """The agent's callbacks while a step runs."""

    tick: Callable[[], bool]  # called at every poll; True if the step has appended a record
    # seconds for a step to stop after a stop request, or None without a request
    stop_grace_s: Callable[[], Optional[float]]
    signal_all: Callable[[int], None]  # send a signal to every process of the step
    end_tree: Callable[[float], None]  # end the process tree after a grace in seconds; raise if a process survives
    end_reason: Callable[[], str] = str  # reason to end the step on all nodes, or ""


def attempt(pod: PodFolder, step: Step, words: List[str], environ: Dict[str, str], watch: StepWatch) -> AttemptOutcome:
    """Run the step once and end all processes of the step. Raises AgentError when the step cannot be started."""
    try:
        process = retry_shortages(begin)(pod, step, words, environ)
    except OSError as error:  # the environment or the code is gone
        raise AgentError(f"step {step.name} cannot be started: {error}") from error
    try_write_json(attempt_file(pod), {"step": step.name, "pid": process.pid})
    cut = _watch(process, step, watch)
    # The step ended by itself. If this agent is killed before the report, the next agent reads the exit code here.
    if not cut:
        try_write_json(attempt_file(pod), {"step": step.name, "pid": process.pid, "exit_code": process.returncode})
    watch.end_tree(LEFTOVER_GRACE_S if process.poll() is not None else 0.0)
    return AttemptOutcome(process.wait(), cut)


def begin(pod: PodFolder, step: Step, words: List[str], environ: Dict[str, str]) -> "subprocess.Popen[bytes]":
    """Start a step in a new session, with the output appended to the log. Raises OSError, MemoryError."""
    for folder in (pod.logs, pod.work):
        folder.mkdir(parents=True, exist_ok=True)
    os.stat(words[0])  # detect a missing program here, not in the shell
    with open(pod.log(step.name), "ab", opener=private) as log:  # private, because a step may print a secret
        return subprocess.Popen(
            prefer_for_oom_kill(words),
            cwd=pod.code,
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def unreported_exits(pod: PodFolder) -> Dict[str, int]:
    """Return {step: exit code} of a failed step whose agent died before reporting the failure, else {}."""
    attempt = read_json(attempt_file(pod))
    if "exit_code" not in attempt:  # a running step is killed next, so the exit code has no meaning
        attempt_file(pod).unlink(missing_ok=True)
    code = attempt.get("exit_code", 0)
    return {} if code in (0, RESUME_ME) else {attempt["step"]: code}


def _watch(process: "subprocess.Popen[bytes]", step: Step, watch: StepWatch) -> str:
    """Watch a process until the process has ended or used up the allowed time; return the reason to cut, or ""."""
    cut, kill_at = "", 0.0
    started = spoke = time.monotonic()
    while process.poll() is None:
        with tolerate_shortage(say, f"checking {step.name}"):
            reap(keep=process.pid)
            now = time.monotonic()
            if watch.tick():
                spoke = now
            patience_s = watch.stop_grace_s()
            if cut:
                if now >= kill_at:
                    break
            elif patience_s is not None:
                cut, kill_at = "stop", now + patience_s
                process.send_signal(signal.SIGTERM)
            elif step.timeout_s is not None and now - started >= step.timeout_s:
                cut, kill_at = "timeout", now + grace_s()
                process.send_signal(signal.SIGTERM)
            elif step.silent_s is not None and now - spoke >= step.silent_s:
                cut, kill_at = "silent", now + DUMP_S
                say(f"{step.name}: no record for {duration(step.silent_s)}; dumping the stacks of all processes")
                watch.signal_all(signal.SIGUSR1)
            elif watch.end_reason():
                cut, kill_at = "nodes", now + LEAVE_S
        time.sleep(POLL_S)
    retry_shortages(watch.tick)()
    return cut


def digest(step: Step) -> str:
    """Return the digest of a step for the mark, from words and config."""
    return hashlib.sha256(json.dumps([step.words, step.config], sort_keys=True).encode()).hexdigest()


def read_mark(pod: PodFolder, step: Step) -> Optional[Dict[str, Any]]:
    """Return the mark of exactly this step, including the result, or None."""
    mark = read_json(pod.mark(step.name))
    return mark if mark.get("digest") == digest(step) else None


def mark(pod: PodFolder, step: Step, result: Any) -> None:
    write_json(pod.mark(step.name), {"digest": digest(step), "result": result, "at": time.time()})


@retry_shortages
def tail(pod: PodFolder, step: str) -> str:
    """Return the last lines of a step's log, including the rotated part, without reports of torchrun."""
    text = TORCHRUN_REPORT.sub("", read_log_end(pod.log(step)).decode(errors="replace"))
    return "\n".join(text.rstrip("\n").splitlines()[-TAIL_LINES:])


def read_log_end(log: Path) -> bytes:
    """Return the last complete lines of a log, preceded by the last lines of the rotated part."""
    return b"".join(map(_last_lines, (earlier_part(log), log)))


def _last_lines(path: Path) -> bytes:
    try:
        with open(path, "rb") as file:
            begin = max(0, file.seek(0, 2) - TAIL_BYTES)
            file.seek(begin)
            content = file.read()
    except FileNotFoundError:
        return b""
    # Only complete lines: half of a secret would not be recognized and redacted.
    return begin and content.partition(b"\n")[2] or content


def describe_failure(ending: AttemptOutcome, step: Step) -> str:
    """Return the reason why a step failed, as text for users."""
    if ending.stop_reason == "timeout":
        return f"step {step.name} reached the time limit of {duration(step.timeout_s)}"
    if ending.exit_code < 0:
        name = signal.Signals(-ending.exit_code).name
        why = "; the usual cause: the machine ran out of memory" if name == "SIGKILL" else ""
        return f"step {step.name} was killed by {name}{why}"
    return f"step {step.name} failed with exit code {ending.exit_code}"
