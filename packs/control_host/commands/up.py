"""The command `inv control.up`: move an installation to the control host."""

from dataclasses import dataclass

from infra.flags import flag
from packs.control_host.control import move
from scripts.cli import context, render
from scripts.cli.command import APART, command
from scripts.cli.flags import Output
from scripts.cli.json_output import print_json

BOOTS = {
    "systemd": "after a boot its systemd starts again what must go on",
    "cron": "after a boot its cron starts again what must go on",
    "whoever connects": "it has neither a systemd of the user nor cron: after a boot, the first command that runs "
    "there starts again what must go on",
}


@dataclass(frozen=True, kw_only=True)
class ControlUpFlags(Output):
    host: str = flag(
        "",
        "an always-on machine of your own: an alias of ~/.ssh/config, a machine of the inventory, or "
        "[user@]host[:port]",
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
    render.say(f"{done.host} has the journal now, and every command runs there; {BOOTS[done.boot]}")
    render.say("bring it home: ./inv control.down")
