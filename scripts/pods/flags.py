"""The flags of the commands about pods and the machines of runs, each declared once."""

from dataclasses import dataclass

from flows.specs.launch import RUN, LaunchSpec, PodSpec
from flows.specs.work import WorkSpec
from infra.flags import again, flag
from scripts.cli.flags import Output, Questions

WHICH = "name of the pod (default: the one made on this command line, or the only one)"
NAMES = "Names for ssh"
LAST = "name of the run, or its beginning (default: the last run)"


@dataclass(frozen=True, kw_only=True)
class CreateFlags(Output, Questions, PodSpec):
    """The flags of `pod.create`."""


@dataclass(frozen=True, kw_only=True)
class OnPodFlags(Output):
    run: str = flag("", WHICH, word=True)


@dataclass(frozen=True, kw_only=True)
class RunFlags(Output, WorkSpec):
    run: str = flag("", WHICH, word=True)
    detach: bool = flag(False, "hand over and return", group=RUN)
    no_sync: bool = again(LaunchSpec, "no_sync")
    no_setup: bool = again(LaunchSpec, "no_setup")
    dry_run: bool = again(LaunchSpec, "dry_run")


@dataclass(frozen=True, kw_only=True)
class SshFlags(Questions):
    run: str = flag("", LAST, word=True)
    config: bool = flag(
        False, "write an SSH configuration for every pod, and show the line of ~/.ssh/config that includes "
        "it: then ssh RUN, scp, editors and notebooks know pods by name",
        group=NAMES,
    )  # fmt: skip
    remove: bool = flag(False, "--config: remove that file, and the line that includes it", group=NAMES)


@dataclass(frozen=True, kw_only=True)
class OnFlags(Output):
    pods: tuple[str, ...] = flag(
        (), "runs, sets of pods, services, pools or machines of the inventory, or beginnings of pod names",
        word=True,
    )  # fmt: skip
    all: bool = flag(False, "every pod")
    sudo: bool = flag(False, "run as root; where the login is another user, by sudo without a password")
    timeout: str = flag(
        "", "end the command on machines where it takes longer, and count it as failed", unit="duration"
    )


@dataclass(frozen=True, kw_only=True)
class ForwardFlags:
    what: tuple[str, ...] = flag(
        (), "RUN, then LOCAL:REMOTE ports such as 8000:8000, or a tracker with a page, or LOCAL:TRACKER", word=True
    )


@dataclass(frozen=True, kw_only=True)
class SyncFlags(Output):
    run: str = flag("", LAST, word=True)
    plan: bool = flag(False, "show what would be sent, and send nothing")
    bwlimit: str = flag("", "maximum bytes per second for large files: 800kB, 10MB", unit="RATE")


@dataclass(frozen=True, kw_only=True)
class PullFlags(Output):
    run: str = flag("", LAST, word=True)
    bwlimit: str = again(SyncFlags, "bwlimit")
