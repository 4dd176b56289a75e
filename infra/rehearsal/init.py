"""The init process of a pod: starts sshd, and ends all processes of the pod when stdin closes.

    python -m infra.rehearsal.init FOLDER

FOLDER holds `sshd.json` (command line of sshd) and optionally `command.sh`, the start command of a container, and
`start.sh`, a script that runs after the boot; each script runs once in the home of the pod.

Processes that leave the session stay descendants of this process. Stdin is a pipe from the world, so the pod ends
whenever the world ends, even by SIGKILL. A line on stdin gives the seconds between TERM and KILL.
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
    # the threads of the world block signals, and children inherit the mask
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    # Only the pipe ends this process. A TERM to the whole session must not kill the process that cleans up.
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
