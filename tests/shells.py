"""Login shells of other users: the program, the output of start-up files, and the options of sshd.

`ForceCommand` runs the shell as sshd does: with the command as one word after `-c`.
"""

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tests.hosts import Host, loopback
from tests.needs import needs

ASKED = '/bin/bash -c "$SSH_ORIGINAL_COMMAND"'
HELLO = 'echo "Hello $USER, you have 3 messages"'


@dataclass(frozen=True)
class LoginShell:
    program: str
    files: Mapping[str, str] = field(default_factory=dict)  # text by path below the home
    around: str = 'exec {program} -c "$SSH_ORIGINAL_COMMAND"'  # of the forced command
    says: str = ""  # reported facts; "" for a silent shell


SHELLS = {
    "bash that greets": LoginShell("bash", {".bashrc": HELLO}, says="you have 3 messages"),
    "bash that prints 1": LoginShell("bash", {".bashrc": "echo 1"}, says="1"),
    "bash that prints -1": LoginShell("bash", {".bashrc": "echo -1; echo -1 >&2"}, says="-1"),
    "bash without a newline": LoginShell("bash", {".bashrc": "printf busy; printf busy >&2"}, says="busy"),
    "bash with two lines": LoginShell("bash", {".bashrc": f"{HELLO}\necho 12345"}, says="12345"),
    "bash that repeats": LoginShell("bash", {".bashrc": "set -xv; echo on"}, says="on"),
    "bash with colours": LoginShell("bash", {".bashrc": "printf '\\033]0;title\\007\\033[31mred\\n'"}, says="red"),
    "bash with traps": LoginShell(
        "bash",
        {".bashrc": "trap 'echo bye 77' EXIT; trap 'echo dbg 5' DEBUG; set -u; cd /usr; sleep 9 &"},
        says="dbg 5",
    ),
    "fish that greets": LoginShell("fish", {".config/fish/config.fish": "echo Welcome to fish\n"}, says="Welcome"),
    "zsh that greets": LoginShell("zsh", {".zshenv": "echo zsh says hello\n"}, says="zsh says hello"),
    "tcsh": LoginShell("tcsh"),
    "tcsh that greets": LoginShell("tcsh", {".tcshrc": "echo 'tcsh says hello'\n"}, says="tcsh says hello"),
    "tcsh that repeats": LoginShell("tcsh", {".tcshrc": "set echo verbose\n"}, says="exec"),
    "dash": LoginShell("dash"),
    "a forced command": LoginShell("bash", around=f"/bin/bash -c 'echo LOGGED; exec {ASKED}'", says="LOGGED"),
    "a forced command that stays": LoginShell(
        "bash", around=f"echo LOGGED; {ASKED}; echo bye; echo bye >&2; true", says="LOGGED"
    ),
    "a forced command that splits": LoginShell("bash", around="echo LOGGED; eval $SSH_ORIGINAL_COMMAND", says="LOGGED"),
    "a forced command that joins": LoginShell("bash", around=f"echo LOGGED >&2; exec {ASKED} 2>&1", says="LOGGED"),
}


@contextlib.contextmanager
def machine(folder: Path, name: str) -> Iterator[Host]:
    """Run a machine on loopback with this login shell for the user."""
    shell = SHELLS[name]
    if shell.program in ("fish", "zsh", "tcsh"):
        needs(shell.program)
    forced = shell.around.format(program=shell.program)
    with loopback(folder, "OMP_NUM_THREADS=1", options=["-o", f"ForceCommand={forced}"]) as host:
        for path, text in shell.files.items():
            (host.folder / path).parent.mkdir(parents=True, exist_ok=True)
            (host.folder / path).write_text(text)
        yield host
