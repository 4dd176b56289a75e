"""Flags of a user's own job: the command or script without a job file, the work folder, secrets and cost estimates."""

from dataclasses import dataclass

from infra.flags import SECRET, flag

OWN = "A job of your own"
ESTIMATES = "Estimates"


@dataclass(frozen=True, kw_only=True)
class JobFlags:
    """Flags of a job that is not a Slipway training."""

    cmd: str = flag("", "run this command instead of a training, like `run:` in a job file", group=OWN)
    script: str = flag(
        "",
        "run this Python file with torchrun instead, on all GPUs of all nodes, in the environment of "
        "Slipway's own trainings; the folder of the file is sent to the machine",
        group=OWN,
        unit="FILE",
    )
    workdir: str = flag("", "folder to send to the machine; the command runs in this folder", group=OWN, unit="FOLDER")
    secret: tuple[str, ...] = flag(
        (),
        "secret environment variable of the job: KEY=VALUE, or KEY to take the shell's value; repeatable",
        group=OWN,
        unit=SECRET,
    )


@dataclass(frozen=True, kw_only=True)
class JobCostFlags:
    """Flags that select a job for a cost estimate."""

    stage: str = flag("", "estimate: stage of the 1.58-bit training: 1, 1.9, 2, 3 or a sum of stages", group=ESTIMATES)
    job: str = flag("", "estimate: dlm, another job of examples/jobs, or a job file", group=ESTIMATES)
