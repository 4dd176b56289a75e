"""The flags of a job of one's own: what `--cmd` says without a file, and what a file leaves open."""

from dataclasses import dataclass

from infra.flags import flag

OWN = "A job of your own"


@dataclass(frozen=True, kw_only=True)
class JobSpec:
    """A job that is no training of ours."""

    cmd: str = flag("", "run this command instead of a training, as a job file with `run:` does", group=OWN)
    script: str = flag(
        "", "run this Python file with torchrun instead, on all GPUs of all nodes, in the environment of Slipway's own "
        "trainings; its folder is sent to the machine", group=OWN, unit="FILE",
    )  # fmt: skip
    workdir: str = flag("", "folder that is sent to the machine; the command runs in it", group=OWN, unit="FOLDER")
    secret: tuple[str, ...] = flag(
        (), "secret environment variable of the job: KEY=VALUE, or KEY to take the shell's value; repeatable",
        group=OWN, unit="KEY[=VALUE]",
    )  # fmt: skip
