"""A server of Google's buckets on loopback: the JSON API by the documentation, tokens for a service account, faults.

Objects have generations, and writes can depend on generations; uploads use one request, or parts with a status request
after a cut; ranges, rewrites in two answers, pages. The server gives a token for an assertion signed by the account's
own key. `server.asked` are the received requests, `server.faults` the planned faults: (part of `METHOD path?query`, a
status, "cut": take half of the content and go silent, or "lost": act without an answer), each used once.
"""

import base64
import json
import re
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

PAGE = 7
STEP = 256 << 10


class Google(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        from cryptography.hazmat.primitives.asymmetric import rsa

        self.url = f"http://127.0.0.1:{self.server_address[1]}"
        self.buckets: dict[str, dict[str, tuple[bytes, int]]] = {}
        self.uploads: dict[str, tuple[str, str, str | None, bytearray]] = {}
        self.asked: list[str] = []
        self.sent_bytes = 0
        self.faults: list[tuple[str, int | str]] = []
        self.tokens: set[str] = set()
        self.wants_token = False
        self.lock = threading.RLock()
        self.generation = 1000
        self.key = rsa.generate_private_key(public_exponent=65537, key_size=2048)

    def bucket(self) -> str:
        """Return the address of a new bucket, which does not exist yet."""
        return f"gs://bucket-{uuid.uuid4().hex[:12]}/some/folder"

    def key_file(self) -> str:
        """Return the content of the key file of an account with all rights."""
        from cryptography.hazmat.primitives import serialization

        pem = self.key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        return json.dumps(
            {
                "type": "service_account",
                "project_id": "canary-project",
                "private_key_id": "1",
                "private_key": pem.decode(),
                "client_email": "slip@canary-project.iam",
                "token_uri": f"{self.url}/token",
            }
        )

    def token_for(self, form: str) -> str:
        from cryptography.hazmat.primitives import hashes
        from cryptography.hazmat.primitives.asymmetric import padding

        said, _, signature = parse_qs(form)["assertion"][0].rpartition(".")
        self.key.public_key().verify(_unpadded(signature), said.encode(), padding.PKCS1v15(), hashes.SHA256())
        claims = json.loads(_unpadded(said.split(".")[1]))
        assert claims["iss"] == "slip@canary-project.iam" and claims["exp"] > time.time(), claims
        self.tokens.add(f"ya29.canary-{len(self.tokens)}")
        return f"ya29.canary-{len(self.tokens) - 1}"

    def write(self, bucket: str, name: str, content: bytes, match: str | None) -> Any:
        there = self.buckets[bucket].get(name)
        if match is not None and int(match) != (there[1] if there else 0):
            raise Refused(412, "At least one of the pre-conditions you specified did not hold.", "conditionNotMet")
        self.generation += 1
        self.buckets[bucket][name] = (bytes(content), self.generation)
        return {"name": name, "size": str(len(content)), "generation": str(self.generation)}


class Refused(Exception):
    def __init__(self, status: int, said: str, reason: str = "") -> None:
        super().__init__(said)
        self.status, self.said, self.reason = status, said, reason


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Google

    def log_message(self, *_: Any) -> None:
        pass

    def handle_any(self) -> None:
        line = f"{self.command} {self.path}"
        self.server.asked.append(line)
        length = int(self.headers.get("content-length") or 0)
        fault = next((one for one in self.server.faults if one[0] in line), None)
        if fault:
            self.server.faults.remove(fault)
        body = self.rfile.read(length // 2 if fault and fault[1] == "cut" else length)
        self.server.sent_bytes += len(body)
        self.fault = fault[1] if fault else ""
        try:
            if isinstance(self.fault, int):
                raise Refused(self.fault, "as it was ordered", "backendError")
            with self.server.lock:
                self.answer(body)
        except Refused as error:
            told = {"code": error.status, "message": error.said, "errors": [{"reason": error.reason}]}
            self.say({"error": told}, error.status)

    do_GET = do_POST = do_PUT = do_DELETE = handle_any

    def say(self, said: Any, status: int = 200, **headers: str) -> None:
        if self.fault in ("cut", "lost"):
            self.close_connection = True
            return
        body = said if isinstance(said, bytes) else json.dumps(said).encode() if said is not None else b""
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(body)

    def answer(self, body: bytes) -> None:
        place = urlsplit(self.path)
        query = {name: values[0] for name, values in parse_qs(place.query).items()}
        if place.path == "/token":
            return self.say({"access_token": self.server.token_for(body.decode()), "expires_in": 3600})
        token = self.headers.get("authorization", "").removeprefix("Bearer ")
        if self.server.wants_token and token not in self.server.tokens:
            raise Refused(401, "Anonymous caller does not have storage.objects.list access", "required")
        if place.path.startswith("/session/"):
            return self.more_of(place.path.rpartition("/")[2], body)
        if place.path == "/storage/v1/b" and self.command == "POST":
            self.server.buckets.setdefault(json.loads(body)["name"], {})
            return self.say({})
        found = re.fullmatch(
            r"(/upload)?/storage/v1/b/([^/]+)/o(?:/([^/]+)(?:/rewriteTo/b/[^/]+/o/([^/]+))?)?", place.path
        )
        assert found, self.path
        bucket, name, to = found[2], unquote(found[3] or ""), unquote(found[4] or "")
        if bucket not in self.server.buckets:
            raise Refused(404, "The specified bucket does not exist.", "notFound")
        objects = self.server.buckets[bucket]
        if found[1]:
            return self.upload(bucket, query, body)
        if not name:
            return self.page(objects, query)
        if name not in objects:
            raise Refused(404, f"No such object: {bucket}/{name}", "notFound")
        content, generation = objects[name]
        for wanted in ("ifGenerationMatch", "ifSourceGenerationMatch"):
            if query.get(wanted, str(generation)) != str(generation):
                raise Refused(412, "At least one of the pre-conditions you specified did not hold.", "conditionNotMet")
        if self.command == "DELETE":
            del objects[name]
            return self.say(None, 204)
        if to:
            if "rewriteToken" not in query:
                return self.say({"done": False, "rewriteToken": "half"})
            return self.say({"done": True, "resource": self.server.write(bucket, to, content, None)})
        if query.get("alt") != "media":
            return self.say({"name": name, "size": str(len(content)), "generation": str(generation)})
        first, last = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers["range"]).groups()  # type: ignore[union-attr]
        if int(first) >= len(content):
            raise Refused(416, "The requested range cannot be satisfied.", "requestedRangeNotSatisfiable")
        return self.say(content[int(first) : int(last) + 1], 206)

    def page(self, objects: dict[str, tuple[bytes, int]], query: dict[str, str]) -> None:
        names = sorted(name for name in objects if name.startswith(query.get("prefix", "")))
        names = [name for name in names if name > query.get("pageToken", "")]
        items = [
            {"name": name, "size": str(len(objects[name][0])), "generation": str(objects[name][1])}
            for name in names[:PAGE]
        ]
        more = {"nextPageToken": names[PAGE - 1]} if len(names) > PAGE else {}
        self.say({**({"items": items} if items else {}), **more})

    def upload(self, bucket: str, query: dict[str, str], body: bytes) -> None:
        name, match = query["name"], query.get("ifGenerationMatch")
        if query["uploadType"] == "media":
            if self.fault == "cut":
                return self.say(None)
            return self.say(self.server.write(bucket, name, body, match))
        number = uuid.uuid4().hex
        self.server.uploads[number] = (bucket, name, match, bytearray())
        return self.say(None, 200, Location=f"{self.server.url}/session/{number}")

    def more_of(self, number: str, body: bytes) -> None:
        if number not in self.server.uploads:
            raise Refused(404, "Upload not found", "notFound")
        bucket, name, match, content = self.server.uploads[number]
        said = re.fullmatch(r"bytes (?:\*|(\d+)-(\d+))/(\d+)", self.headers["content-range"])
        assert said, self.headers["content-range"]
        total = int(said[3])
        if said[1] is not None:
            assert int(said[1]) == len(content), "a part that does not follow the one before it"
            if self.fault == "cut":
                body = body[: len(body) // STEP * STEP]
            assert not len(body) % STEP or len(content) + len(body) == total, "a part of an odd size"
            content += body
        if len(content) == total:
            del self.server.uploads[number]
            return self.say(self.server.write(bucket, name, bytes(content), match))
        return self.say(None, 308, **({"Range": f"bytes=0-{len(content) - 1}"} if content else {}))


def _unpadded(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))


@contextmanager
def serving() -> Iterator[Google]:
    server = Google()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
