"""A stand-in for a vendor: a real HTTP server on loopback that checks requests and returns prepared answers.

The stand has no market: tests set answers per operation, in order, and the last answer repeats.
"""

import json
import re
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from tests.infra.market import schema


@dataclass(frozen=True)
class Answer:
    """`how`: whole; drop: no answer; short: cut off in the middle; drip: a byte now and then; silent: no answer, no
    end.
    """

    status: int = 200
    body: Any = b""  # bytes are sent unchanged, other content as JSON
    headers: Mapping[str, str] = field(default_factory=dict)
    how: str = "whole"

    @property
    def content(self) -> bytes:
        return self.body if isinstance(self.body, bytes) else json.dumps(self.body).encode()


@dataclass(frozen=True)
class Asked:
    operation: str  # "GET /instances/{id}/info"
    path: str
    params: Mapping[str, str]
    headers: Mapping[str, str]
    body: Any


class Stand:
    """Use as a context manager. Requests that violate the document are in `wrong`, and get a 422."""

    def __init__(self, key: tuple[str, str], paths: Any = (), document: Path | None = None) -> None:
        self.document = json.loads(document.read_text()) if document else {"paths": {}}
        self.paths = [*self.document["paths"], *paths]
        self.key = key
        self.asked: list[Asked] = []
        self.wrong: list[str] = []
        self.ended = threading.Event()
        self._answers: dict[str, list[Any]] = {}
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self._server.daemon_threads = False
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02})

    def __enter__(self) -> "Stand":
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.ended.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def on(self, operation: str, *answers: "Answer | Callable[[Asked], Answer]") -> None:
        self._answers[operation] = list(answers)

    def times(self, operation: str) -> int:
        return sum(one.operation == operation for one in self.asked)

    def bodies(self, operation: str) -> list[Any]:
        return [one.body for one in self.asked if one.operation == operation]

    def answer(self, method: str, target: str, headers: Mapping[str, str], content: bytes) -> Answer:
        parts = urlsplit(target)
        template = next((one for one in self.paths if re.fullmatch(re.sub(r"{\w+}", "[^/]+", one), parts.path)), "")
        params, body = dict(parse_qsl(parts.query)), json.loads(content) if content else None
        operation = f"{method} {template or parts.path}"
        self.asked.append(Asked(operation, parts.path, params, headers, body))
        if headers.get(self.key[0].lower()) != self.key[1]:
            return Answer(401, {"message": "Invalid API key"})
        bad = self._complaints(method, template, params, body)
        answers = self._answers.get(operation)
        if not template or not answers:
            bad = bad or [f"nobody expected {operation}"]
        if bad:
            self.wrong += bad
            return Answer(422, {"title": "Unprocessable Entity", "status": 422, "detail": "?", "errors": bad})
        one = answers.pop(0) if len(answers) > 1 else answers[0]
        return one(self.asked[-1]) if callable(one) else one

    def _complaints(self, method: str, template: str, params: Mapping[str, str], body: Any) -> list[str]:
        described = self.document["paths"].get(template)
        if described is None:
            return []
        if method.lower() not in described:
            return [f"there is no {method} {template}"]
        operation = described[method.lower()]
        known = {one["name"]: one for one in (schema.resolve(self.document, p) for p in operation["parameters"])}
        bad = [f"no parameter {name}" for name in params if known.get(name, {}).get("in") != "query"]
        for name in params.keys() & known.keys():
            bad += schema.complaints(self.document, known[name]["schema"], self._read(known[name], params[name]), name)
        if "requestBody" in operation and body is not None:
            form = operation["requestBody"]["content"]["application/json"]["schema"]
            bad += schema.complaints(self.document, form, body)
        elif ("requestBody" in operation) != (body is not None):
            bad.append(f"{method} {template}: a body is {'missing' if body is None else 'not wanted'}")
        return bad

    def _read(self, parameter: Mapping[str, Any], text: str) -> Any:
        kind = schema.resolve(self.document, parameter["schema"]).get("type")
        if kind == "array":
            return text.split(",")
        return int(text) if kind == "integer" and text.isdigit() else {"true": True, "false": False}.get(text, text)


def _handler(stand: Stand) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do(self) -> None:
            content = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            headers = {name.lower(): value for name, value in self.headers.items()}
            answer = stand.answer(self.command, self.path, headers, content)
            self.close_connection = True
            if answer.how == "silent":
                stand.ended.wait(30)
            if answer.how in ("drop", "silent"):
                return
            content = answer.content
            self.send_response_only(answer.status)
            usual = {"Date": self.date_time_string(), "Content-Length": str(len(content)), "Connection": "close"}
            for name, value in {**usual, **answer.headers}.items():
                self.send_header(name, value)
            self.end_headers()
            if answer.how == "drip":
                for byte in content:
                    if stand.ended.wait(0.05) or not self.give(bytes([byte])):
                        return
            self.give(content[: len(content) // 2] if answer.how == "short" else content)

        def give(self, content: bytes) -> bool:
            try:
                self.wfile.write(content)
                self.wfile.flush()
            except OSError:  # the client has left
                return False
            return True

        def log_message(self, *words: object) -> None:
            """Log nothing: a failing test prints the requests."""

        do_GET = do_POST = do_DELETE = do

    return Handler
