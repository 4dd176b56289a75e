"""The init process of a pod: it keeps its sshd alive, and ends with everything below it when its stdin closes.

    python -m infra.rehearsal.init FOLDER

FOLDER holds `sshd.json` (the words of sshd's command line) and perhaps `command.sh`, the start command of a container,
and `start.sh`, a script for after the boot: each is run once in the pod's home.
Whatever forks away from its session stays below this process. Its stdin is a pipe from the world: when the world dies,
however it dies, the pod ends. One line on stdin, a number, is how many seconds TERM is given before KILL.
"""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

from infra.agent import process


def main() -> None:
    folder = Path(sys.argv[1])
    process.become_subreaper()
    signal.pthread_sigmask(signal.SIG_SETMASK, ())  # the world's threads wait for theirs with a mask
    # To be ended is what the pipe says; a TERM for the whole session would leave nobody to do it.
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    words, environ = json.loads((folder / "sshd.json").read_text())
    with open(folder / "sshd.log", "ab") as log:
        sshd = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=log, stderr=log, preexec_fn=_hear_signals)
        (folder / "sshd.pid").write_text(str(sshd.pid))
        for script in filter(Path.exists, (folder / "command.sh", folder / "start.sh")):
            home = folder / "home"
            environ = {**os.environ, **environ}
            subprocess.Popen(
                ["bash", str(script)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=home,
                env=environ,
                preexec_fn=_hear_signals,
            )
    said = sys.stdin.readline()
    left = process.end_all(os.environ[process.TOKEN], float(said or 0))
    sys.exit(1 if left else 0)


def _hear_signals() -> None:
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


if __name__ == "__main__":
    main()
