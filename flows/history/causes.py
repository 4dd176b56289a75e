"""Rules for the cause of a run's state, from recorded evidence. Pure.

`cause_of` turns a `RunEvidence` (journal rows, verdict, last log lines of a step) into a `Cause` with a name, a
sentence and advice. The first matching rule decides; the rules are ordered from the most certain to the most general. A
sentence quotes a record: a field of a row, the verdict or the progress, or a log line. Likely causes are marked as
likely.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from infra.agent.job import Job
from infra.ledger.op import ASKED, CUT_OFF, TERMINATED, Op
from infra.runs import observation
from infra.units import count, moment

GPU_MEMORY = re.compile(r"GPU's memory is full|CUDA out of memory|OutOfMemoryError|CUDA error: out of memory", re.I)
KILLED = re.compile(r"SIGKILL|exit code (137|-9)\b")
MEMORY = re.compile(r"Out of memory: Killed|oom-kill|MemoryError|Cannot allocate memory")
STACKS = re.compile(r"most recent call first")
DISK = re.compile(r"disk nearly full|No space left on device|disk is full|ENOSPC|Disk quota exceeded", re.I)
IDLE = re.compile(r"GPUs? idle|idle for")
SILENT = re.compile(r"fell silent")
SHOWN_STOPS = 3
EXIT_CODE = re.compile(r"failed with exit code (-?\d+)")
SIGNAL = re.compile(r"killed by (SIG[A-Z0-9]+)")


@dataclass(frozen=True, kw_only=True)
class RunEvidence:
    """The evidence about a run, a pod or a replica."""

    run: str
    state: str
    """State as shown by `inv status`."""
    rows: Sequence[Op]
    """Rows of all pods of the run, oldest first."""
    armed: frozenset[str] = frozenset()
    """Tokens of the pods that received the job."""
    verdict: Mapping[str, Any] = field(default_factory=dict)
    progress: Mapping[str, Any] = field(default_factory=dict)
    words: str = ""
    """The last log lines of the last active step."""
    stops: Sequence[str] = ()
    """Display text for each stop of the work before a resumption, oldest first; lost pods are in `rows`."""
    why: str = ""
    """Explanation by the controller or the provider."""
    is_engine: bool = False
    """True for a replica of a service: a process that answers requests and has no natural end."""
    has_service: bool = False
    """True while the service of the replica has not ended."""
    is_kept: bool = False
    """True while a process follows the run, and replaces a lost pod."""
    recoveries: int = 0
    money: str = ""
    """Spent money and the limit, as display text; "" without a limit."""

    @property
    def reason(self) -> str:
        return str(self.verdict.get("reason") or self.why)

    @property
    def step(self) -> str:
        return str(self.verdict.get("step") or self.progress.get("step") or "")

    @property
    def all_words(self) -> str:
        return "\n".join((self.reason, str(self.verdict.get("tail") or ""), self.words))


@dataclass(frozen=True)
class Cause:
    name: str
    """preemption, limit, idle GPU, bad host, out of memory, full disk, killed engine, ..."""
    says: str
    then: str
    """Advice, with the command to type."""


def cause_of(one: RunEvidence) -> Cause:
    """Return the cause found by the first matching rule."""
    return next(found for rule in RULES if (found := rule(one)) is not None)


def _disk(one: RunEvidence) -> Cause | None:
    if not DISK.search(one.all_words) or one.state in ("running", "succeeded"):
        return None
    return Cause(
        "full disk",
        f"the disk was full in {_where(one)}: {_quoted(DISK, one.all_words)}",
        f"free disk space on the machine, then: inv resume {one.run}; or launch again with a larger disk (--disk-size "
        "GB), or with fewer checkpoints (--keep 2)",
    )


def _gpu_memory(one: RunEvidence) -> Cause | None:
    if not GPU_MEMORY.search(one.all_words) or one.state in ("running", "succeeded"):
        return None
    return Cause(
        "out of memory",
        f"the GPU ran out of memory in {_where(one)}: {_quoted(GPU_MEMORY, one.all_words)}",
        f"use fewer rows at once (--set {one.step or 'sft'}.micro_rows=1) or a larger GPU; to list the GPUs that "
        "fit: inv fit",
    )


def _engine(one: RunEvidence) -> Cause | None:
    if not one.is_engine or one.state == "running" or one.verdict.get("state") == "stopped":
        return None
    reason = one.reason or (one.rows[-1].reason if one.rows else "")  # The row outlives the replica's folder.
    signal, exit_code = SIGNAL.search(reason), EXIT_CODE.search(reason)
    code = one.verdict.get("exit_code", exit_code and exit_code[1])
    if not signal and code is None:
        return None
    before = f"exit code {code}: "
    error = next(
        (told.partition(before)[2] for told in (one.why, *(op.reason for op in one.rows)) if before in told), ""
    )
    error = f": {error}" if error else ""
    how = f"killed by {signal[1]}" if signal else f"ended with exit code {code}{error}"
    name, _, number = one.run.rpartition("-")
    others = f"; other replicas: inv serve.status {name}" if one.has_service else ""
    more = "; the machine has probably run out of memory" if signal and signal[1] == "SIGKILL" else ""
    return Cause(
        "killed engine",
        f"the engine of the replica was {how}{more}" if signal else f"the engine of the replica {how}",
        f"last log lines: inv serve.logs {name} --replica-id {number}{others}",
    )


def _memory(one: RunEvidence) -> Cause | None:
    if one.state in ("running", "succeeded"):
        return None
    is_killed = one.verdict.get("exit_code") in (-9, 137) or bool(KILLED.search(one.reason))
    if MEMORY.search(one.all_words):
        said = f"the machine ran out of memory in {_where(one)}: {_quoted(MEMORY, one.all_words)}"
    elif is_killed:
        said = (
            f"{_where(one)} was killed by SIGKILL; no record names the sender. The machine has probably run out of "
            "memory"
        )
    elif KILLED.search(one.words):
        said = f"the log says: {_quoted(KILLED, one.words)}; the machine has probably run out of memory"
    else:
        return None
    again = "launch again on a machine with more memory (--memory GB), or with smaller batches"
    then = again if MEMORY.search(one.all_words) else f"continue: inv resume {one.run}; if that fails too, {again}"
    return Cause("out of memory", said, then)


def _idle(one: RunEvidence) -> Cause | None:
    if one.state != "limit" or not IDLE.search(one.reason):
        return None
    return Cause(
        "idle GPU",
        f"the run reached the limit for idle GPUs: {one.reason}",
        f"read the log for the cause: inv logs {one.run}; then launch again, with a longer --idle-stop if GPUs had to "
        "wait",
    )


def _limit(one: RunEvidence) -> Cause | None:
    outcome = one.rows[-1].outcome if one.rows else ""
    if one.state != "limit" and outcome != "limit":
        return None
    said = one.reason or (one.rows[-1].reason if one.rows else "")
    spent = one.money and f" ({one.money} spent)"
    then = f"continue with the same limit again: inv resume {one.run}"  # the clock of an own machine starts anew
    if any(op.rate for op in one.rows):
        then = f"continue with a higher limit: inv resume {one.run} --spend-limit USD, or --ttl TIME"
        if not one.armed:  # Only a launch has the code.
            then = "repeat the launch with a higher limit: --spend-limit USD, or --ttl TIME"
    return Cause(
        "limit", f"the run reached the limit: {said or 'no record names the limit'}{spent}; {_saved(one)}", then
    )


def _preempted(one: RunEvidence) -> Cause | None:
    gone = lost_pods(one)
    if not gone or one.state == "failed" and one.verdict:
        return None
    last = gone[-1]
    how = f"{last.vendor} no longer lists the pod" if last.reason in ("", observation.GONE) else last.reason
    said = f"the pod was gone without a request by Slipway, {count(len(gone), 'time')} ({how})"
    if one.state in ("running", "succeeded"):
        back = f"the run was resumed {count(one.recoveries, 'time')} and " if one.recoveries else "the run "
        return Cause(
            "preemption",
            f"{said}; {back}{_is(one.state)}",
            "nothing"
            if one.state == "succeeded" or not one.rows[-1].is_spot
            else "nothing; to avoid preemptions, launch without --use-spot",
        )
    if one.state == "waiting" or one.is_kept:
        who = "the process that follows the run" if one.is_kept else "the supervisor"
        return Cause("preemption", f"{said}; {who} looks for a new pod", f"wait, or end the run: inv down {one.run}")
    after = "; no pod has been rented since then" if one.rows[-1] is last else ""
    return Cause("preemption", f"{said}{after}", f"resume the run: inv resume {one.run}")


def _host(one: RunEvidence) -> Cause | None:
    bad = rejected_pods(one)
    if not bad or one.verdict and one.state not in ("running", "succeeded"):
        return None
    were = "was" if len(bad) == 1 else "were"
    said = f"{count(len(bad), 'machine')} {were} given back before the work began: {bad[-1].reason}"
    if one.state in ("running", "succeeded"):
        return Cause("bad host", f"{said}; the run got a new machine, and {_is(one.state)}", "nothing")
    return Cause(
        "bad host",
        said,
        "launch again to rent a different machine; to list the excluded machines: inv hosts",
    )


def _silent(one: RunEvidence) -> Cause | None:
    if not SILENT.search(one.reason):
        return None
    stacks = "; the log holds the stack traces" if STACKS.search(one.words) else ""
    return Cause(
        "stall",
        f"{one.reason}: the step wrote nothing for too long{stacks}",
        f"find the hang: inv logs {one.run} --file {one.step}; then: inv resume {one.run}",
    )


def _failed(one: RunEvidence) -> Cause | None:
    if one.state != "failed":
        return None
    said = one.reason or (one.rows[-1].reason if one.rows else "") or "no record says why"
    last = last_line(str(one.verdict.get("tail") or one.words))
    then = "launch again, because a resumed run repeats the same step" if _repeats(one) else f"inv resume {one.run}"
    return Cause(
        "failure",
        f"{said}{f': {last}' if last and last not in said else ''}",
        f"read all errors: inv logs {one.run} --errors; fix the cause, then: {then}",
    )


def _repeats(one: RunEvidence) -> bool:
    """Return whether the failed step would fail again: wrong flags or data (code 2), or a user's own program."""
    steps = Job.from_json(one.rows[-1].job).steps if one.rows and one.rows[-1].job else ()
    is_own = any(step.is_own_text for step in steps if step.name == one.step)
    return one.verdict.get("exit_code") == 2 or is_own and bool(EXIT_CODE.search(one.reason))


