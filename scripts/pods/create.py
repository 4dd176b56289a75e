"""The command `pod.create`: a new pod without work."""

from dataclasses import dataclass

from flows.specs.launch import RUN
from infra.flags import flag
from infra.names import check_name
from infra.selection import preflight, registry
from infra.selection.machine_spec import MACHINE, LimitSpec, MachineSpec, PlaceSpec, refuse_open, request_on
from scripts.cli import context, render
from scripts.cli.command import BEGIN, command
from scripts.cli.flags import Output, Questions
from scripts.runs.deploy import deploy


@dataclass(frozen=True, kw_only=True)
class PodSpec(LimitSpec, MachineSpec, PlaceSpec):
    """The flags of a request for a pod without work."""

    wait: bool = flag(False, "rented: look again every minute until an offer matches", group=MACHINE)
    no_accept: bool = flag(False, "skip the acceptance check of the machine", group=MACHINE)
    run_name: str = flag("", "name of the pod instead of a generated one", group=RUN, also=("n",))
    dry_run: bool = flag(False, "show offers, prices and the limits that would end the pod, and stop", group=RUN)


@dataclass(frozen=True, kw_only=True)
class CreateFlags(Output, Questions, PodSpec):
    """The flags of `pod.create`."""


@command(record=CreateFlags, world=BEGIN, env=True, example="inv pod.create --gpu H100 --ttl 4h", rents=True)
def create(spec: CreateFlags) -> None:
    """Create a pod without work.

    The guard on the pod ends the pod at the limits, also without a connection. `inv launch --deploy-only` does the
    same.
    """
    settings = context.settings_of(spec)
    name = check_name(spec.run_name) if spec.run_name else ""
    candidates = registry.candidates(settings)
    is_rented = candidates[0].is_rented
    limits = preflight.limits_for(settings, is_rented, spec, "inv pod.create --rehearse")
    limits = preflight.with_most(limits, is_rented, render.say)
    request = request_on(candidates, spec, name or "new", pool=spec.pool, host=spec.host)
    if is_rented:
        refuse_open(request)
    deploy((request,), False, limits, spec, settings)
