"""Who keeps a run when its launch no longer follows it."""

import subprocess
import sys
from collections.abc import Sequence

from infra.journal import Journal, Op
from infra.keep import Keeper
from infra.records import Offer, Request
from infra.settings import Settings
from infra.terms import terms_for
from scripts import choosing, hints, render, words
from scripts.ledger import tell
from scripts.planning import ROOT
from scripts.program import print_json


def keeper_of(op: Op, journal: Journal, settings: Settings) -> Keeper:
    terms = terms_for(settings, words.provider(settings, op.vendor))
    folder = words.homes(settings) / op.run

    def find(request: Request) -> Sequence[Offer]:
        return choosing.find(words.providers(words.settings(provider=request.provider)), request)

    def lost(op: Op) -> None:
        tell(journal, settings, op, "preempted")

    return Keeper(journal, words.vendors(settings), find, folder, words.secrets(settings), render.say, terms, lost)


def leave(op: Op, settings: Settings, as_json: bool) -> None:
    """Nobody follows from here on."""
    render.say(hand_on(op, settings))
    say_how(op, as_json)


def hand_on(op: Op, settings: Settings) -> str:
    """Another machine's run gets a keeper of its own; what is here keeps itself. Which of them, in words."""
    if not words.provider(settings, op.vendor).is_here:
        log = words.homes(settings) / op.run / "keep.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        line = [sys.executable, "-m", "invoke", "--search-root", str(ROOT), "keep", op.run, *hints.flags()]
        with log.open("ab") as file:
            subprocess.Popen(line, stdin=subprocess.DEVNULL, stdout=file, stderr=file, start_new_session=True)
        return f"inv keep {op.run} brings it home, and back if its machine fails; it writes to {log}"
    return "its own guard and agent keep it at work on this machine; nobody else is needed"


def say_how(op: Op, as_json: bool) -> None:
    if as_json:
        print_json({"run": op.run, "state": "running"})
    render.say(f"follow: ./inv logs {op.run} --follow   watch: ./inv status --watch   stop: ./inv down {op.run}")
