"""The command `inv ssh --config`: host names of pods for the system's own `ssh`."""

import sys

from infra.runs import ssh_names
from infra.selection import registry
from infra.transport import ssh_include
from infra.transport.ssh_include import PodNames
from scripts.cli import context, render
from scripts.cli.session import open_journal


def config(is_removed: bool, yes: bool) -> None:
    """Write or remove the file of names; change ~/.ssh/config only with `yes` or the user's consent."""
    settings = context.settings()
    theirs = ssh_names.config_file()
    with open_journal(settings) as journal:
        file = PodNames.for_journal(journal.path)
        if is_removed:
            return remove(file, yes)
        made = ssh_names.write(journal, registry.vendors(settings))
    for one in made.left_out:
        render.tell(f"left out: {one}")
    render.say(f"{file.path}: {', '.join(made.names) or 'no pod yet'}")
    if not ssh_include.is_included(theirs, file.include_line):
        print(file.include_line, flush=True)
        if not (yes or ask_yes_no(f"Put this line at the top of {theirs}?")):
            render.say(
                f"put this line at the top of {theirs}, above any Host; or let the command do so: ./inv ssh "
                "--config --yes"
            )
            return
        ssh_include.include(theirs, file.include_line)
        render.say(f"the line is now at the top of {theirs}")
    render.say(f"Try: ssh {made.names[-1] if made.names else 'RUN'}. New pods are added, and ended pods are removed")


def remove(file: PodNames, yes: bool) -> None:
    """Remove the file of names, and with consent the include line in ~/.ssh/config."""
    theirs = ssh_names.config_file()
    with file.hold_lock():
        render.say(f"{file.path} {'was removed' if file.remove() else 'does not exist'}")
    if not ssh_include.is_included(theirs, file.include_line):
        return
    if (yes or ask_yes_no(f"Remove the include line from {theirs}?")) and ssh_include.leave_out(
        theirs, file.include_line
    ):
        render.say(f"the include line was removed from {theirs}")
    else:
        render.say(f"{theirs} still has the include line, which has no effect: {file.include_line}")


def ask_yes_no(question: str) -> bool:
    """Ask a yes/no question; return False without a terminal."""
    if not sys.stdin.isatty():
        return False
    print(f"{question} [y/N] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")
