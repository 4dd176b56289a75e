"""Start `inv` commands by fork: each command is a new process that has the imports already.

    python -m tests.programs.fork_server SOCKET

A request on the Unix socket has the words, the folder and the environment of a command, and three file descriptors. The
reply is the number of the process, and later the status of its end. The server ends with the process that holds the
other end of the server's standard input.
"""

import atexit
import gc
import json
import os
import random
import runpy
import select
import shutil
import socket
import struct
import sys
import threading
from importlib import import_module

import httpx  # noqa: F401
import invoke.main  # noqa: F401

from scripts.commands import COMMANDS
from store import packs

NUMBER = struct.Struct("q")


def main() -> None:
    entries = [*COMMANDS.values(), *(one for pack in packs.installed().values() for one in pack.commands.values())]
    for module in sorted({one.where.partition(":")[0] for one in entries}):
        import_module(module)
    server = socket.socket(socket.AF_UNIX)
    server.bind(sys.argv[1])
    server.listen(64)
    gc.freeze()  # a collection in a command then copies no page of the imports
    while True:
        ready, _, _ = select.select([server, sys.stdin], [], [])
        if sys.stdin in ready:
            shutil.rmtree(os.path.dirname(sys.argv[1]))
            return
        request, _ = server.accept()
        if os.fork() == 0:
            server.close()
            serve(request)
        request.close()
        reap()


def reap() -> None:
    """Collect ended children, which wait for the end of a command."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass


def serve(request: socket.socket) -> None:
    """Start the command of a request, and report its end."""
    message, descriptors, _, _ = socket.recv_fds(request, NUMBER.size, 3)
    if not message:
        os._exit(0)  # a client that waits for the server to listen
    size, body = NUMBER.unpack(message)[0], b""
    while len(body) < size:
        body += request.recv(size - len(body))
    pid = os.fork()
    if pid == 0:
        request.close()
        run(json.loads(body), descriptors)
    for one in descriptors:
        os.close(one)
    request.sendall(NUMBER.pack(pid))
    request.sendall(NUMBER.pack(os.waitpid(pid, 0)[1]))
    os._exit(0)


def run(command: dict, descriptors: list[int]) -> None:
    """Become the command, as `python -m invoke` does in a new process."""
    os.setsid()
    for number, one in enumerate(descriptors):
        os.dup2(one, number)
    for one in descriptors:
        os.close(one)
    os.chdir(command["folder"])
    os.environ.clear()
    os.environ.update(command["environ"])
    random.seed()
    sys.argv = ["invoke", *command["words"]]
    sys.stdin, sys.stdout, sys.stderr = open(0), open(1, "w"), open(2, "w", errors="backslashreplace")  # noqa: SIM115
    code = 0
    try:
        runpy.run_module("invoke", run_name="__main__", alter_sys=True)
    except SystemExit as leaving:
        code = leaving.code if isinstance(leaving.code, int) else int(leaving.code is not None)
    except BaseException:
        sys.excepthook(*sys.exc_info())
        code = 1
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    main()
