"""Starter of the sandbox processes: `python -I -S start.py JAIL ABI MEMORY_BYTES DESCRIPTOR`, run by path.

The starter confines itself as far as possible while still able to fork, then forks a child for each request on a
socket. A request carries the descriptors of the child's pipes: the starter never holds an answer, an assertion or a
value. A child confines itself completely before reading. Standard library only.
"""

import contextlib
import fcntl
import gc
import json
import os
import signal
import socket
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))))

from trainer.rewards.sandbox import answering, checking, kernel, preload
from trainer.rewards.sandbox.pipe import JsonPipe

ROLES = {"answer": answering.answer, "check": checking.check}
WORDS_BYTES = 1 << 10
BUBBLEWRAP = ("mount", "net", "ipc", "uts", "pid")


def main() -> None:
    """Confine this process, report the layers, then serve requests until the socket closes."""
    del sys.path[0]
    jail, version, memory_bytes, descriptor = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
    requests = socket.socket(fileno=descriptor)
    null = os.open(os.devnull, os.O_RDWR)
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write("1000")  # out of memory: the kernel kills an answer first
    try:
        rules, layers = confine(jail, version)
    except Exception as error:
        requests.send(json.dumps({"error": f"{type(error).__name__}: {error}"[:500]}).encode())
        return
    requests.send(json.dumps(layers.plain()).encode())
    gc.collect()
    gc.freeze()
    serve(requests, null, rules, version, memory_bytes)


def confine(jail: str, version: int) -> tuple[int, kernel.Layers]:
    """Give up every right not needed by a child; return the children's Landlock ruleset (-1 = none) and the layers.

    Raises OSError if a mandatory layer fails.
    """
    if jail == "none":
        preload.load(is_all=False)
        return -1, kernel.Layers(0, (), False, False, True)
    folders = kernel.library()
    is_apart = jail == "bubblewrap"  # bubblewrap has already created namespaces and root
    namespaces = BUBBLEWRAP if is_apart else kernel.enter_namespaces()
    has_own_root = is_apart or ("mount" in namespaces and kernel.own_root(folders))
    rules = kernel.ruleset(folders, version) if jail == "landlock" else -1
    reads_library = os.geteuid() != 0 or can_nobody_read(folders[0])
    preload.load(is_all=not reads_library)
    if "pid" in namespaces and not is_apart:
        become_first()
    has_changed_user = kernel.drop_root()
    if os.getpid() == 1:
        kernel.die_with_parent()  # again: a user change clears the parent-death signal
    if "user" not in namespaces and kernel.own_user_namespace():
        namespaces = ("user", *namespaces)
    kernel.no_capabilities()
    return rules, kernel.Layers(version if rules >= 0 else 0, namespaces, has_own_root, has_changed_user, reads_library)


def can_nobody_read(folder: str) -> bool:
    """Return True if every folder on the path below / is readable and searchable for all users."""
    while folder != os.path.dirname(folder):
        if os.stat(folder).st_mode & 0o5 != 0o5:
            return False
        folder = os.path.dirname(folder)
    return True


def become_first() -> None:
    """Fork and continue as PID 1 of the new PID namespace: the kernel ends the whole namespace with PID 1."""
    child = os.fork()
    if child:
        os.closerange(0, kernel.FILES)
        os.waitpid(child, 0)
        os._exit(0)
    kernel.die_with_parent()


def serve(requests: socket.socket, null: int, rules: int, version: int, memory_bytes: int) -> None:
    """Fork a child for `start ROLE`, with the child's two pipes; kill the child for `end PID`."""
    while True:
        words, descriptors, _, _ = socket.recv_fds(requests, WORDS_BYTES, 2)
        if not words:
            return
        what, _, which = words.decode().partition(" ")
        if what == "start":
            child = os.fork()
            if not child:
                begin(which, descriptors, null, rules, version, memory_bytes)
            for one in descriptors:
                os.close(one)
            requests.send(str(child).encode())
        else:
            os.kill(int(which), signal.SIGKILL)
            os.waitpid(int(which), 0)
            requests.send(b"0")


def begin(role: str, pipes: list[int], null: int, rules: int, version: int, memory_bytes: int) -> None:
    """Confine this child and run the role; never return."""
    try:
        kernel.die_with_parent()
        above = [
            fcntl.fcntl(one, fcntl.F_DUPFD, kernel.FILES) for one in (*pipes, *(one for one in (rules,) if one >= 0))
        ]
        for place in (0, 1, 2):
            os.dup2(null, place)
        for place, one in enumerate(above, 3):
            os.dup2(one, place)
        os.closerange(3 + len(above), 1 << 16)
        kernel.limits(memory_bytes)
        if rules >= 0:
            kernel.restrict_files(5, version)
            os.close(5)
        if sys.argv[1] != "none":
            kernel.restrict_system_calls()
        ROLES[role](JsonPipe(3, 4))
    finally:
        os._exit(0)


if __name__ == "__main__":
    main()
