"""The command `inv control.up`: move an installation to the control host."""

from dataclasses import dataclass

from infra.flags import flag
from packs.control_host.control import move
from scripts.cli import context, render
from scripts.cli.command import APART, command
from scripts.cli.flags import Output
from scripts.cli.render import print_json

BOOTS = {
    "systemd": "after a boot systemd restarts the processes",
    "cron": "after a boot cron restarts the processes",
    "whoever connects": "the host has neither systemd for this user nor cron: after a boot, the first command on the "
    "host restarts the processes",
}


@dataclass(frozen=True, kw_only=True)
class ControlUpFlags(Output):
    host: str = flag(
        "",
        "your own always-on machine: an alias of ~/.ssh/config, a machine of the inventory, or [user@]host[:port]",
        word=True,
    )


@command(record=ControlUpFlags, world=APART, is_here=True, example="inv control.up my-server")
def up(spec: ControlUpFlags) -> None:
    """Move the journal and its keys to an always-on machine.

    From then on every command runs there, over SSH, and this machine may be off. Run it again to send new keys.
    """
    done = move.up(spec.host, context.settings(), render.tell)
    if spec.json:
        print_json(done)
        return
    render.say(f"{done.host} has the journal now, and every command runs on that host; {BOOTS[done.boot]}")
    render.say("move the journal back: ./inv control.down")
