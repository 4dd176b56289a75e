"""The command `forward`: a port of a run's machine, or a tracker's page, on this machine."""

import http.client
import logging
import re
import signal
import socket
import time
from dataclasses import dataclass

from infra.errors import SlipwayError, UsageError
from infra.flags import flag
from infra.ledger.op import Op
from infra.runs import pods
from infra.runs.lookup import find_run, transport_to
from infra.transport.protocol import Transport
from infra.transport.streams import LOOPBACK
from scripts.cli import context, render
from scripts.cli.command import command
from scripts.cli.session import open_journal
from store import packs

PAGE_S = 240.0  # timeout for the page's first answer: imports are slow on a busy machine
ANSWER_S = 5.0
POLL_S = 0.25


def is_port(text: str) -> bool:
    return re.fullmatch("[0-9]{1,5}", text) is not None and int(text) < 65536


@dataclass(frozen=True, kw_only=True)
class ForwardFlags:
    what: tuple[str, ...] = flag(
        (), "RUN, then ports LOCAL:REMOTE such as 8000:8000, or a tracker with a web page, or LOCAL:TRACKER", word=True
    )


@command(record=ForwardFlags, example="inv forward brave-otter-3 8000:8000")
def forward(spec: ForwardFlags) -> None:
    """Forward a port of a run's machine to this machine.

    The command runs until Ctrl-C. `inv forward RUN TRACKER` shows the web page of a tracker.
    """
    *run, ports = spec.what or [""]
    pages = {name: one for name, one in packs.named_trackers().items() if one.page}
    local, _, remote = f"{pages[ports].port}:{ports}".partition(":") if ports in pages else ports.partition(":")
    remote = remote or local
    if why := packs.missing_pack_message("trackers", remote):
        raise UsageError(why)
    if len(run) > 1 or not is_port(local) or not (is_port(remote) or remote in pages):
        named = ", or ".join(("inv forward brave-otter-3 8000:8000", *pages))
        raise UsageError(f"expected a run and ports, such as: {named}")
    settings = context.settings()
    with open_journal(settings) as journal:
        op = find_run(journal, *run)
        transport = transport_to(settings, op)
        if remote in pages:
            show_page(pages[remote], op, transport, int(local))
            return
        with transport.forward(int(local), int(remote)) as port:
            render.say(f"port {remote} of {op.run} is now at 127.0.0.1:{port}; end with Ctrl-C")
            shown = next((name for name, one in pages.items() if one.port == int(remote)), "")
            if shown and not answers(port):
                render.say(
                    f"no program listens on this port of the machine yet. To start {pages[shown].title}: inv "
                    f"forward {op.run} {shown}"
                )
            signal.pause()


def show_page(tracker: packs.NamedTracker, op: Op, transport: Transport, local: int) -> None:
    """Serve a tracker's page about the run from the run's machine until Ctrl-C. Raises SlipwayError."""
    with socket.create_server((LOOPBACK, 0)) as free:
        there = free.getsockname()[1]  # may be in use on the remote machine; the page reports the error
    # Failed connections before the page answers are expected.
    logging.getLogger("infra.transport.streams").setLevel(logging.ERROR)
    pod, environments = pods.folder_of(op), op.read_job().environments
    around = [f"SLIPWAY_WORK={pod.work}", f"SLIPWAY_RUN_ID={op.run}", f"PYTHONPATH={pod.code}"]
    around += [f"SLIPWAY_ENVIRONMENTS={environments}"] if environments else []
    line = [transport.python, "-m", "infra.agent.own_environment", tracker.environment, tracker.page]
    line = ["env", *around, *line, "--host", LOOPBACK, "--port", str(there)]
    render.say(f"{op.run}: starting {tracker.title} on the machine; the first start creates an environment")
    with transport.run_in_background(line, pod.code) as look, transport.forward(local, there) as port:
        deadline = time.monotonic() + PAGE_S
        while not answers(port):
            ending = look()
            if ending or time.monotonic() > deadline:
                why = f"no answer after {render.duration(PAGE_S)}"
                if ending:
                    why = f"exit code {ending.exited}: {' / '.join(ending.stderr.splitlines()[-2:])}"
                raise SlipwayError(render.clean(f"{op.run}: {tracker.title} did not start: {why}"))
            time.sleep(POLL_S)
        render.say(f"{tracker.title} of {op.run}: http://{LOOPBACK}:{port}; end with Ctrl-C")
        while look() is None:
            time.sleep(POLL_S)
    raise SlipwayError(f"{op.run}: {tracker.title} exited")


def answers(port: int) -> bool:
    """Return whether an HTTP server answers on this port."""
    connection = http.client.HTTPConnection(LOOPBACK, port, timeout=ANSWER_S)
    try:
        connection.request("HEAD", "/")
        connection.getresponse()
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()
    return True
