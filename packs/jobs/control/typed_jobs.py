"""Jobs of a command line without a file: `--cmd` and `--script` -> `JobFile`."""

import shlex
from pathlib import Path

from infra.errors import UsageError
from packs.jobs.control.job_file import JobFile, JobTask, folder

TORCHRUN = """gpus=$((SKYPILOT_NUM_GPUS_PER_NODE > 0 ? SKYPILOT_NUM_GPUS_PER_NODE : 1))
if [ "$SKYPILOT_NUM_NODES" -gt 1 ]; then
  exec torchrun --nnodes="$SKYPILOT_NUM_NODES" --node-rank="$SKYPILOT_NODE_RANK" --nproc-per-node=$gpus \\
    --master-addr="$MASTER_ADDR" --master-port="$MASTER_PORT" {0}
fi
exec torchrun --standalone --nproc-per-node=$gpus {0}
"""


def of_command(text: str, workdir: Path | None) -> JobFile:
    """Return a job with a single shell command (`--cmd`). Raise UsageError for an empty command."""
    if not text.strip():
        raise UsageError("--cmd is empty; give a command, such as 'python my.py'")
    task = JobTask(run=text, workdir=folder("--workdir", workdir) if workdir else None)
    return JobFile(where="--cmd", name="", tasks=(task,))


def of_script(script: Path, workdir: Path | None) -> JobFile:
    """Return a job for a Python file under torchrun (`--script`).

    Raise UsageError for a missing file or a file outside of the work folder.
    """
    if not script.expanduser().is_file():
        raise UsageError(f"--script: the file {script} does not exist")
    sent = folder("--workdir", workdir or script.expanduser().absolute().parent)
    try:
        inside = script.expanduser().resolve().relative_to(sent)
    except ValueError:
        raise UsageError(f"--script: {script} is not in {sent}, the folder that is sent to the machine") from None
    task = JobTask(run=TORCHRUN.format(shlex.quote(str(inside))), workdir=sent, environment="train")
    return JobFile(where="--script", name="", tasks=(task,))
