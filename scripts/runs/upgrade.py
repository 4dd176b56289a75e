"""The command `inv upgrade`: see flows/installation/upgrade.py."""

from flows.installation.upgrade import hand_over, take_over
from scripts.cli import context, render
from scripts.cli.flags import Output
from scripts.cli.invoke_patch import print_json
from scripts.cli.session import open_journal


def upgrade(spec: Output) -> None:
    settings = context.settings()
    left = hand_over(settings, render.say)
    with open_journal(settings) as journal:  # which migrates it
        taken = take_over(left, journal, settings, render.say)
    if spec.json:
        print_json({"left": left, "taken_over": taken})
    elif not left:
        render.say("nothing to hand over: every process that looks after something runs this code")
    for lease, pid in () if spec.json else taken.items():
        render.say(f"{lease}: process {pid} has taken over")
