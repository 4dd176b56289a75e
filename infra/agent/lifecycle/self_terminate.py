"""Self-termination of a rented pod: the pod asks the vendor to delete the pod, repeatedly until the pod is gone.

The requests of a job are templates over variables of the pod's first process, where the vendor puts a key for this pod;
or over `SELF_END_KEY`, which the launcher passes to the guard through stdin (`--self-end`) and which stays in memory.
Secret values go into the requests and nowhere else: no file, no command line. Of a response only the status is logged,
because a server may echo the request.
"""

import contextlib
import re
import socket
import sys
import threading
from typing import Any, Callable, Dict, Iterable, List, Mapping, Sequence
from urllib.parse import urlsplit

from infra.agent.job import SELF_END_KEY, VARIABLE, Call, Job
from infra.agent.process import ancestors, environ_of
from infra.agent.shortage import Backoff
from infra.agent.state import say

WAIT_S = 60.0  # on the job's clock: time for a supervisor to read the verdict and end the pod from outside
LEAST_WAIT_S = 5.0  # on the machine's clock: reading takes real time, at any speed of the job's clock
BACKOFF = Backoff(first_s=1.0, longest_s=300.0, certain=0.0)  # on the job's clock, between two rounds of requests
CALL_S = 20.0  # timeout for a complete response
MOST_BYTES = 1 << 16
MOST_KEY_BYTES = 256
LOOPBACK = ("127.0.0.1", "::1", "localhost")
_VALUE = re.compile(r"[A-Za-z0-9._~-]{1,256}")  # characters without a special meaning in a URL, a header or JSON


def is_due(job: Job, ending: Mapping[str, Any]) -> bool:
    """Return whether the pod must end itself after this verdict."""
    state = ending["state"]
    is_over = state in ("succeeded", "limit", "stopped") or (state == "failed" and job.on_failure == "end")
    # After the loss of a node, the run may need the other nodes again.
    return bool(job.self_terminate_calls) and is_over


def is_sendable(key: str) -> bool:
    """Return whether a key can be sent in a header verbatim."""
    return _VALUE.fullmatch(key) is not None


def read_key() -> str:
    """Return the key passed through stdin, or "" without a valid key."""
    found = sys.stdin.buffer.read(MOST_KEY_BYTES + 2).decode("ascii", "replace").strip() if sys.stdin else ""
    return found if is_sendable(found) else ""


def wait_s(job: Job) -> float:
    """Return the real seconds for which the verdict stays readable before the pod ends itself."""
    return max(WAIT_S / job.clock_scale, LEAST_WAIT_S)


def terminate_self(calls: Sequence[Call], scale: float, pid: int, wait: Callable[[float], None], key: str = "") -> None:
    """Send the requests until the vendor ends process `pid`; never returns. `key` is the value of `SELF_END_KEY`."""
    rounds = 0
    while True:
        try:
            for words in attempt(calls, pid, key):
                say(f"self-termination: {words}")
        except Exception as error:  # after any failure, the pod must still end, or the pod bills
            say(f"self-termination: {type(error).__name__}")
        rounds += 1
        wait(BACKOFF.wait_s(rounds) / scale)


def attempt(calls: Sequence[Call], pid: int, key: str = "") -> List[str]:
    """Send every request once; return a line per outcome.

    All requests are sent, because a successful response does not prove that the pod ends.
    """
    names = {name for call in calls for name in call.names}
    given = {SELF_END_KEY: key} if key and SELF_END_KEY in names else {}
    values = {**variables(names - given.keys(), pid), **given}
    if len(values) < len(names):
        return [f"{', '.join(sorted(names))} are not set in any parent process"]
    return [f"{call.method} {call.url}: {ask(call, values)}" for call in calls]


def variables(names: Iterable[str], pid: int) -> Dict[str, str]:
    """Return the variables from the nearest ancestor of `pid` that has all of them with sendable values, or {}."""
    names = set(names)
    for one in ancestors(pid):
        environ = environ_of(one)
        if all(_VALUE.fullmatch(environ.get(name, "")) for name in names):
            return {name: environ[name] for name in names}
    return {}


def ask(call: Call, values: Mapping[str, str]) -> str:
    """Send a request; return the outcome as text without response content other than the status."""
    import http.client  # imported late, because every agent and guard would pay for the import at start
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
        return "not sent: the URL is not https"
    headers = {name: fill(value, values) for name, value in call.headers.items()}
    said: List[str] = []

    def exchange() -> None:
        try:
            connection.request(call.method, url.path or "/", fill(call.body, values).encode() or None, headers)
            answer = connection.getresponse()  # redirects are not followed, so the key reaches no other host
            is_error = b'"errors"' in answer.read(MOST_BYTES)
            said.append(f"{answer.status}{' with errors' if is_error else ''}")
        except Exception as error:
            said.append(type(error).__name__)

    # A timeout per read does not bound the total, and the name lookup has a separate timeout.
    thread = threading.Thread(target=exchange, daemon=True)
    thread.start()
    thread.join(CALL_S)
    if thread.is_alive() and connection.sock is not None:
        with contextlib.suppress(OSError):  # closed in the meantime
            connection.sock.shutdown(socket.SHUT_RDWR)
    return said[0] if said else f"no complete answer in {CALL_S:g} s"


def fill(template: str, values: Mapping[str, str]) -> str:
    return VARIABLE.sub(lambda found: values[found.group(1)], template)
