"""Commands in messages, with the flags that whoever reads them has to type: `--rehearse` or `--state-file`.

Words that other tools have for what is here called otherwise stand here, too: an error names ours, nothing is guessed.

In: text of ours with commands in it. Out: the same text; each command has those of the two flags that the line which is
running was typed with.
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
_carried: dict[str, str] = {}  # flags of this line that choose a world, with their values; "" for a switch
_taken: list[Callable[[str], Collection[str]]] = []  # tells which flags a command takes
_COMMAND = re.compile(r"(?<![\w./-])((?:\./)?inv ([a-z][a-z_.-]*[a-z]))(?![\w:-])(?! --rehearse| --state-file)")


def carry(flag: str, value: str = "") -> None:
    """Add this flag to every command that is suggested from here on."""
    _carried[flag] = value


def teach(taken: Callable[[str], Collection[str]]) -> None:
    """Set the function that says which flags a command takes."""
    _taken[:] = [taken]


def flags(command: str = "") -> list[str]:
    """Return the flags of this line, as words; with `command`, those that it takes."""
    known = _taken[0](command) if command and _taken else ()
    taken = {flag for flag in _carried if not command or flag in known}
    return [word for flag, value in _carried.items() if flag in taken for word in (flag, value) if word]


def as_typed(text: str) -> str:
    """Return `inv down --rehearse RUN` for `inv down RUN` where this line deals with a rehearsal."""
    if not _carried:
        return text
    return _COMMAND.sub(lambda found: " ".join([found[1], *map(shlex.quote, flags(found[2]))]), text)


def ours(word: str, command: str) -> str:
    """Return our words for another tool's; "" for a word that no tool is known to have."""
    if not command:
        return THEIR_TASKS.get(word, "") or THEIR_FLAGS.get(word, "")
    of_pack = packs.entries("hints").get(f"{command} {word}", "")
    return of_pack or THEIR_FLAGS.get(word, "") or THEIR_TASKS.get(word, "")
