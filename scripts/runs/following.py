"""Terminal view of a run: progress up to the verdict, and the next command to type."""

import contextlib
import signal
import sys
import time
from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any

from invoke import Exit

from flows.runs import begin as begin_launch
from flows.runs import follow
from flows.runs.launch import Launch
from flows.supervisor import due, supervisor_client
from infra.agent.limits import read_clocks
from infra.agent.state import NODE_LOST
from infra.errors import SlipwayError
from infra.ledger import spend
from infra.ledger.journal import Journal
from infra.ledger.op import Op
from infra.runs import run_rows
from infra.runs.lookup import scale_of
from infra.runs.observation import Seen
from infra.settings import Settings
from infra.units import per_hour
from scripts.cli import plan_text, render, steps_text
from scripts.cli.render import print_json
from scripts.runs.logs import JobOutput, tell_steps
from store import terminal

ENDED = ("done", "failed")  # states of a step without further output
THEN = {"failed": "fix the cause, then launch again or run ", NODE_LOST: "when a machine is free, run "}


def begin(found: Launch, journal: Journal, settings: Settings, detach: bool, as_json: bool) -> None:
    """Start the run of a planned launch; follow the run, or hand it to the supervisor with `detach`."""
    with supervisor_client.hand_over_on_error(settings):
        with terminal.show_while("starting the run"):
            op = begin_launch.start(found, journal, settings, render.tell)
        if due.is_watch_wanted(journal, settings):
            supervisor_client.ensure(settings)
        if detach:
            detach_run(op, settings, as_json)
            return
        follow_to_end(op, journal, settings, as_json)


def follow_to_end(op: Op, journal: Journal, settings: Settings, as_json: bool) -> None:
    """Keep and follow a run to the verdict, update the journal and print the result.

    Ctrl-C and the closing of the terminal detach: the run continues under the supervisor. Raises Exit unless the run
    succeeded.
    """
    output = None if as_json else JobOutput(op, journal, settings)
    with hangup_as_interrupt() as hung_up:
        try:
            with follow.keep_run(op, journal, settings, render.tell) as seen:
                progress, verdict = show_progress(op, seen, output, scale_of(op, settings))
        except (KeyboardInterrupt, OSError) as error:
            if isinstance(error, OSError) and not hung_up:  # an OSError after SIGHUP means that the terminal is gone
                raise
            kept = supervisor_client.hand_over(op, settings)  # before any output, which may fail
            render.say(f"\ndetached; {op.run} continues. {kept}")
            say_how(op, as_json)
            raise Exit(code=follow.DETACHED) from None
        except SlipwayError as error:
            raise Exit(f"{render.clean(str(error))}{remaining_pod_note(op, journal)}", code=error.exit_code) from error
    with terminal.show_while(f"recording the end of {op.run} and sending notices"):
        follow.settle_run(op, verdict["state"], journal, settings, render.tell)
    if output:
        output.print_new(is_last=True)  # copied while the pod ended
    succeeded = verdict["state"] == "succeeded"
    if as_json:
        print_json(
            {
                "run": op.run,
                "state": verdict["state"],
                "ran": [step["name"] for step in progress.get("steps", ()) if step["state"] == "done"],
                "steps": steps_text.steps_json(progress),
                "reason": verdict["reason"] or None,
                "recoveries": progress["recoveries"],
            }
        )
    elif succeeded:
        scale, rows = scale_of(op, settings), journal.ops(run=op.run)
        total = spend.run_s(rows, read_clocks(), scale, verdict.get("at"))
        steps = op.read_job().steps
        making = steps[-1].config.get("making") if steps else None
        then = f"Next: ./inv {'logs' if steps else 'pod.run'} {op.run}"
        if making:
            then = plan_text.chat_hint(making["name"], op.store)
        missing = f"; {render.clean(verdict['reason'])}" if verdict["reason"] else ""
        render.say(f"{op.run} succeeded in {render.duration(total)}{missing}. {then}")
    if not succeeded:
        logs = f"./inv logs {op.run}{' --errors' if verdict['state'] == 'failed' else ''}"
        if verdict.get("tail") and output and not output.ends_with(verdict["tail"], verdict.get("step", "")):
            render.say(render.clean(verdict["tail"]))
        reason = f": {render.clean(verdict['reason'])}" if verdict["reason"] else ""
        code = 5 if verdict["state"] == "limit" else 1
        then = THEN.get(verdict["state"], "continue: ") + f"./inv resume {op.run}"
        if verdict["state"] == "limit" and op.rate:
            then += " --spend-limit USD, or --ttl TIME"
        repeats = verdict.get("exit_code") == 2 or any(step.is_own_text for step in op.read_job().steps)
        if verdict["state"] == "failed" and repeats:  # a resumed run repeats the step with the same flags and files
            then = "fix the cause, then launch again"
        if journal.op(op.token).is_live and op.outlives_run:
            then = f"fix the cause, then: ./inv {'pod.run' if op.read_job().steps else 'pod.setup'} {op.run}"
        raise Exit(f"{op.run} {verdict['state']}{reason}; see {logs}; {then}", code=code)


