"""One attempt at one step: a process in a session of its own, watched until it and its tree are gone.

In: the words to run and their environment. Out: how it ended. Real work runs at real speed, so `timeout_s` and
`silent_s` are measured on this machine's clock whatever the job's clock_scale.
"""

import hashlib
import json
import os
import signal
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable, Dict, List, Optional

from infra.agent.amounts import duration
from infra.agent.job import PodFolder, Step, earlier_part, private
from infra.agent.process import reap
from infra.agent.shortage import offered_first, outlasting, patient
from infra.agent.state import AgentError, attempt_file, grace_s, read_json, say, tell, write_json

RESUME_ME = 75  # exit code of a step that stopped in good order
POLL_S = 0.05
LEFTOVER_GRACE_S = 5.0  # time for the end of a process that has outlived its step or its agent
LEAVE_S = 3.0  # time for a step to find out for itself that another node is gone
DUMP_S = 2.0  # time for faulthandler to write the stacks of a silent step
TAIL_BYTES, TAIL_LINES = 8000, 40


@dataclass(frozen=True)
class Ending:
    """The outcome of an attempt; `cut` is why the agent ended it: stop, timeout, silent, nodes, or "" if it did not."""

    exit_code: int
    cut: str = ""


@dataclass(frozen=True)
class StepWatch:
    """The callbacks of the agent while a step runs."""

    tick: Callable[[], bool]  # called at every look; true when the step has appended a record
    stop_grace_s: Callable[[], Optional[float]]  # None, or how long the step may take to stop now
    signal_all: Callable[[int], None]  # to every process of the step's tree
    end_tree: Callable[[float], None]  # with so much patience; raises when a process cannot be ended
    why_over: Callable[[], str] = str  # reason why the step must end on all nodes; "" while it need not


def attempt(pod: PodFolder, step: Step, words: List[str], environ: Dict[str, str], watch: StepWatch) -> Ending:
    """Run the step once. Afterwards no process of it is left. Raises AgentError when it cannot be started."""
    try:
        process = patient(begin)(pod, step, words, environ)
    except OSError as error:  # the environment or the code is gone
        raise AgentError(f"step {step.name} cannot be started: {error}") from error
    tell(attempt_file(pod), {"step": step.name, "pid": process.pid})
    cut = _watch(process, step, watch)
    if not cut:  # it has ended by itself: the next agent finds its exit code if we are killed before we report it
        tell(attempt_file(pod), {"step": step.name, "pid": process.pid, "exit_code": process.returncode})
    watch.end_tree(LEFTOVER_GRACE_S if process.poll() is not None else 0.0)
    return Ending(process.wait(), cut)


def begin(pod: PodFolder, step: Step, words: List[str], environ: Dict[str, str]) -> "subprocess.Popen[bytes]":
    """Start it in a session of its own, its words in its log. Raises OSError, MemoryError."""
    for folder in (pod.logs, pod.work):
        folder.mkdir(parents=True, exist_ok=True)
    os.stat(words[0])  # a missing program is to be noticed here, and not by the shell
    with open(pod.log(step.name), "ab", opener=private) as log:  # a step may print a secret
        return subprocess.Popen(
            offered_first(words),
            cwd=pod.code,
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def unsaid(pod: PodFolder) -> Dict[str, int]:
    """Return the exit code by which a step failed whose agent died before it could report it, by the step's name."""
    attempt = read_json(attempt_file(pod))
    if "exit_code" not in attempt:  # if it still runs it is ended now, and its exit code then says nothing
        attempt_file(pod).unlink(missing_ok=True)
    code = attempt.get("exit_code", 0)
    return {} if code in (0, RESUME_ME) else {attempt["step"]: code}


def _watch(process: "subprocess.Popen[bytes]", step: Step, watch: StepWatch) -> str:
    """Watch until the process has ended or has used up its time; return why it was cut short."""
    cut, kill_at = "", 0.0
    started = spoke = time.monotonic()
    while process.poll() is None:
        with outlasting(say, f"a look at {step.name}"):
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
                say(f"{step.name}: no record for {duration(step.silent_s)}; dumping its stacks")
                watch.signal_all(signal.SIGUSR1)
            elif watch.why_over():
                cut, kill_at = "nodes", now + LEAVE_S
        time.sleep(POLL_S)
    patient(watch.tick)()
    return cut


def digest(step: Step) -> str:
    """Return the digest that stands for this step in its mark: of its words and its config."""
    return hashlib.sha256(json.dumps([step.words, step.config], sort_keys=True).encode()).hexdigest()


def marked(pod: PodFolder, step: Step) -> Optional[Dict[str, Any]]:
    """Return the mark of this very step, with its result, or None."""
    mark = read_json(pod.mark(step.name))
    return mark if mark.get("digest") == digest(step) else None


def mark(pod: PodFolder, step: Step, result: Any) -> None:
    write_json(pod.mark(step.name), {"digest": digest(step), "result": result, "at": time.time()})


@patient
def tail(pod: PodFolder, step: str) -> str:
    """Return the last lines of a step's log, and of its earlier part where it was rotated."""
    return "\n".join(end_of(pod.log(step)).decode(errors="replace").splitlines()[-TAIL_LINES:])


def end_of(log: Path) -> bytes:
    """Return the last whole lines of a log, behind those of its earlier part where it was rotated."""
    return b"".join(map(_last_lines, (earlier_part(log), log)))


def _last_lines(path: Path) -> bytes:
    try:
        with open(path, "rb") as file:
            begin = max(0, file.seek(0, 2) - TAIL_BYTES)
            file.seek(begin)
            content = file.read()
    except FileNotFoundError:
        return b""
    # Whole lines: half of a secret would not be known as one.
    return begin and content.partition(b"\n")[2] or content


def in_words(ending: Ending, step: Step) -> str:
    """Return why a step failed, for people."""
    if ending.cut == "timeout":
        return f"step {step.name} ran into its limit of {duration(step.timeout_s)}"
    if ending.exit_code < 0:
        name = signal.Signals(-ending.exit_code).name
        why = ", as happens when the machine runs out of memory" if name == "SIGKILL" else ""
        return f"step {step.name} was killed by {name}{why}"
    return f"step {step.name} failed with exit code {ending.exit_code}"
