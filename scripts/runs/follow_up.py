"""Who keeps a run when its launch no longer follows it."""

import subprocess
import sys

from infra.ledger.journal import Op
from infra.providers import registry
from infra.settings import Settings
from scripts.cli import command_hints, render
from scripts.cli.context import ROOT
from scripts.cli.invoke_patch import print_json


def leave(op: Op, settings: Settings, as_json: bool) -> None:
    """Nobody follows from here on."""
    render.say(hand_on(op, settings))
    say_how(op, as_json)


def hand_on(op: Op, settings: Settings) -> str:
    """Another machine's run gets a keeper of its own; what is here keeps itself. Which of them, in words."""
    if not registry.provider(settings, op.vendor).is_here:
        log = settings.homes / op.run / "keep.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        line = [sys.executable, "-m", "invoke", "--search-root", str(ROOT), "keep", op.run, *command_hints.flags()]
        with log.open("ab") as file:
            subprocess.Popen(line, stdin=subprocess.DEVNULL, stdout=file, stderr=file, start_new_session=True)
        return f"inv keep {op.run} brings it home, and back if its machine fails; it writes to {log}"
    return "its own guard and agent keep it at work on this machine; nobody else is needed"


def say_how(op: Op, as_json: bool) -> None:
    if as_json:
        print_json({"run": op.run, "state": "running"})
    render.say(f"follow: ./inv logs {op.run} --follow   watch: ./inv status --watch   stop: ./inv down {op.run}")
