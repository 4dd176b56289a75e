"""The rehearsal's world, for the commands: finding it, entering it, beginning one."""

import os
from pathlib import Path

from infra.rehearsal import attach
from scripts import render, words


def base() -> Path:
    """Where this user's worlds are."""
    settings = words.settings()
    return Path(settings.rehearsal).parent if settings.rehearsal else attach.beside(settings.state_file)


def enter(begin: bool = False) -> None:
    """From here on this process, and those that it starts, deal with the world that runs; or with a new one.

    Raises UsageError when none runs, and `begin` is not set.
    """
    if words.settings().rehearsal:
        return  # an earlier command of the line, or whoever started this process, has done so
    try:
        found = attach.find(base())
    except attach.NoWorld:
        if not begin:
            raise
        found = attach.start(base(), speed=attach.SPEED)
        render.say(f"a rehearsal was begun, with the offers that Slipway brings along; {until_when()}")
    step_into(found)


def step_into(found: attach.Running) -> None:
    os.environ[attach.INSIDE] = str(found.folder)
    faster = f"its clock runs {found.speed:g} times as fast"
    render.say(f"rehearsal: nothing here costs money, {faster}; add --rehearse to whatever you type next")


def until_when() -> str:
    """When a world ends."""
    idle = render.duration(attach.IDLE_S)
    return f"it ends by itself when for {idle} nothing ran in it and nobody asked; to end it: inv rehearse --stop"
