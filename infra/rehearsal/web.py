"""HTTP servers of the simulated vendors, one loopback server per vendor, with authentication, routing and faults.

The server authenticates and routes a request, perhaps applies a fault, answers under the world's lock, and logs.
"""

import json
import re
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

import msgspec

from infra.rehearsal import faults
from infra.rehearsal.records import Machine, Refused

MOST_BYTES = 1 << 20
IDLE_S = 30.0
SCOPES = {"create": "rent", "delete": "manage", "update": "manage", "billing": "billing"}  # all other calls need `read`
WRITES = ("create", "delete", "update")  # calls that need more than a read-only key


@dataclass(frozen=True)
class WebRequest:
    """A request."""

    method: str
    path: str
    words: tuple[str, ...]  # groups matched by the route's pattern
    query: Mapping[str, str]
    headers: Mapping[str, str]
    body: bytes

    def decode(self, kind: Any) -> Any:
        """Return the body decoded as `kind`. Raises Invalid."""
        try:
            return msgspec.json.decode(self.body, type=kind)
        except msgspec.DecodeError as error:  # includes ValidationError
            raise Invalid(str(error)) from None


@dataclass(frozen=True)
class Answer:
    status: int = 200
    body: Any = None  # JSON; None = empty body
    headers: Mapping[str, str] = field(default_factory=dict)


class Invalid(Exception):
    """Raised for a body that the vendor would reject."""


@dataclass(frozen=True)
class Route:
    method: str
    pattern: str  # must match the whole path
    call: str  # name of the call in faults and in the log
    handle: Callable[[WebRequest], Answer]


class Api:
    """Base class of a vendor's API."""

    vendor = ""  # "" = no faults are injected
    routes: tuple[Route, ...] = ()
    invalid_status = 400
    refusals: tuple[type[Exception], ...] = (Refused,)

    def authenticate(self, asked: WebRequest) -> Answer | bool | frozenset[str]:
        """Return write permission, or the scopes of the key, or the error response for an invalid key."""
        raise AssertionError("every vendor knows its keys")

    def error(self, status: int, words: str) -> Answer:
        """Return an error in the vendor's format."""
        raise AssertionError("every vendor has its errors")

    def refusal_answer(self, error: Exception, asked: WebRequest) -> Answer:
        """Return the vendor's response to one of the `refusals`."""
        raise AssertionError("every vendor refuses in its own words")

    def headers(self) -> Mapping[str, str]:
        """Return the headers of every response."""
        return {}

    def environ(self, machine: Machine) -> Mapping[str, str]:
        """Return the environment of a machine's first process; SSH sessions do not inherit this environment."""
        return {}

    def route(self, asked: WebRequest) -> Route | Answer:
        """Return the route of a request, or an error response without a matching route."""
        known = [one for one in self.routes if re.fullmatch(one.pattern, asked.path)]
        chosen = [one for one in known if one.method == asked.method]
        return chosen[0] if chosen else self.error(405 if known else 404, "no such route")

    def answer(self, route: Route, asked: WebRequest) -> Answer:
        """Return the true response, before any fault is applied."""
        try:
            return route.handle(asked)
        except Invalid as error:
            return self.error(self.invalid_status, str(error))
        except self.refusals as error:
            return self.refusal_answer(error, asked)


@dataclass(frozen=True)
class Line:
    """The log entry of a request."""

    at: float
    vendor: str
    call: str
    method: str
    path: str
    status: int  # status of the response, even if lost on the way; 0 = the request was not carried out
    fault: str = ""


class Hub:
    """The state shared by all servers: the lock of the world, the faults, the log."""

    def __init__(self, plan: faults.Faults, now: Callable[[], float], step: Callable[[], None]) -> None:
        self.lock = threading.RLock()
        self.faults = plan
        self.now = now
        self.step = step
        self.lines: list[Line] = []
        self.problems: list[str] = []  # failed actions of the world, as text
        self.asked_at = time.monotonic()
        self.looks = 0  # number of checks of the machines' disks
        self.is_closing = threading.Event()

    def respond(self, api: Api, route: Route, asked: WebRequest) -> tuple[Answer, faults.RequestRule | None]:
        """Return the response, and the fault to apply on the way to the client."""
        with self.lock:
            self.step()
            rule = self.faults.for_request(api.vendor, route.call) if api.vendor else None
            kind = rule.kind if rule else ""
            answer = (
                Answer(0) if kind in faults.BEFORE else api.answer(route, asked) if kind != "pretended" else Answer()
            )
            if rule and kind in ("error", "error but done"):
                answer = api.error(rule.status, "simulated")
                answer = replace(answer, body=answer.body if rule.body is None else rule.body)
            elif rule and kind == "throttle":
                answer = api.error(429, "simulated")
                answer = replace(answer, headers={**answer.headers, "Retry-After": str(rule.retry_after_s)})
            elif kind in ("short list", "empty list"):
                answer = replace(answer, body=_thin(answer.body, kind == "empty list"))
            elif route.call in ("list", "find") and answer.status == 200:
                told = self.faults.apply_row_rules(
                    api.vendor, answer.body, route.call == "list" and "cursor" not in asked.query
                )
                answer = replace(answer, body=told)
            self.step()
            line = Line(self.now(), api.vendor, route.call, asked.method, asked.path, answer.status, kind)
            self.lines.append(line)
        return answer, rule


