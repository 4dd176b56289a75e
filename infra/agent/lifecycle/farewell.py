"""The self-termination of a rented pod: it asks its vendor to delete it, again and again until it is gone.

In: the calls of the job, templates over variables of the pod's first process, where a vendor puts a key that opens
this very pod; or over `SELF_END_KEY`, which whoever launched has handed to the guard by its stdin (`--self-end`), and
which is in its memory only. Out: nothing; whoever is deleted does not return. What these hold goes into requests and
nowhere else: no file, no command line, and of an answer only its status is logged, since a server may repeat what it
was sent.
"""

import contextlib
import re
import socket
import sys
import threading
from typing import Any, Callable, Dict, Iterable, List, Mapping, Sequence
from urllib.parse import urlsplit

from infra.agent.job import SELF_END_KEY, VARIABLE, Call, Job
from infra.agent.process import above, environ_of
from infra.agent.shortage import Backoff
from infra.agent.state import say

WAIT_S = 60.0  # by the job's clock: a keeper reads the last words, and then ends the pod without our help
LEAST_WAIT_S = 5.0  # by this machine's clock: reading takes its time however fast the job's clock runs
BACKOFF = Backoff(first_s=1.0, longest_s=300.0, certain=0.0)  # by the job's clock, between two rounds of calls
CALL_S = 20.0  # time for a whole answer
MOST_BYTES = 1 << 16
MOST_KEY_BYTES = 256
LOOPBACK = ("127.0.0.1", "::1", "localhost")
_VALUE = re.compile(r"[A-Za-z0-9._~-]{1,256}")  # means nothing in a URL, in a header, in JSON


def is_due(job: Job, ending: Mapping[str, Any]) -> bool:
    """Return whether the pod is to end itself after this verdict."""
    state = ending["state"]
    is_over = state in ("succeeded", "limit", "stopped") or (state == "failed" and job.on_failure == "end")
    return bool(job.farewell) and is_over  # without a node that was lost, the others may be needed again


def is_sendable(key: str) -> bool:
    """Return whether a key can stand in a header as it is."""
    return _VALUE.fullmatch(key) is not None


def read_key() -> str:
    """Return the key that was handed to this process by its stdin; "" where there is none, or it cannot be sent."""
    found = sys.stdin.buffer.read(MOST_KEY_BYTES + 2).decode("ascii", "replace").strip() if sys.stdin else ""
    return found if is_sendable(found) else ""


def wait_s(job: Job) -> float:
    """Return the time for which the verdict stays to be read, in seconds of this machine."""
    return max(WAIT_S / job.clock_scale, LEAST_WAIT_S)


def leave(calls: Sequence[Call], scale: float, pid: int, wait: Callable[[float], None], key: str = "") -> None:
    """Call the vendor until it has ended process `pid`: this does not return. `key`: the value for `SELF_END_KEY`."""
    rounds = 0
    while True:
        try:
            for words in attempt(calls, pid, key):
                say(f"farewell: {words}")
        except Exception as error:  # whatever happens here, the pod must not stay and bill
            say(f"farewell: {type(error).__name__}")
        rounds += 1
        wait(BACKOFF.wait_s(rounds) / scale)


def attempt(calls: Sequence[Call], pid: int, key: str = "") -> List[str]:
    """Make every call once; return what came of each.

    All are made: that one is answered does not say that the pod goes.
    """
    names = {name for call in calls for name in call.names}
    given = {SELF_END_KEY: key} if key and SELF_END_KEY in names else {}
    values = {**variables(names - given.keys(), pid), **given}
    if len(values) < len(names):
        return [f"{', '.join(sorted(names))} stand in no process above this one"]
    return [f"{call.method} {call.url}: {ask(call, values)}" for call in calls]


def variables(names: Iterable[str], pid: int) -> Dict[str, str]:
    """Return variables of the nearest process above `pid` that has them all, fit to be sent; {} when none has."""
    names = set(names)
    for one in above(pid):
        environ = environ_of(one)
        if all(_VALUE.fullmatch(environ.get(name, "")) for name in names):
            return {name: environ[name] for name in names}
    return {}


def ask(call: Call, values: Mapping[str, str]) -> str:
    """Return the outcome of one request, in words without anything of the answer but its status."""
    import http.client  # it brings much along, and every agent and guard would pay for it at its start
    import ssl

    url = urlsplit(fill(call.url, values))
    host = url.hostname or ""
    connection: http.client.HTTPConnection
    if url.scheme == "https":
        context = ssl.create_default_context()
        connection = http.client.HTTPSConnection(host, url.port, timeout=CALL_S, context=context)
    elif url.scheme == "http" and host in LOOPBACK:
        connection = http.client.HTTPConnection(host, url.port, timeout=CALL_S)
    else:
        return "not sent: it is no https"
    headers = {name: fill(value, values) for name, value in call.headers.items()}
    said: List[str] = []

    def exchange() -> None:
        try:
            connection.request(call.method, url.path or "/", fill(call.body, values).encode() or None, headers)
            answer = connection.getresponse()  # redirects are not followed: the key stays here
            is_error = b'"errors"' in answer.read(MOST_BYTES)
            said.append(f"{answer.status}{' with errors' if is_error else ''}")
        except Exception as error:
            said.append(type(error).__name__)

    # A time limit on each read is none on all of them, and a name server has one of its own.
    thread = threading.Thread(target=exchange, daemon=True)
    thread.start()
    thread.join(CALL_S)
    if thread.is_alive() and connection.sock is not None:
        with contextlib.suppress(OSError):  # it has been closed meanwhile
            connection.sock.shutdown(socket.SHUT_RDWR)
    return said[0] if said else f"no whole answer in {CALL_S:g} s"


def fill(template: str, values: Mapping[str, str]) -> str:
    return VARIABLE.sub(lambda found: values[found.group(1)], template)
