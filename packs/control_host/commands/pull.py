"""The command `inv control.pull`: fetch a file or a folder from the control host."""

from dataclasses import dataclass

from infra.flags import flag
from packs.control_host.control import move
from scripts.cli import context, render
from scripts.cli.command import APART, command
from scripts.cli.flags import Output
from scripts.cli.render import print_json


@dataclass(frozen=True, kw_only=True)
class ControlPullFlags(Output):
    path: str = flag("", "file or folder on the control host, relative to the checkout", word=True)
    to: str = flag("", "destination on this machine (default: the same path in this checkout)", unit="PATH")


@command(record=ControlPullFlags, world=APART, is_here=True, example="inv control.pull var/reports")
def pull(spec: ControlPullFlags) -> None:
    """Copy files from the control host to this machine."""
    brought = move.pull(spec.path, spec.to, context.settings())
    if spec.json:
        print_json({"path": brought})
    else:
        render.say(f"{brought} is here")
