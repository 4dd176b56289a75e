"""The flags of a launch and of all commands to start or resume a run."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from flows.specs.work import WorkSpec
from infra.flags import flag
from infra.selection.machine_spec import MACHINE, OWN, RENTED, LimitSpec, MachineSpec, PlaceSpec

RUN = "Run"
STAGES = "Skipped stages"


@dataclass(frozen=True, kw_only=True)
class LaunchSpec(LimitSpec, MachineSpec, PlaceSpec, WorkSpec):
    """The flags of a launch request."""

    nodes: int | None = flag(None, "number of machines that train together (1)", group=MACHINE)
    wait: bool = flag(
        False,
        "rented: search again every minute until an offer matches; local, ssh: wait in the queue until "
        "the machine, or the GPUs of --devices, are free",
        group=MACHINE,
    )
    devices: str = flag(
        "", "local, ssh: use only these GPUs of the machine, such as 0,1; other runs may use the other GPUs", group=OWN
    )
    no_accept: bool = flag(False, "skip the check that the machine works", group=MACHINE)
    on_failure: str = flag("", "action on the pod when the work fails: end or keep (end)", group=RENTED)
    self_end: bool = flag(
        False,
        "let the pod delete itself when its work is done, also on vendors without a key per pod; the "
        "guard on the pod then receives your API key, in memory only; see docs/money.md",
        group=RENTED,
    )
    deploy_only: bool = flag(
        False, "rent and hold the machine without starting the work, like inv pod.create", group=STAGES
    )
    no_deploy: bool = flag(
        False,
        "rent no machine: use a held pod (--host selects the pod); with --devices, or with fewer GPUs "
        "than the pod has, several runs can share the pod",
        group=STAGES,
    )
    no_sync: bool = flag(
        False, "send no code: use the newest copy on the machine, and show the differences", group=STAGES
    )
    no_setup: bool = flag(
        False,
        "create no environment and skip `setup` of a job file: use the present environment of the machine",
        group=STAGES,
    )
    send_anyway: tuple[str, ...] = flag(
        (),
        "send this file or folder although the name or content looks like a secret: a file tracked by "
        "git, or a mount from a hidden folder of your home; repeatable",
        group=RUN,
        unit="NAME",
    )
    notify: str = flag(
        "",
        "recipients of notices about the run: desktop, or the NAMEs of SLIPWAY_HOOK_NAME lines in .env",
        group=RUN,
        unit="NAMES",
    )
    run_name: str = flag("", "name of the run instead of a generated one", group=RUN, also=("n",))
    dry_run: bool = flag(False, "show the plan and stop", group=RUN)
    limits_from: Mapping[str, tuple[str, str]] = field(default_factory=dict, compare=False, repr=False)
    """Limits that flags of packs have set, by the name of the limit: the typed flag, and the meaning of the value."""
