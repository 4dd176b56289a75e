"""The flags of a launch and of all commands to start or resume a run."""

from dataclasses import dataclass

from flows.specs.work import WorkSpec
from infra.flags import flag
from infra.selection.machine_spec import MACHINE, OWN, RENTED, LimitSpec, MachineSpec, PlaceSpec

RUN = "Run"
STAGES = "Stages that are left out"


@dataclass(frozen=True, kw_only=True)
class LaunchSpec(LimitSpec, MachineSpec, PlaceSpec, WorkSpec):
    """The flags of a launch request."""

    nodes: int | None = flag(None, "machines that train as one (1)", group=MACHINE)
    wait: bool = flag(
        False,
        "rented: look again every minute until an offer matches; local, ssh: wait in line until the "
        "machine, or the GPUs that --devices names, are free",
        group=MACHINE,
    )
    devices: str = flag(
        "", "local, ssh: use only these GPUs of the machine, such as 0,1; others may use the rest", group=OWN
    )
    no_accept: bool = flag(False, "skip the check that the machine works", group=MACHINE)
    on_failure: str = flag("", "what happens to the pod when the work fails: end or keep (end)", group=RENTED)
    self_end: bool = flag(
        False,
        "the pod deletes itself when its work is over, even where the vendor gives it no key of its "
        "own: its guard receives yours, in memory only; see docs/money.md",
        group=RENTED,
    )
    deploy_only: bool = flag(False, "rent the machine and hold it, without the work: see inv pod.create", group=STAGES)
    no_deploy: bool = flag(
        False,
        "rent nothing: use a pod that is already held (--host picks one of several); with --devices or fewer "
        "GPUs than the pod has, other runs can share it",
        group=STAGES,
    )
    no_sync: bool = flag(
        False, "send no code: the newest copy on the machine is used, and differences are shown", group=STAGES
    )
    no_setup: bool = flag(
        False, "make no environment and skip `setup` of a job file: use what is on the machine", group=STAGES
    )
    send_anyway: tuple[str, ...] = flag(
        (),
        "send this although it looks like a secret: a file that git tracks, or a mount from a hidden folder of "
        "your home; repeatable",
        group=RUN,
        unit="NAME",
    )
    notify: str = flag(
        "",
        "who is notified of the run's progress: desktop, or the NAMEs of SLIPWAY_HOOK_NAME lines in .env",
        group=RUN,
        unit="NAMES",
    )
    run_name: str = flag("", "name of the run instead of a generated one", group=RUN, also=("n",))
    dry_run: bool = flag(False, "show the plan and stop", group=RUN)


@dataclass(frozen=True, kw_only=True)
class PodSpec(LimitSpec, MachineSpec, PlaceSpec):
    """The flags of a request for a pod without work."""

    wait: bool = flag(False, "rented: look again every minute until an offer matches", group=MACHINE)
    no_accept: bool = flag(False, "skip the check that the machine works", group=MACHINE)
    run_name: str = flag("", "name of the pod instead of a generated one", group=RUN, also=("n",))
    dry_run: bool = flag(False, "show offers, prices and what would end the pod, and stop", group=RUN)