def _stopped(one: RunEvidence) -> Cause | None:
    if one.state != "stopped":
        return None
    is_asked = one.rows and one.rows[-1].outcome == ASKED
    said = one.reason or (one.rows[-1].reason if one.rows else "")
    if said.startswith(CUT_OFF):
        return Cause("cut off", f"{said} before the work began; its pods were ended", "launch again")
    again = f"inv resume {one.run}" if one.armed else "repeat the launch, because no machine has the code"
    how = "a user ended the run" if is_asked else "the run was stopped"
    return Cause("stopped", f"{how}{f': {said}' if said else ''}", f"to continue: {again}")


def _lost(one: RunEvidence) -> Cause | None:
    if one.state != "lost":
        return None
    said = one.reason or "no record says why"
    return Cause(
        "lost",
        f"the machine does not answer, or no process of the run is alive on the machine: {said}",
        f"resume the run: inv resume {one.run}",
    )


def _resumed(one: RunEvidence) -> Cause | None:
    if one.state not in ("running", "succeeded") or not one.stops:
        return None
    said = f"the run was stopped {count(len(one.stops), 'time')} ({'; then '.join(one.stops[-SHOWN_STOPS:])})"
    return Cause("resumed", f"{said}, continued, and {_is(one.state)}", _any(one).then)


