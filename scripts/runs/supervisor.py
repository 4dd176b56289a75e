"""The command `inv supervisor`, and the entry point of the supervisor process (flows/supervisor/supervisor.py).

python -m scripts.runs.supervisor [renew]    for the journal of SLIPWAY_STATE_FILE; stderr is the log

`renew`: replace a running supervisor with different code.
"""

import contextlib
import sys
import time

from flows.supervisor import supervisor_client
from flows.supervisor.supervisor import serve
from infra.units import duration, moment
from scripts.cli import command_hints, context, render
from scripts.cli.command import command
from scripts.cli.flags import Output
from scripts.cli.render import print_json
from store import terminal

MOST_S = 10.0  # timeout for the first look of a new supervisor
POLL_S = 0.1


@command(record=Output, example="inv supervisor")
def supervisor(spec: Output) -> None:
    """Show the supervisor, the process that follows runs.

    The supervisor follows all services, and all runs on other machines that no terminal follows. The command starts the
    supervisor if a run or service needs a supervisor and none runs.
    """
    settings = context.settings()
    pid = supervisor_client.ensure(settings)
    state = supervisor_client.last_state(settings)
    deadline = time.monotonic() + MOST_S
    while pid and (state is None or state.pid != pid) and time.monotonic() < deadline:
        time.sleep(POLL_S)
        state = supervisor_client.last_state(settings)
    is_its = state is not None and state.pid == pid
    if spec.json:
        known = state if is_its and state else supervisor_client.SupervisorState(pid=pid or 0, since=0.0, looked_at=0.0)
        print_json(
            {
                "state": "running" if pid else "not needed",
                "pid": pid,
                "since": render.iso(known.since) if known.since else None,
                "last_look": render.iso(known.looked_at) if known.looked_at else None,
                "runs": list(known.runs),
                "services": list(known.services),
                "given_up": dict(known.given_up),
                "log": str(supervisor_client.log_file(settings)),
            }
        )
        return
    if pid is None:
        seen = f"; the last supervisor checked at {moment(state.looked_at)}" if state else ""
        said = f"no supervisor is needed: no service exists, and no run on a remote machine is unattended{seen}"
        print(terminal.wrap_text(said, sys.stdout))
        return
    print(f"Supervisor: process {pid}; log: {supervisor_client.log_file(settings)}")
    if is_its and state:
        print(f"Since: {moment(state.since)}; last check {duration(max(0.0, time.time() - state.looked_at))} ago")
        print(f"Runs: {', '.join(state.runs) or 'none'}")
        print(f"Services: {', '.join(state.services) or 'none'}")
        for name, why in state.given_up.items():
            said = f"Given up: {name}: {render.clean(why)}. See: inv status {name}"
            print(terminal.wrap_text(command_hints.insert_carried_flags(said), sys.stdout))


def _say(text: str) -> None:
    for line in text.splitlines():
        with contextlib.suppress(OSError):  # lose a log line if the disk is full
            print(f"{moment(time.time())} {line}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    serve(_say, renews="renew" in sys.argv[1:])
