"""The command `inv control.start`: restart keepers and services, as at the boot of a host."""

from dataclasses import dataclass

from flows.supervisor import supervisor_client
from infra.flags import flag
from packs.control_host.control import host_side
from packs.control_host.control.host_paths import HostPaths
from scripts.cli import context, render
from scripts.cli.command import APART, command
from scripts.cli.flags import Output
from scripts.cli.render import print_json


@dataclass(frozen=True, kw_only=True)
class ControlStartFlags(Output):
    leases: tuple[str, ...] = flag((), "also restart the processes that held these leases: keep:RUN", word=True)


@command(record=ControlStartFlags, world=APART, example="inv control.start")
def start(spec: ControlStartFlags) -> None:
    """Restart the processes that look after runs and services.

    A control host does this by itself after a boot, and when somebody connects. A supervisor of other code than this
    checkout's is replaced; runs go on.
    """
    settings = context.settings()
    places = HostPaths.for_journal(settings.state_file)
    if places.is_control_host:
        host_side.note_start(places)
    renewed = supervisor_client.renew(settings)
    started = supervisor_client.resume_abandoned(settings, spec.leases)
    if spec.json:
        print_json({"started": started, "supervisor": renewed})
        return
    if renewed:
        render.say(
            f"the supervisor ran other code; process {renewed} has replaced the supervisor; check: inv supervisor"
        )
    for lease in started:
        render.say(f"{lease}: the supervisor manages this lease; check: inv supervisor")
    if not (started or renewed):
        render.say("nothing to start: all needed processes are running")
