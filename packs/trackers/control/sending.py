"""Send the metrics of a run to the trackers of the run, from this machine: after a server was away, or to a new server.

Input: the figures of a run from any source (`flows.reading.run_figures`), and the tracker steps of the run's job.
Output: for each tracker the last step sent by phase. The trackers of this pack ask their server first, so no step is
sent twice.
"""

import json
import os
import shutil
import subprocess
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from flows.planning.extensions import (
    NO_TRACKER,
    TRACKER_MODULE,
    requested_trackers,
    tracker_steps,
    tracker_variables,
)
from flows.reading import run_figures
from infra import job_environment, train_env
from infra.agent.job import Step
from infra.checkout import ROOT
from infra.errors import SlipwayError, UsageError
from infra.ledger.op import Op
from infra.runs.run_home import RunHome
from infra.runs.timing import Say
from infra.settings import Settings
from store import local_files, packs, untrusted_input

FILES = ("metrics.jsonl", "samples.jsonl")
NO_ANSWER = "no answer yet"  # problem of a sidecar while a server does not answer (`trainer.tracking`)
ANSWER_S = 60.0  # longest wait for the first answer
IDLE_S = 120.0  # longest wait for a later answer, without a further step in the tracker
POLL_S = 0.1


@dataclass(frozen=True, kw_only=True)
class SentMetrics:
    """Metrics of a run in a tracker."""

    tracker: str
    link: str
    """Address of the run in the tracker, for people."""
    figures: Mapping[str, int]
    """Last step in the tracker, by phase."""
    problem: str
    """Reason why not all metrics are in the tracker; "" = all are."""


def trackers_of(op: Op, names: Collection[str], settings: Settings) -> list[Step]:
    """Return the tracker steps with these names, or those of the run's job. Raises UsageError."""
    job = op.read_job()
    found = {str(one.config["tracker"]): one for one in job.trackers}
    if not names and not found:
        raise UsageError(f"{op.run} has no tracker; name a tracker, such as --track mlflow")
    further = requested_trackers(",".join(name for name in names if name not in found) or NO_TRACKER, settings)
    return [*(found[name] for name in names or found if name in found), *tracker_steps(further, job.steps)]


def send(op: Op, steps: Collection[Step], settings: Settings, say: Say) -> Iterator[SentMetrics]:
    """Send the metrics to one tracker after the other.

    Raises UsageError for a running run, whose own trackers send; SlipwayError if the run has no metrics, or while a
    different command sends the metrics of the run.
    """
    if op.is_live:
        raise UsageError(f"{op.run} is running, and its trackers send the metrics; send the rest after its end")
    folder = RunHome.for_run(op.run, settings.homes).tracking  # also holds what a tracker without a server writes
    folder.mkdir(parents=True, exist_ok=True)
    lock = local_files.acquire_lock(folder / "lock")
    if lock is None:
        raise SlipwayError(f"{op.run}: a different command is sending its metrics now; try again after its end")
    try:
        yield from _send(op, steps, settings, say, folder)
    finally:
        os.close(lock)


def _send(op: Op, steps: Collection[Step], settings: Settings, say: Say, folder: Path) -> Iterator[SentMetrics]:
    if not _collect(op, settings, folder / "work", say):
        raise SlipwayError(f"{op.run}: no metrics were found on its pod, in the store or on this machine")
    environ = {
        **os.environ,
        **tracker_variables(settings),
        **job_environment.secrets(settings),
        "PYTHONPATH": str(ROOT),
        "SLIPWAY_WORK": str(folder / "work"),
        "SLIPWAY_RUN_ID": op.read_job().group.run or op.run,
    }
    for step in steps:
        name = str(step.config["tracker"])
        named = packs.named_trackers().get(name)
        python = train_env.interpreter(ROOT, settings.environments, say, named.environment if named else "train")
        config, state = folder / f"{name}.json", folder / "state" / "tracking" / f"{name}.json"
        config.write_text(json.dumps(step.config), encoding="utf-8")
        words = [str(python), "-m", TRACKER_MODULE, "--config", str(config), "--once"]
        say(f"{op.run}: sending metrics to {name}")
        code = _run_sidecar(words, environ, state)
        said = untrusted_input.load(state) if state.exists() else {}
        yield SentMetrics(
            tracker=name,
            link=untrusted_input.typed(said, "link", str, ""),
            figures=untrusted_input.typed(said, "figures", dict, {}),
            problem=untrusted_input.typed(said, "problem", str, "") or ("" if code == 0 else f"exit code {code}"),
        )


def _run_sidecar(words: Sequence[str], environ: Mapping[str, str], state: Path) -> int:
    """Run a sidecar until its end, or until the tracker does not answer any more; return the exit code."""
    before = untrusted_input.load(state) if state.exists() else {}
    process = subprocess.Popen(words, env=environ, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=2)
    give_up_at = time.monotonic() + ANSWER_S
    try:
        while (code := process.poll()) is None:
            said = untrusted_input.load(state) if state.exists() else {}
            if any((said.get(one) or {}) != (before.get(one) or {}) for one in ("figures", "samples")):
                give_up_at, before = time.monotonic() + IDLE_S, said
            if time.monotonic() > give_up_at and said.get("problem") == NO_ANSWER:
                process.kill()
            time.sleep(POLL_S)
        return code
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()


def _collect(op: Op, settings: Settings, work: Path, say: Say) -> bool:
    """Write the metrics of a run to `work`/runs, as on the pod; return False without metrics."""
    shutil.rmtree(work / "runs", ignore_errors=True)
    phases = [one.name for one in op.read_job().steps if "keeping" in one.config]
    for reader in run_figures.metric_readers(op, settings, say):
        for phase in phases:
            for file in FILES:
                path = work / "runs" / phase / file
                if not path.exists() and (content := reader(phase, file)) is not None:
                    path.parent.mkdir(parents=True, exist_ok=True)
                    path.write_bytes(content)
    return any(work.glob(f"runs/*/{FILES[0]}"))