def _any(one: RunEvidence) -> Cause:
    what = {
        "running": (
            f"the run is at work{f' on step {one.step}' if one.step else ''}",
            f"follow the log: inv logs {one.run} --follow",
        ),
        # The agent's reason names what is incomplete, such as metrics of a tracker that did not answer.
        "succeeded": (f"all steps are done{f'; {one.reason}' if one.verdict.get('reason') else ''}", _after(one)),
        "planned": ("no machine of the run is at work yet", f"wait, or end the run: inv down {one.run}"),
        "ending": (
            "the vendor was asked to end the pod; the pod is not proven gone yet",
            f"check again: inv status {one.run}",
        ),
        "idle": ("the pod waits for work", f"give the pod work: inv pod.run, or end the pod: inv down {one.run}"),
    }
    said, then = what.get(one.state, (one.reason or "no record explains the state", f"look: inv status {one.run}"))
    return Cause(one.state or "unknown", said, then)


def _after(one: RunEvidence) -> str:
    """Return advice after a success: chat with the new model, or read the log of a job without an artifact."""
    steps = Job.from_json(one.rows[-1].job).steps if one.rows and one.rows[-1].job else ()
    making = steps[-1].config.get("making") if steps else None
    return f"talk to the new model: inv chat {making['name']}" if making else f"read the log: inv logs {one.run}"


def lost_pods(one: RunEvidence) -> list[Op]:
    """Return the pods that received a job and were gone without an end by Slipway."""
    lost = [op for op in one.rows if not op.is_live or one.state == "ending" and op.reason == observation.GONE]
    return [op for op in lost if op.outcome == "" and op.token in one.armed]


def rejected_pods(one: RunEvidence) -> list[Op]:
    """Return the pods that did not boot or failed the acceptance check."""
    return [
        op
        for op in one.rows
        if op.state == TERMINATED
        and op.outcome == ""
        and op.token not in one.armed
        and op.reason
        and not op.reason.startswith(CUT_OFF)
    ]


def _saved(one: RunEvidence) -> str:
    """Return a display text for the newest checkpoint verified in the store, from the pod's last report."""
    if not (in_store := one.progress.get("in_store")):
        return "no record shows a checkpoint in the store"
    name, at = max(in_store.items(), key=lambda item: item[1])
    return f"the newest checkpoint on record is {name}, {moment(at)}"


def _where(one: RunEvidence) -> str:
    return f"step {one.step}" if one.step else "the work"


def _quoted(what: re.Pattern[str], words: str) -> str:
    """Return the first line that matches the pattern."""
    return next(line.strip() for line in words.splitlines() if what.search(line))


def last_line(text: str) -> str:
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "")[:200]


def _is(state: str) -> str:
    return "is at work" if state == "running" else "has succeeded"


RULES: tuple[Callable[[RunEvidence], Cause | None], ...] = (
    _engine,
    _disk,
    _gpu_memory,
    _memory,
    _idle,
    _limit,
    _silent,
    _preempted,
    _host,
    _failed,
    _lost,
    _stopped,
    _resumed,
    _any,
)
