"""Slurm engine: runs the ranks as an array job, and the merge as a job that depends on the ranks.

The job name is a hash of the output folder, so a later command finds the jobs again after a kill. The user selects
where jobs run through sbatch's variables: SBATCH_PARTITION, SBATCH_ACCOUNT, SBATCH_TIMELIMIT, SBATCH_MEM_PER_NODE, ...
"""

import getpass
import hashlib
import shlex
import subprocess
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from data.errors import DataError, InputError
from data.events import emit
from packs.shard_engines.data.work import MERGE, ROOT, ShardWork, task_words

ASK_S = 60.0
SILENT_S = 600.0
LEAVE_S = 25.0
STATES = "PENDING,RUNNING,SUSPENDED,CONFIGURING,COMPLETING"
SCRIPT = """#!/bin/sh
export PYTHONPATH={root}
for attempt in 1 2 3 4 5; do
    {words}
    code=$?
    case $code in 0|1|2) exit $code;; esac  # else it was killed, and goes on
done
exit $code
"""


@dataclass(frozen=True)
class QueueRow:
    """An unfinished Slurm job or array task."""

    job: str
    state: str
    reason: str


class Slurm:
    def __init__(self) -> None:
        self.name = ""
        self.answered_at: float | None = None

    def at_work(self, folder: Path) -> str:
        self.name = "slipway-" + hashlib.sha256(str(folder).encode()).hexdigest()[:12]
        jobs = _jobs(self._rows())
        return f"Slurm has jobs {', '.join(jobs)} (scancel {' '.join(jobs)})" if jobs else ""

    def start(self, work: ShardWork, ranks: Sequence[int]) -> None:
        if jobs := _jobs(self._rows()):
            emit("note", text=f"following Slurm jobs {', '.join(jobs)} of an earlier command")
            return
        after = []
        if ranks:
            name = shlex.join(task_words(work, work.name(0))).replace(work.name(0), "$NAME")
            told = f'NAME=$(printf "rank-%05d-of-%05d" "$SLURM_ARRAY_TASK_ID" {work.world}); {name}'
            after = [
                _submit(work, self.name, told, "rank-%a", f"--array={_ranges(ranks)}", f"--cpus-per-task={work.cpus}")
            ]
        merge = shlex.join(task_words(work, MERGE))
        depends = [f"--dependency=afterany:{after[0]}"] if after else []
        after.append(_submit(work, self.name, merge, MERGE, *depends))
        emit("note", text=f"Slurm jobs {' and '.join(after)}: squeue -n {self.name}; logs: {work.home}")

    def status(self) -> str | None:
        rows = self._rows()
        states = Counter(row.state.lower() for row in rows)
        why = sorted({row.reason for row in rows if row.state == "PENDING"} - {"Dependency", "None"})
        told = ", ".join(f"{count} {state}" for state, count in states.items()) + (
            f" ({', '.join(why)})" if why else ""
        )
        return f"Slurm jobs {', '.join(_jobs(rows))}: {told}" if rows else None

    def cancel(self) -> str:
        jobs = _jobs(self._rows())
        if not jobs:
            return "nothing: Slurm had no job of this command"
        _ask("scancel", *jobs)
        until = time.monotonic() + LEAVE_S
        while self._rows():
            if time.monotonic() > until:
                return f"Slurm jobs {', '.join(jobs)}, which are still ending"
            time.sleep(0.2)
        return f"Slurm jobs {', '.join(jobs)}"

    def _rows(self) -> list[QueueRow]:
        """Return the unfinished jobs of this work.

        Retry after an error, because the Slurm controller may be restarting. Raise DataError after `SILENT_S` seconds
        without an answer, or at once if the first query fails.
        """
        while True:
            try:
                told = _ask(
                    "squeue", "-h", "-r", "-u", getpass.getuser(), "-n", self.name, "-t", STATES, "-o", "%F|%T|%r"
                )
            except InputError:
                raise
            except DataError as error:
                if self.answered_at is None:
                    raise
                if time.monotonic() - self.answered_at > SILENT_S:
                    raise DataError(f"{error}; the Slurm jobs continue, and the same command follows them") from None
                time.sleep(1)
                continue
            self.answered_at = time.monotonic()
            return [QueueRow(*line.split("|", 2)) for line in told.splitlines()]


def _submit(work: ShardWork, name: str, words: str, log: str, *flags: str) -> str:
    """Submit a job that runs `words` and return the job id. Raise InputError with sbatch's message on a refusal."""
    output = work.home / f"slurm-{log}.log"
    script = SCRIPT.format(root=shlex.quote(str(ROOT)), words=words)
    all_flags = ["--parsable", f"--job-name={name}", f"--chdir={ROOT}", f"--output={output}", "--open-mode=append"]
    return (
        _ask("sbatch", *all_flags, "--requeue", "--nodes=1", "--ntasks=1", *flags, script=script).split(";")[0].strip()
    )


def _ask(*words: str, script: str | None = None) -> str:
    try:
        done = subprocess.run(words, input=script, capture_output=True, text=True, timeout=ASK_S)
    except FileNotFoundError:
        raise InputError(
            f"{words[0]} is not installed on this machine; run --engine slurm on a machine that can submit to Slurm"
        ) from None
    except subprocess.TimeoutExpired:
        raise DataError(f"{words[0]}: no answer in {ASK_S:.0f} s") from None
    if done.returncode:
        said = " ".join(done.stderr.split()) or f"exit code {done.returncode}"
        refused = words[0] == "sbatch" and "controller" not in said
        raise (InputError if refused else DataError)(f"{words[0]}: {said}")
    return done.stdout


def _jobs(rows: Sequence[QueueRow]) -> list[str]:
    return sorted({row.job for row in rows}, key=int)


def _ranges(ranks: Sequence[int]) -> str:
    """Return ranks in Slurm's range syntax: `0-2,5` for 0, 1, 2, 5."""
    told: list[list[int]] = []
    for rank in ranks:
        if told and told[-1][1] == rank - 1:
            told[-1][1] = rank
        else:
            told.append([rank, rank])
    return ",".join(f"{first}-{last}" if last > first else str(first) for first, last in told)
