"""Offers of a launch on a rented machine: the table, and the question for the user's pick."""

from flows.runs import launch
from flows.runs.launch import Launch
from flows.specs.launch import LaunchSpec
from infra.errors import UsageError
from infra.settings import Settings
from scripts.cli import context, prompts, render
from scripts.market import offers_table
from store import packs


def show(found: Launch, settings: Settings) -> None:
    """Print the offers, the limits of the run, and the events that end the pod."""
    spec = found.resolved.spec
    offers_table.show(found.plan, found.offers, settings, spec.on_failure or "end", spec.self_end)


def ask_which(found: Launch, spec: LaunchSpec, yes: bool, settings: Settings) -> Launch:
    """Return the launch on the picked offer, or without offers if the user declines.

    If no mechanism would end a finished pod while the laptop is off, the question also offers self-deletion by the pod
    and the always-on machines of packs.
    """
    is_named = bool(spec.cloud and spec.region and spec.instance_type)
    while True:
        takes_self_end = launch.takes_self_end(found, settings)
        is_followed_here = takes_self_end and not offers_table.always_on_here(settings)
        machines = {one.letter: one for one in packs.always_on_machines()} if is_followed_here else {}
        others = (
            {"s": "let the pod delete itself when its work is done, also with the laptop off"} if takes_self_end else {}
        )
        others |= {letter: one.answer for letter, one in machines.items()}
        picked = prompts.pick_or(list(found.offers), is_named, yes, others)
        if picked == "s":
            try:
                found = launch.with_self_end(found, settings)
                render.say("--self-end: the pod deletes itself when its work is done")
            except UsageError as error:
                render.say(f"{error}; nothing was rented")
        elif isinstance(picked, str):
            render.say(machines[picked].how(context.again))
            return launch.picked(found, [], settings)
        else:
            return launch.picked(found, picked, settings)
