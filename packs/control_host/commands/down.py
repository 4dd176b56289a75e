"""The command `inv control.down`: bring an installation home from the control host."""

from dataclasses import dataclass

from infra.flags import flag
from packs.control_host.control import move
from scripts.cli import context, prompts, render
from scripts.cli.command import APART, command
from scripts.cli.flags import Output, Questions
from scripts.cli.render import print_json


@dataclass(frozen=True, kw_only=True)
class ControlDownFlags(Output, Questions):
    lost: bool = flag(False, "rebuild the journal of a lost control host from the last copy and the vendors' listings")


@command(record=ControlDownFlags, world=APART, is_here=True, example="inv control.down")
def down(spec: ControlDownFlags) -> None:
    """Bring the journal and its keys home from the control host.

    The processes that look after runs there are stopped, and started here.
    """
    settings = context.settings()
    if spec.lost:
        render.say("a control host that is still on keeps managing the pods: switch the control host off first")
        prompts.confirm(spec.yes)
        home = move.recover_lost_host(settings, render.tell)
    else:
        home = move.down(settings, render.tell)
    if spec.json:
        print_json(home)
    elif spec.lost:
        render.say(
            f"the journal of {home.host} is restored on this machine; check: ./inv status; then follow a "
            "run: ./inv keep"
        )
    else:
        render.say(f"the journal is back from {home.host}; commands run on this machine")
