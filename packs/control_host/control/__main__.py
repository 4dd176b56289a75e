"""Command-line program of a control host: `python -m packs.control_host.control WORD`.

    run NAME  run a command for a laptop on the streams of this process (`packs.control_host.control.session`)
    state     say whether a journal is present and in use
    accept    accept an installation, or new keys for the installation: JSON on stdin
    release   stop the processes that look after runs, mark the journal as moved home, and print the installation
    give      print the installation unchanged
    forget    remove everything that `accept` installed, except artifacts and logs

The program runs in the code pushed to the host. Each word answers with JSON on stdout, or with a line on stderr and an
exit code.
"""

import json
import os
import sys
from typing import Any

from infra.agent.shortage import is_full
from infra.checkout import ROOT
from infra.errors import SlipwayError
from infra.installation import this_machine
from packs.control_host.control import archive, host_side, session
from packs.control_host.control.host_paths import HostPaths


def main(words: list[str]) -> int:
    places = HostPaths.for_code(ROOT)
    os.umask(0o077)
    if words[:1] == ["run"]:
        host_side.prepare_checkout(places, ROOT)
        return session.run(
            places.calls / words[1],
            line_of=lambda about: host_side.line_of(about, ROOT),
            copy_of=lambda: _copy(places),
            look_after=lambda: host_side.start_check(places, ROOT),
        )
    jobs = {
        "state": lambda: {"is_in_use": host_side.is_in_use(places)},
        "accept": lambda: host_side.accept(places, ROOT, json.load(sys.stdin)),
        "release": lambda: host_side.release(places, json.load(sys.stdin)["to"]),
        "give": lambda: {"archive": archive.pack(places.state_file)},
        "forget": lambda: host_side.forget(places),
    }
    try:
        answer: Any = jobs[words[0]]()
    except SlipwayError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    print(json.dumps(answer))
    return 0


def _copy(places: HostPaths) -> tuple[str, str]:
    text = archive.pack(places.state_file)
    return text, archive.digest(text)


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except OSError as error:
        if not is_full(error):
            raise
        sys.exit(
            f"the control host {this_machine().host} has a full disk: {error}; free space on that disk "
            "and repeat the command"
        )
