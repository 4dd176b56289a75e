"""Rehearsal selection for commands: find a running rehearsal, enter it, or start a new rehearsal."""

import os
import shlex
from pathlib import Path

from infra.errors import UsageError
from infra.rehearsal import attach
from scripts.cli import command_hints, context, render


def base() -> Path:
    """Return the folder of this user's rehearsals."""
    settings = context.settings()
    return Path(settings.rehearsal).parent if settings.rehearsal else attach.worlds_folder(settings.state_file)


def enter(begin: bool = False, speed: float = 0.0) -> None:
    """Attach this process and all child processes to the running rehearsal, or start a rehearsal if `begin` is set.

    `speed`: clock speed of a new rehearsal; 0 for the default. Raises NoWorld if none runs and `begin` is not set.
    """
    command_hints.add_carried_flag("--rehearse")
    if context.settings().rehearsal:
        return  # set by an earlier command of the line or by the parent process
    try:
        found = attach.find(base())
    except attach.NoWorld:
        if not begin:
            raise
        try:
            found = attach.start(base(), speed=speed or attach.SPEED)
        except attach.AlreadyRuns:
            found = attach.find(base())
        else:
            render.say(f"a rehearsal with built-in offers was started; {end_condition()}")
    attach_process(found)


def set_state_file(state_file: str) -> None:
    """Set the journal for this process and all child processes from now on.

    Raises UsageError for a folder, or inside a rehearsal, because each rehearsal has a separate journal.
    """
    path = Path(state_file).expanduser().absolute()
    if context.settings().rehearsal:
        raise UsageError(
            "--state-file: an earlier command of this line entered a rehearsal, and a rehearsal has a "
            "separate journal. Give --state-file to the first command of the line"
        )
    if path.is_dir():
        raise UsageError(f"--state-file {state_file} is a folder. Name a file, such as {path}/journal.sqlite")
    os.environ["SLIPWAY_STATE_FILE"] = str(path)
    command_hints.add_carried_flag("--state-file", str(path))


def attach_process(found: attach.Running, is_temporary: bool = False) -> None:
    """Enter a world for this process and all child processes. `is_temporary`: the world ends with the command."""
    command_hints.add_carried_flag("--rehearse")
    os.environ[attach.INSIDE] = str(found.folder)
    faster = (
        "the clock runs at real speed"
        if found.speed == 1
        else f"the clock runs {found.speed:g} times as fast as real time (for durations and ages, not for dates)"
    )
    advice = (
        "this market ends with the dry run"
        if is_temporary
        else f"add {shlex.join(command_hints.flags())} to the next commands"
    )
    render.say(f"rehearsal: no real money is spent, {faster}; {advice}")


def end_condition() -> str:
    """Return the end condition of a rehearsal as text."""
    idle = render.duration(attach.IDLE_S)
    return (
        f"the rehearsal ends after {idle} without a running machine or a request. End the rehearsal now: inv "
        "rehearse --stop"
    )
