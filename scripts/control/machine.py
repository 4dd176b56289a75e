"""The commands of a control host: see flows/installation/control.py."""

from flows.installation import control
from flows.supervisor import supervisor_client
from infra.control import host_side
from infra.control.places import HostPlaces
from scripts.cli import context, prompts, render
from scripts.cli.invoke_patch import print_json
from scripts.control.flags import ControlDownFlags, ControlPullFlags, ControlStartFlags, ControlUpFlags

BOOTS = {
    "systemd": "after a boot its systemd starts again what must go on",
    "cron": "after a boot its cron starts again what must go on",
    "whoever connects": "it has neither a systemd of the user nor cron: after a boot, the first command that runs "
    "there starts again what must go on",
}


def up(spec: ControlUpFlags) -> None:
    done = control.up(spec.host, context.settings(), render.tell)
    if spec.json:
        print_json(done)
        return
    render.say(f"{done.host} has the journal now, and every command runs there; {BOOTS[done.boot]}")
    render.say("bring it home: ./inv control.down")


def down(spec: ControlDownFlags) -> None:
    settings = context.settings()
    if spec.lost:
        render.say("a control host that still lives somewhere goes on by itself: switch it off first")
        prompts.confirm(spec.yes)
        home = control.lost(settings, render.tell)
    else:
        home = control.down(settings, render.tell)
    if spec.json:
        print_json(home)
    elif spec.lost:
        render.say(f"the journal of {home.host} is here again; look at ./inv status, then have a run kept: ./inv keep")
    else:
        render.say(f"the journal is home from {home.host}, and commands run here")


def start(spec: ControlStartFlags) -> None:
    settings = context.settings()
    places = HostPlaces.beside(settings.state_file)
    if places.is_control_host:
        host_side.note_start(places)
    renewed = supervisor_client.renew(settings)
    started = supervisor_client.look_after(settings, spec.leases)
    if spec.json:
        print_json({"started": started, "supervisor": renewed})
        return
    if renewed:
        render.say(f"the supervisor ran other code; process {renewed} has taken over; see: inv supervisor")
    for lease in started:
        render.say(f"{lease}: the supervisor looks after it; see: inv supervisor")
    if not (started or renewed):
        render.say("nothing to start: everything that is needed is running")


def pull(spec: ControlPullFlags) -> None:
    brought = control.pull(spec.path, spec.to, context.settings())
    if spec.json:
        print_json({"path": brought})
    else:
        render.say(f"{brought} is here")
