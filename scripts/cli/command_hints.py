"""Command suggestions in messages, with the `--rehearse` or `--state-file` flag of the running line added.

The input is a message with commands in the text; the output adds the carried flags to each command that accepts them.
The module also maps the flags and command names of other tools to ours, so that errors can suggest the right word; no
word is guessed.
"""

import re
import shlex
from collections.abc import Callable, Collection

from store import packs

THEIR_TASKS = {
    "cancel": "inv down RUN",
    "queue": "inv status",
    "exec": "inv ssh RUN -- COMMAND",
    "autostop": "inv launch --idle-stop 15m",
}
THEIR_FLAGS = {
    "--gpu-type": "--gpu",
    "--gpu-count": "--num-gpus",
    "--inspect-executors": "inv offers --provider lium --gpu A100",
    "--destroy": "inv down --all",
    "--job": "inv launch examples/jobs/train.yaml",
    "--stage": "--phase, or -e STAGE=2",
    "--service-name": "--name",
}
_carried: dict[str, str] = {}  # world flags of this line and their values; "" for a switch
_taken: list[Callable[[str], Collection[str]]] = []  # at most one function: command name -> accepted flags
_COMMAND = re.compile(r"(?<![\w./-])((?:\./)?inv ([a-z][a-z_.-]*[a-z]))(?![\w:-])(?! --rehearse| --state-file)")


def add_carried_flag(flag: str, value: str = "") -> None:
    """Add this flag to every suggested command from now on."""
    _carried[flag] = value


def set_flag_lookup(taken: Callable[[str], Collection[str]]) -> None:
    """Set the function that maps a command name to the accepted flags."""
    _taken[:] = [taken]


def flags(command: str = "") -> list[str]:
    """Return the carried flags as words; with `command`, only flags accepted by the command."""
    known = _taken[0](command) if command and _taken else ()
    taken = {flag for flag in _carried if not command or flag in known}
    return [word for flag, value in _carried.items() if flag in taken for word in (flag, value) if word]


def insert_carried_flags(text: str) -> str:
    """Insert the carried flags: `inv down RUN` becomes `inv down --rehearse RUN` on a line with `--rehearse`."""
    if not _carried:
        return text
    return _COMMAND.sub(lambda found: " ".join([found[1], *map(shlex.quote, flags(found[2]))]), text)


def our_equivalent(word: str, command: str) -> str:
    """Return our equivalent of another tool's word for `command`, or "" for an unknown word."""
    if not command:
        return THEIR_TASKS.get(word, "") or THEIR_FLAGS.get(word, "")
    of_pack = packs.entries("hints").get(f"{command} {word}", "")
    return of_pack or THEIR_FLAGS.get(word, "") or THEIR_TASKS.get(word, "")
