"""The server of `inv ui`: `python -m packs.page.views [--port N] [--allow-acts] [--open]`, in the environment `ui`.

The server listens on loopback only, prints a one-time link and ends with Ctrl-C.
"""

import argparse
import errno
import logging
import socket
import sys
import time
import webbrowser
from pathlib import Path
from types import FrameType

import uvicorn

from infra import job_environment
from infra.checkout import ROOT
from infra.errors import UsageError
from infra.settings import Settings
from infra.transport.streams import LOOPBACK
from packs.page.views import app, export
from packs.page.views.access import Gate
from packs.page.views.page_context import PageContext
from store import credentials

RENEW_S = 10.0  # minimum seconds between two printed links
USUAL, TRIES = 7331, 20  # default port, and number of ports to try


def main() -> None:
    """Parse the flags, then export the page or serve the page until Ctrl-C."""
    parser = argparse.ArgumentParser(prog="ui")
    parser.add_argument("--port", type=int)
    parser.add_argument("--export", default="")
    parser.add_argument("--allow-acts", action="store_true")
    parser.add_argument("--open", action="store_true")
    flags = parser.parse_args()
    settings = Settings.load(ROOT, {}, ())
    settings.lend_environment(secrets=True)
    credentials.set_credentials(job_environment.secrets(settings))
    if flags.export:
        try:
            page = export.write(Path(flags.export) / "index.html", export.whole(PageContext(settings)))
        except UsageError as error:
            sys.exit(f"ui: {error}")
        print(page, flush=True)
        if flags.open:
            webbrowser.open(page.as_uri())
        return
    listener = listen(flags.port)
    port = listener.getsockname()[1]
    gate = Gate(hosts=(f"{LOOPBACK}:{port}", f"localhost:{port}"), acts_allowed=flags.allow_acts)
    renewed_at = 0.0

    def tell_link() -> str:
        link = f"http://{LOOPBACK}:{port}/#{gate.token}"
        print(f"open {link}", flush=True)
        return link

    def expired() -> None:
        nonlocal renewed_at
        if time.monotonic() - renewed_at > RENEW_S:
            renewed_at = time.monotonic()
            which = "a new link" if gate.renew() else "the valid link"
            print(f"a link that is not valid was opened; {which}:", file=sys.stderr, flush=True)
            tell_link()

    link = tell_link()
    acts = "acts are on: down, resume and scale ask first" if flags.allow_acts else "acts are off"
    print(
        f"the link works once; {acts}; Ctrl-C ends the page, and runs and services continue",
        file=sys.stderr,
        flush=True,
    )
    if flags.open:
        webbrowser.open(link)
    context = PageContext(settings, acts_allowed=flags.allow_acts)
    config = uvicorn.Config(
        app.make(context, gate, expired),
        log_level="warning",
        lifespan="on",
        timeout_graceful_shutdown=1,
        server_header=False,
        date_header=False,
    )
    QuietServer(config).run(sockets=[listener])


class QuietServer(uvicorn.Server):
    """A server that ends with Ctrl-C without messages about the streams of open tabs, which the server cancels."""

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)
        super().handle_exit(sig, frame)


def listen(port: int | None) -> socket.socket:
    """Return a listening loopback socket on the port, or without a port on the first free port from `USUAL` on.

    Exit with an error message if no port is available.
    """
    asked = range(USUAL, USUAL + TRIES) if port is None else (port,)
    why = ""
    for one in asked:
        try:
            return socket.create_server((LOOPBACK, one), backlog=64)
        except OverflowError:
            why = "cannot be used: the number must be between 0 and 65535"
        except OSError as error:
            why = "is taken" if error.errno == errno.EADDRINUSE else f"cannot be used: {error.strerror}"
    sys.exit(f"ui: port {asked[-1]} of this machine {why}; choose a free port: inv ui --port N, or 0 for any free port")
