"""Running a command line on a control host: from the typed words to the remote exit code.

`run_on_host` returns for a line that runs locally, and otherwise exits with the exit code of the remote line.
"""

import contextlib
import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from invoke import Exit

from infra.checkout import ROOT
from infra.errors import SlipwayError, UsageError
from infra.settings import Settings
from infra.transport.protocol import ConnectionLost, Unreachable
from infra.units import per_hour
from packs.control_host.control.settings import HERE, ControlHostSettings
from scripts.cli import context, render
from scripts.cli.line_runner import CommandLine


def run_on_host(typed: str, line: CommandLine) -> None:
    """Run the line on the control host, if chosen, and exit with the remote exit code. `typed`: value of `--control`.

    Return for local lines. Raises Exit after a remote line, UsageError for a line with local and remote commands, and
    SlipwayError for an unreachable host.
    """
    tasks, collection, words = line.commands, line.namespace, line.words
    is_here = [getattr(collection[one.name], "is_here", False) for one in tasks]
    if all(is_here):
        return
    settings = context.settings()
    name = chosen_host(typed, settings)
    if name in ("", HERE):
        return
    if any(is_here):
        one = next(one.name for one, here in zip(tasks, is_here, strict=True) if here)
        raise UsageError(
            f"{one} works on this machine, but the rest of the line runs on {name}; type two command lines"
        )
    from packs.control_host.control.host import ControlHost

    host = ControlHost.from_settings(name, settings)
    with contextlib.closing(host.machine):
        try:
            there = host.describe()
            if not there.about:
                raise UsageError(f"{name} is not a control host{_what_then(host)}")
            host.send_code(there)
            with forward_port(host.machine, tasks, collection) as more:
                after_dashes = ["--", *line.after_dashes] if line.after_dashes else []
                done = host.run(there, [*without_control(words), *more, *after_dashes])
        except ConnectionLost as error:
            raise SlipwayError(
                f"the connection to {name} was lost, and processes started on the host continue ({error}); "
                "check: ./inv status"
            ) from None
        except Unreachable as error:
            print_copy_state(host)
            raise SlipwayError(f"the control host {name} cannot be reached: {error}{_what_then(host)}") from None
    if done.code and (left := files_outside_checkout(words)):
        render.tell(f"only files of this checkout are sent to {name}; copy into the checkout first: {', '.join(left)}")
    if done.problem:
        render.tell(f"{name}: the journal could not be copied: {done.problem}")
    raise Exit(code=done.code)


def files_outside_checkout(words: Sequence[str]) -> list[str]:
    """Return the named files outside of the checkout, which the remote machine does not receive."""
    said = [word.partition("=")[2] if word.startswith("--") else word for word in words]
    return [path for path in dict.fromkeys(said) if path and _is_outside(os.path.expanduser(path))]


def _is_outside(path: str) -> bool:
    return os.path.isfile(path) and not Path(path).resolve().is_relative_to(ROOT)


@contextlib.contextmanager
def forward_port(machine: Any, tasks: Sequence[Any], collection: Any) -> Iterator[list[str]]:
    """Forward the port of the last command of the line, if the command listens, to the same port on this machine.

    Yield the words to add to the line: the port flag, if the user typed no port. A port with a default other than None
    is forwarded only if typed: without the flag, the command does not listen.
    """
    flag = getattr(collection[tasks[-1].name], "listens", "") if tasks else ""
    if not flag or not tasks[-1].args[flag].value and tasks[-1].args[flag].default is not None:
        yield []
        return
    from serve.replicas.replica_pod import free_port

    typed = tasks[-1].args[flag].value
    port = typed or free_port(())
    with machine.forward(port, port):
        yield [] if typed else [f"--{flag}={port}"]


def chosen_host(typed: str, settings: Settings) -> str:
    """Return the control host of a line: from `--control`, from the settings, or from the moved journal."""
    from packs.control_host.control import journal_moves

    return typed or settings.for_pack(ControlHostSettings).control or journal_moves.moved_to(settings.state_file)


def without_control(words: Sequence[str]) -> list[str]:
    """Return the words of a line without `--control HOST`."""
    kept, waiting = [], list(words)
    while waiting:
        word = waiting.pop(0)
        if word == "--control":
            waiting = waiting[1:]
        elif not word.startswith("--control="):
            kept.append(word)
    return kept


def print_copy_state(host: Any) -> None:
    """Print the time of the last contact with the host, and the rows that were live then."""
    from packs.control_host.control import archive

    copy = host.copy
    if copy.seen_at is not None:
        ago = render.duration(max(0.0, time.time() - copy.seen_at))
        render.say(f"control host {host.name}: last seen alive {render.iso(copy.seen_at)}, {ago} ago")
    if not copy.digest:
        return
    for one in archive.live_rows(copy.path.read_text()):
        cost = f", {per_hour(one.rate)}" if one.rate else ""
        render.tell(f"  {one.run}: {one.state} on {one.vendor}{cost} then")


def _what_then(host: Any) -> str:
    if host.copy.digest:
        return "; runs continue without the control host. If the host is lost for good: ./inv control.down --lost"
    return f"; to set up a control host: ./inv control.up {host.name}"