def _thin(body: Any, is_empty: bool) -> Any:
    """Return a list with half of the rows, or without rows."""
    if isinstance(body, list):
        return [] if is_empty else body[: len(body) // 2]
    if not isinstance(body, dict):
        return body
    return {key: _thin(value, is_empty) if isinstance(value, list) else value for key, value in body.items()}


class Server(ThreadingHTTPServer):
    """The server of a vendor on a separate port."""

    daemon_threads = True
    block_on_close = False
    request_queue_size = 128

    def __init__(self, api: Api, hub: Hub) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.api, self.hub = api, hub

    @property
    def port(self) -> int:
        return int(self.server_address[1])

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore clients that close the connection; log all other errors as usual."""
        if not isinstance(sys.exc_info()[1], OSError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    server: Server
    protocol_version = "HTTP/1.1"
    server_version = "rehearsal"
    sys_version = ""
    timeout = IDLE_S
    # head and body are two packets; with Nagle's algorithm a client waits 40 ms for the second
    disable_nagle_algorithm = True

    def log_message(self, format: str, *words: Any) -> None:
        """Print nothing, because the hub logs requests."""

    def date_time_string(self, timestamp: float | None = None) -> str:
        """Return the `Date` header in simulated time."""
        return formatdate(self.server.hub.now(), usegmt=True)

    def do_GET(self) -> None:
        self._do()

    do_POST = do_PUT = do_PATCH = do_DELETE = do_GET

    def _do(self) -> None:
        api, hub = self.server.api, self.server.hub
        hub.asked_at = time.monotonic()
        length = self.headers.get("Content-Length", "0")
        if not length.isdigit() or int(length) > MOST_BYTES or "Transfer-Encoding" in self.headers:
            self.close_connection = True
            return self._send(api.error(413, "the body is too long"), None)
        parts = urlsplit(self.path)
        asked = WebRequest(
            self.command,
            parts.path,
            (),
            dict(parse_qsl(parts.query, keep_blank_values=True)),
            {key.lower(): value for key, value in self.headers.items()},
            self.rfile.read(int(length)),
        )
        right = api.authenticate(asked)
        if isinstance(right, Answer):
            return self._send(right, None)
        route = api.route(asked)
        if isinstance(route, Answer):
            return self._send(route, None)
        if not right and route.call in WRITES:
            return self._send(api.error(403, f"this API key does not have the scope to {route.call}"), None)
        if isinstance(right, frozenset) and (scope := SCOPES.get(route.call, "read")) not in right:
            return self._send(api.error(403, f"API key 'rehearsal' does not have the '{scope}' scope"), None)
        match = re.fullmatch(route.pattern, parts.path)
        asked = replace(asked, words=tuple(unquote(word) for word in match.groups()) if match else ())
        answer, rule = hub.respond(api, route, asked)
        if rule is not None and rule.kind in ("dropped", "lost"):
            return self._reset_connection()
        if rule is not None and rule.kind == "late":
            hub.is_closing.wait(rule.delay_s)
        self._send(answer, rule)

    def _send(self, answer: Answer, rule: faults.RequestRule | None) -> None:
        content = b"" if answer.body is None else json.dumps(answer.body).encode()
        self.send_response(answer.status)
        headers = {"Content-Type": "application/json", "Content-Length": str(len(content))}
        headers |= {**self.server.api.headers(), **answer.headers}
        if answer.status == 204 or not content:
            del headers["Content-Type"]
        if answer.status == 204:
            del headers["Content-Length"]
        for key, value in headers.items():
            self.send_header(key, value)
        self.end_headers()
        if rule is not None and rule.kind == "torn":
            self.wfile.write(content[: len(content) // 2])
            self.close_connection = True
        elif rule is not None and rule.kind == "drip":
            for index in range(len(content)):
                self.wfile.write(content[index : index + 1])
                if self.server.hub.is_closing.wait(rule.delay_s / len(content)):
                    break
        else:
            self.wfile.write(content)

    def _reset_connection(self) -> None:
        """Reset the connection, like a failing network device."""
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.close_connection = True
        self.connection.close()


def serve(server: Server) -> threading.Thread:
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    return thread
