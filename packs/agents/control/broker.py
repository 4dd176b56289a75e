"""The broker of an allowance: a process of the owner that answers calls on a Unix socket until the allowance ends.

    python -m packs.agents.control.broker NAME      one process per allowance, started by the supervisor

A call is one connection: a line of JSON {"token", "tool", "arguments"}, then a line with the answer. The
kernel names the user of each connection; only the owner and the user of the allowance may call. At its end, the broker
ends all runs and services of the allowance.
"""

import contextlib
import hmac
import json
import os
import pwd
import signal
import socket
import socketserver
import struct
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from infra.checkout import ROOT
from infra.errors import SlipwayError, UsageError
from infra.ledger.journal import Journal
from infra.settings import Settings
from packs.agents.control.account import Account
from packs.agents.control.calls import Calls
from packs.agents.control.ending import end_all
from packs.agents.control.inv_lines import log
from packs.agents.control.place import folder, open_folder, remove_open_folder
from packs.agents.control.starts import forget_interrupted
from packs.agents.control.time_left import why_ended
from packs.agents.records.allowance import digest
from packs.agents.records.client import LEASE, MOST_CALL_BYTES, place_file
from packs.agents.records.tools import TOOLS
from store import local_files

LOOK_S = 1.0  # between two looks at the allowance
CALLS = 8  # at a time
READ_S = 30.0
END_TRIES_S = 10.0


class Broker(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    """Listens on the socket of an allowance."""

    daemon_threads = True
    request_queue_size = 64

    def __init__(self, path: Path, calls: Calls) -> None:
        # An end has slots of its own, so that calls that hang keep no agent from ending a machine.
        self.calls, self.slots, self.end_slots = calls, *(threading.BoundedSemaphore(CALLS) for _ in range(2))
        super().__init__(str(path), Call)
        # The user of an allowance is another user; the broker asks the kernel who connects.
        path.chmod(0o666 if calls.account.allowance.user else 0o600)


class Call(socketserver.StreamRequestHandler):
    """One call."""

    timeout = READ_S
    server: Broker

    def handle(self) -> None:
        try:
            said = json.loads(self.rfile.readline(MOST_CALL_BYTES + 1))
            answer = self._answer(said if isinstance(said, dict) else {})
        except (ValueError, RecursionError):
            answer = {"refused": "a call is one line of JSON"}
        except TimeoutError:
            return
        with contextlib.suppress(OSError):  # the client has left
            self.wfile.write(json.dumps(answer).encode() + b"\n")

    def _answer(self, said: dict[str, Any]) -> dict[str, Any]:
        try:
            one = self.server.calls.account.allowance
        except UsageError:
            return {"refused": "the record of the allowance cannot be read; the owner sees: inv allow --list"}
        _, uid, _ = struct.unpack("3i", self.connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        if uid not in {os.getuid(), *([pwd.getpwnam(one.user).pw_uid] if one.user else [])}:
            return {"refused": "this user may not call the broker"}
        if not hmac.compare_digest(digest(str(said.get("token", ""))), one.token_sha256):
            return {"refused": "the token is wrong"}
        tool = str(said.get("tool", ""))
        slots = self.server.end_slots if tool in TOOLS and TOOLS[tool].ends else self.server.slots
        if not slots.acquire(blocking=False):
            return {"refused": f"{CALLS} calls are at work; call again soon"}
        try:
            return self.server.calls.answer(tool, said.get("arguments"))
        except Exception:  # an unforeseen error must neither end the broker nor show paths to the client
            log(traceback.format_exc())
            return {"refused": "the broker met an unforeseen error, which is in the log of the owner"}
        finally:
            slots.release()


def serve(name: str, settings: Settings) -> None:
    """Answer calls until the allowance ends, then end all that the allowance has started.

    An allowance with an unreadable record has ended, and answers no calls.
    """
    account = Account(name, settings)
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(listening(account, account.allowance.user))
        except UsageError as error:
            if not why_ended(name, settings):
                raise
            log(str(error))
        while not why_ended(name, settings):
            time.sleep(LOOK_S)
        while not end_all(account, log):
            time.sleep(END_TRIES_S)
        remove_open_folder(name, settings)


@contextlib.contextmanager
def listening(account: Account, user: str) -> Iterator[None]:
    """Answer calls of the owner and of the user within the block. `user`: "" = none. Raises UsageError."""
    name, settings = account.name, account.settings
    with contextlib.ExitStack() as stack:
        if user:
            shared = open_folder(name, settings)
            place = place_file(shared, name)
        else:
            shared = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="slipway-")))
            place = place_file(folder(settings), name)
        path = shared / "socket"
        path.unlink(missing_ok=True)
        broker = stack.enter_context(Broker(path, Calls(name, settings)))
        threading.Thread(target=broker.serve_forever, kwargs={"poll_interval": LOOK_S}, daemon=True).start()
        # An earlier broker may have been killed during a start; the process of `inv` may still hold the lock.
        threading.Thread(target=forget_interrupted, args=(account,), daemon=True).start()
        local_files.replace(place, f"{path}\n".encode(), 0o644)
        try:
            yield
        finally:
            place.unlink(missing_ok=True)
            broker.shutdown()


def main(name: str) -> int:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    settings = Settings.load(ROOT)
    with Journal.open(settings.state_file) as journal:
        try:
            lease = journal.leases.acquire(f"{LEASE}{name}")
        except SlipwayError as error:
            print(error, file=sys.stderr)
            return 1
        try:
            serve(name, settings)
        finally:
            journal.leases.release(lease)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
