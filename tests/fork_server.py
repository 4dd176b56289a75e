"""Commands of `inv` that end by themselves, started by a fork server: a start costs a fifth of a new interpreter.

Each worker has a server, which ends with the worker. Tests that need the process of a command (signals, terminals, the
environment in /proc) start an interpreter, and so does a thread that has entered another network namespace.
"""

import functools
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.programs.fork_server import NUMBER

ROOT = Path(__file__).parents[1]
START_S = 60.0
NETWORK = os.readlink("/proc/thread-self/ns/net")  # the server stays in the namespace of the worker


def is_usable() -> bool:
    """Return whether a command of the server has the network of this thread."""
    return os.readlink("/proc/thread-self/ns/net") == NETWORK


@functools.cache
def _address() -> str:
    """Start the server of this process and return its address."""
    path = os.path.join(tempfile.mkdtemp(prefix="fork-"), "server")
    line = [sys.executable, "-m", "tests.programs.fork_server", path]
    server = subprocess.Popen(line, cwd=ROOT, stdin=subprocess.PIPE, start_new_session=True)
    deadline = time.monotonic() + START_S
    while server.poll() is None and time.monotonic() < deadline:
        try:
            with socket.socket(socket.AF_UNIX) as probe:
                probe.connect(path)
            return path
        except OSError:
            time.sleep(0.02)
    raise AssertionError("the fork server does not listen")


def run(
    words: Sequence[str], environ: Mapping[str, str], timeout_s: float = 300.0, folder: Path = ROOT
) -> subprocess.CompletedProcess[str]:
    """Run a command of `inv` in a folder until its end. Raises TimeoutExpired, after killing the command."""
    (out, out_end), (err, err_end) = os.pipe(), os.pipe()
    texts: dict[int, str] = {}

    def read(descriptor: int) -> None:
        with open(descriptor, encoding="utf-8") as stream:
            texts[descriptor] = stream.read()

    body = json.dumps({"words": list(words), "folder": str(folder), "environ": dict(environ)}).encode()
    with socket.socket(socket.AF_UNIX) as request, open(os.devnull) as nothing:
        request.connect(_address())
        socket.send_fds(request, [NUMBER.pack(len(body))], [nothing.fileno(), out_end, err_end])
        os.close(out_end)
        os.close(err_end)
        request.sendall(body)
        pid = NUMBER.unpack(request.recv(NUMBER.size, socket.MSG_WAITALL))[0]
        readers = [threading.Thread(target=read, args=[one]) for one in (out, err)]
        for one in readers:
            one.start()
        deadline = time.monotonic() + timeout_s
        for one in readers:
            one.join(max(0.0, deadline - time.monotonic()))
        if any(one.is_alive() for one in readers):
            os.killpg(pid, signal.SIGKILL)
            raise subprocess.TimeoutExpired(["inv", *words], timeout_s)
        code = os.waitstatus_to_exitcode(NUMBER.unpack(request.recv(NUMBER.size, socket.MSG_WAITALL))[0])
    return subprocess.CompletedProcess(["inv", *words], code, texts[out], texts[err])