def remaining_pod_note(op: Op, journal: Journal) -> str:
    """Return a note on the pod left after an error: price, and commands to inspect and end the pod.

    Return "" if the pod has ended.
    """
    left = journal.op(op.token)
    if not left.is_live:
        return ""
    bills = f"still bills {per_hour(left.rate)}" if left.rate else "costs nothing"
    return f"\n{op.run} was not ended; the pod {bills}. Look: ./inv status {op.run}; end the run: ./inv down {op.run}"


@contextlib.contextmanager
def hangup_as_interrupt() -> Iterator[list[int]]:
    """Treat the closing of the terminal as Ctrl-C, unless SIGHUP is ignored (`nohup`)."""
    heard: list[int] = []

    def note(number: int, _: object) -> None:
        heard.append(number)
        raise KeyboardInterrupt

    before = signal.getsignal(signal.SIGHUP)
    if before != signal.SIG_IGN:
        signal.signal(signal.SIGHUP, note)
    try:
        yield heard
    finally:
        signal.signal(signal.SIGHUP, before)


def show_progress(
    op: Op, seen: Iterator[Seen], output: JobOutput | None, scale: float
) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """Show bars on a terminal, else lines per step; return the last progress and the verdict.

    The user's own steps are shown as lines, with their output. `output`: None shows nothing. `scale`: speed of the
    run's clock relative to real time, used for the shown durations.
    """
    if output is None:
        return _last(seen)
    render.say(f"run {op.run} in {run_rows.where(op)}")
    if output.offsets or not sys.stderr.isatty():
        return _last(_lines(seen, output, scale))
    from rich.live import Live

    with Live(console=render.console(), refresh_per_second=8) as live:
        return _last(_redraw(seen, live, scale))


def _last(seen: Iterator[Any]) -> Any:
    return deque(seen, maxlen=1).pop()


def _redraw(seen: Iterator[Any], live: Any, scale: float) -> Iterator[Any]:
    for progress, verdict in seen:
        live.update(steps_text.steps_table(progress, time.time(), scale))
        yield progress, verdict


def _lines(seen: Iterator[Any], output: JobOutput, scale: float) -> Iterator[Any]:
    """Yield the observations; print new output, a line at the start and end of a step, and at intervals between."""
    told: dict[str, tuple[str, float]] = {}
    for progress, verdict in seen:
        steps = progress.get("steps", ())
        has_ended = any(one["state"] in ENDED and told.get(one["name"], ("",))[0] != one["state"] for one in steps)
        output.print_new(is_last=bool(verdict) or has_ended)
        tell_steps(progress, told, scale)
        yield progress, verdict


def detach_run(op: Op, settings: Settings, as_json: bool) -> None:
    """Hand the run to the supervisor, and print the commands to follow the run later."""
    render.say(supervisor_client.hand_over(op, settings))
    say_how(op, as_json)


def say_how(op: Op, as_json: bool) -> None:
    if as_json:
        print_json({"run": op.run, "state": "running"})
    render.say(f"follow: ./inv logs {op.run} --follow\nwatch: ./inv status --watch\nstop: ./inv down {op.run}")
