"""A Hugging Face hub on loopback: real HTTP, answers for real clients that read and write files, and planned
faults.

Repositories (tests/hub_repositories.py) with `preupload`, LFS batches (one PUT, or parts), `commit` with its parent,
`tree` in pages, `paths-info`, and `resolve` with ranges, which redirects large files to a store under a second host
name, like the real hub. `hub.asked` are the received requests, `hub.faults` the planned faults.
"""

import base64
import hashlib
import json
import re
import socket
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, TypeGuard
from urllib.parse import parse_qs, quote, unquote, urlencode, urlsplit

from tests.hub_repositories import COMMIT as COMMIT
from tests.hub_repositories import REGULAR_BYTES, Blob, CommittedRepo, Repo
from tests.hub_repositories import FolderRepo as FolderRepo

PAGE = 7  # files per page of a tree
CHUNK_BYTES = 200_000  # of a part
Answer = tuple[int, Any, dict[str, str]]


@dataclass(frozen=True)
class Asked:
    """A received request; `size` of the body, and the first byte of the requested range."""

    verb: str
    path: str
    authorization: str
    size: int
    start: int | None


@dataclass
class Fault:
    """A fault for the next request with a "VERB path" that contains `where`.

    kind: a status; "cut": close after `amount` bytes of the answer's body; "deaf": close after reading `amount` bytes
    of the request's body; "lost": act, then close without an answer; "drip": a byte of the answer now and then; "hole":
    stay silent until the hub ends; "stale": bytes that differ from the stored bytes; "race": a different client commits
    first. `amount` of a status: its Retry-After.
    """

    where: str
    kind: Any
    amount: int = -1
    times: int = 1


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exc_info()[1], (ConnectionError, Hung)):  # a client may hang up
            super().handle_error(request, client_address)


class Hung(Exception):
    """Raised to close the connection."""


class FakeHub:
    def __init__(self, repos: Mapping[str, Repo] | None = None, write_token: str = "", read_token: str = "") -> None:
        self.write_token, self.read_token = write_token, read_token
        self.repos = dict(repos or {})
        self.faults: list[Fault] = []
        self.asked: list[Asked] = []
        self.served_bytes = 0  # by the store
        self.lock = threading.RLock()
        self.ended = threading.Event()
        self.server = Server(("127.0.0.1", 0), _handler(self))
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        self.store = f"http://localhost:{self.server.server_address[1]}"

    def fault(self, line: str) -> Fault | None:
        with self.lock:
            for fault in self.faults:
                if fault.times and re.search(fault.where, line):
                    fault.times -= 1
                    return fault
        return None

    def sent(self, path: str) -> int:
        """Return the number of uploaded bytes of files below `path`."""
        return sum(one.size for one in self.asked if one.verb == "PUT" and re.search(path, one.path))


@contextmanager
def serving(repos: Mapping[str, Repo] | None = None, **tokens: str) -> Iterator[FakeHub]:
    hub = FakeHub(repos, **tokens)
    thread = threading.Thread(target=hub.server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield hub
    finally:
        hub.ended.set()
        hub.server.shutdown()
        hub.server.server_close()
        thread.join()


def is_committed(repo: Repo) -> TypeGuard[CommittedRepo]:
    return isinstance(repo, CommittedRepo)


def _handler(hub: FakeHub) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True  # a body after the headers would wait for a late ACK
        found: Fault | None

        def log_message(self, format: str, *args: Any) -> None:
            pass  # hub.asked is the log

        def do_GET(self) -> None:
            self.answer()

        do_POST = do_PUT = do_HEAD = do_GET

        def answer(self) -> None:
            parts = urlsplit(self.path)
            path, query = unquote(parts.path), parse_qs(parts.query)
            self.found = hub.fault(f"{self.command} {path}")
            kind = self.found.kind if self.found else None
            if kind == "hole":
                hub.ended.wait()
                raise Hung
            self.range = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
            body = self.body()
            said = self.headers.get("Authorization", "")
            with hub.lock:
                start = int(self.range[1]) if self.range else None
                hub.asked.append(Asked(self.command, path, said, len(body), start))
            if isinstance(kind, int):
                assert self.found is not None
                after = {"Retry-After": str(self.found.amount)} if self.found.amount >= 0 else {}
                return self.say(kind, {"error": "?"}, after)
            with hub.lock:
                if kind == "race":
                    for repo in filter(is_committed, hub.repos.values()):
                        repo.commit({**repo.files, "somebody": Blob(b"%d" % len(repo.commits), False)})
                reply = self.route(path, query, body, said)
            if kind == "lost":
                self.connection.shutdown(socket.SHUT_RDWR)
                raise Hung
            status, content, headers = reply
            if isinstance(content, bytes):
                self.send(status, content, headers)
            else:
                self.say(status, content, headers)
            return None

        def body(self) -> bytes:
            size = int(self.headers.get("Content-Length") or 0)
            if self.found and self.found.kind == "deaf" and size > self.found.amount:
                self.rfile.read(self.found.amount)
                self.connection.shutdown(socket.SHUT_RDWR)
                raise Hung
            if self.headers.get("Transfer-Encoding") == "chunked":
                pieces = []
                while length := int(self.rfile.readline(), 16):
                    pieces.append(self.rfile.read(length))
                    self.rfile.readline()
                self.rfile.readline()
                return b"".join(pieces)
            return self.rfile.read(size)

        def route(self, path: str, query: dict[str, list[str]], body: bytes, said: str) -> Answer:
            if path.startswith("/store/"):
                return self.stored(path, query, body)
            token = said.removeprefix("Bearer ")
            may_write = not hub.write_token or token == hub.write_token
            if not (may_write or token == hub.read_token and hub.read_token):
                return 401, {"error": "Invalid username or password."}, {}
            if path == "/api/validate-yaml":  # of the card of the coming commit
                return 200, {"errors": [], "warnings": []}, {}
            if path == "/api/repos/create":
                return self.create(json.loads(body)) if may_write else (403, {"error": "read only"}, {})
            if found := re.fullmatch(r"/(?:datasets/)?([^/]+/[^/]+)\.git/info/lfs/objects/(batch|verify)", path):
                return self.lfs(found[1], found[2], json.loads(body), may_write)
            file = re.fullmatch(r"/(?:datasets/)?([^/]+/[^/]+)/(resolve)/([^/]+)/(.+)", path)
            found = file or re.fullmatch(
                r"/api/(?:models|datasets)/([^/]+/[^/]+)(?:/([a-z-]+)(?:/([^/]+)(?:/(.*))?)?)?", path
            )
            repo = hub.repos.get(found[1]) if found else None
            is_shut = repo is not None and repo.token not in ("", token)
            if found is None or repo is None or (is_shut and not repo.gated):
                return 404 if said else 401, {"error": "Repository not found"}, {"X-Error-Code": "RepoNotFound"}
            if is_shut and file:
                return 403 if said else 401, {"error": "gated"}, {"X-Error-Code": "GatedRepo"}
            name, verb, revision, rest = found[1], found[2] or "revision", found[3] or "main", found[4] or ""
            at = repo.at(revision)
            if at is None:
                return 404, {"error": "no revision"}, {"X-Error-Code": "RevisionNotFound"}
            if verb == "resolve":
                return self.resolve(name, repo, *at, rest)
            if verb == "revision":
                return 200, self.about(name, repo, *at), {}
            if verb == "tree":
                return self.tree(path, at[1], rest, query)
            if verb == "paths-info":
                there = (self.entry(at[1], one) for one in parse_qs(body.decode())["paths"])
                return 200, [one for one in there if one], {}
            if not is_committed(repo):
                return 404, {"error": "?"}, {}
            if verb in ("preupload", "commit") and not may_write:
                return 403, {"error": "you may only read here"}, {}
            if verb == "preupload":
                return 200, {"files": [self.mode(repo, one) for one in json.loads(body)["files"]]}, {}
            if verb == "commit":
                return self.commit(name, repo, [json.loads(line) for line in body.splitlines()])
            return 404, {"error": "?"}, {}

        def about(self, name: str, repo: Repo, sha: str, files: Mapping[str, Blob]) -> dict[str, Any]:
            listed = {"siblings": [{"rfilename": one} for one in sorted(files)], "cardData": repo.card()}
            is_private = is_committed(repo) or bool(repo.token)
            return {"id": name, "sha": sha, "private": is_private, **listed, "tags": [], "downloads": 0, "likes": 0}

        def create(self, asked: dict[str, Any]) -> Answer:
            name = f"{asked['organization']}/{asked['name']}"
            status = 409 if name in hub.repos else 200
            hub.repos.setdefault(name, CommittedRepo())
            return status, {"url": f"{hub.url}/{name}", "id": name, "error": "You already created this"}, {}

        def tree(self, path: str, files: Mapping[str, Blob], under: str, query: dict[str, list[str]]) -> Answer:
            above = f"{under}/" if under else ""
            inner = [one.removeprefix(above) for one in files if one.startswith(above)]
            if under and not inner:
                return 404, {"error": "no entry"}, {"X-Error-Code": "EntryNotFound"}
            ends = [[at for at, letter in enumerate(f"{one}/") if letter == "/"] for one in inner]
            if query.get("recursive", [""])[0].lower() != "true":
                ends = [some[:1] for some in ends]
            names = sorted({f"{above}{one[:end]}" for one, some in zip(inner, ends, strict=True) for end in some})
            start = int(query.get("cursor", ["0"])[0])
            more = urlencode({**query, "cursor": start + PAGE}, doseq=True)
            link = {"Link": f'<{hub.url}{path}?{more}>; rel="next"'} if len(names) > start + PAGE else {}
            return 200, [self.entry(files, one) for one in names[start : start + PAGE]], link

        def entry(self, files: Mapping[str, Blob], name: str) -> dict[str, Any]:
            """Return the line of a tree for a file or a folder, {} without either."""
            if (blob := files.get(name)) is None:
                oid = hashlib.sha1(name.encode()).hexdigest()
                is_folder = any(one.startswith(f"{name}/") for one in files)
                return {"type": "directory", "path": name, "size": 0, "oid": oid} if is_folder else {}
            one: dict[str, Any] = {"type": "file", "path": name, "size": len(blob.content), "oid": blob.oid}
            if blob.is_lfs:
                one["lfs"] = {"oid": blob.sha256, "size": len(blob.content), "pointerSize": 130}
            return one

        def mode(self, repo: CommittedRepo, asked: dict[str, Any]) -> dict[str, Any]:
            mode = "lfs" if asked["size"] > REGULAR_BYTES else "regular"
            there = repo.files.get(asked["path"])
            oid = None
            if there:
                oid = there.sha256 if there.is_lfs else there.oid
            return {"path": asked["path"], "uploadMode": mode, "shouldIgnore": False, "oid": oid}

        def lfs(self, name: str, verb: str, asked: dict[str, Any], may_write: bool) -> Answer:
            repo = hub.repos.get(name)
            if repo is None or not is_committed(repo) or not may_write:
                return 403, {"error": "you may only read here"}, {}
            if verb == "verify":
                content = repo.lfs.get(asked["oid"], b"")
                is_whole = hashlib.sha256(content).hexdigest() == asked["oid"] and len(content) == asked["size"]
                return (200, {}, {}) if is_whole else (422, {"error": "not what was announced"}, {})
            objects = []
            for one in asked["objects"]:
                oid, size = one["oid"], one["size"]
                if oid in repo.lfs:
                    objects.append({"oid": oid, "size": size})
                    continue
                place = f"{hub.store}/store/{name}/{oid}"
                upload: dict[str, Any] = {"href": f"{place}?X-Amz-Signature=signed-canary"}
                if size > CHUNK_BYTES and "multipart" in asked["transfers"]:
                    count = -(-size // CHUNK_BYTES)
                    urls = {str(n): f"{place}?part={n}&X-Amz-Signature=signed-canary" for n in range(1, count + 1)}
                    upload["header"] = {"chunk_size": str(CHUNK_BYTES), **urls}
                verify = {"href": f"{hub.url}/{name}.git/info/lfs/objects/verify"}
                objects.append({"oid": oid, "size": size, "actions": {"upload": upload, "verify": verify}})
            return 200, {"transfer": "basic", "objects": objects}, {}

        def stored(self, path: str, query: dict[str, list[str]], body: bytes) -> Answer:
            if "X-Amz-Signature" not in query:
                return 403, {"error": "not signed"}, {}
            found = re.fullmatch(r"/store/([^/]+/[^/]+)/([^/]+)(?:/(.*))?", path)
            repo, oid = hub.repos[found[1]], found[2]
            if not is_committed(repo):
                blob = repo.at(oid)[1].get(found[3])
                return (200, blob.content, {}) if blob else (404, {"error": "?"}, {})
            if self.command in ("GET", "HEAD"):
                return 200, repo.lfs[oid], {}
            if self.command == "POST":  # all parts exist
                numbers = [one["partNumber"] for one in json.loads(body)["parts"]]
                repo.lfs[oid] = b"".join(repo.parts.pop((oid, number)) for number in numbers)
                return 200, {}, {}
            if "part" in query:
                repo.parts[oid, int(query["part"][0])] = body
            elif hashlib.sha256(body).hexdigest() == oid:
                repo.lfs[oid] = body
            else:
                return 400, {"error": "BadDigest"}, {}
            return 200, {}, {"ETag": f'"{hashlib.md5(body).hexdigest()}"'}

        def commit(self, name: str, repo: CommittedRepo, lines: list[dict[str, Any]]) -> Answer:
            files, header = dict(repo.files), lines[0]["value"]
            if header.get("parentCommit", repo.commits[-1][0]) != repo.commits[-1][0]:
                return 412, {"error": "A commit has happened since. Please refresh and try again."}, {}
            for line in lines[1:]:
                value = line["value"]
                if line["key"] == "deletedFile":
                    if files.pop(value["path"], None) is None:
                        return 404, {"error": "no such file"}, {"X-Error-Code": "EntryNotFound"}
                elif line["key"] == "file":
                    files[value["path"]] = Blob(base64.b64decode(value["content"]), False)
                elif value["oid"] not in repo.lfs:
                    return 400, {"error": f"no content for {value['path']}"}, {}
                else:
                    files[value["path"]] = Blob(repo.lfs[value["oid"]], True)
            sha = repo.commit(files)
            url = f"{hub.url}/{name}/commit/{sha}"
            return 200, {"success": True, "commitOid": sha, "commitUrl": url, "pullRequestUrl": None}, {}

        def resolve(self, name: str, repo: Repo, sha: str, files: Mapping[str, Blob], path: str) -> Answer:
            about = {"X-Repo-Commit": sha}
            if (blob := files.get(path)) is None:
                return 404, {"error": "?"}, {**about, "X-Error-Code": "EntryNotFound"}
            about["ETag"] = f'"{blob.oid}"'  # the client's own downloads need the header
            if not blob.is_lfs:
                return 200, blob.content, about
            about |= {"X-Linked-ETag": f'"{blob.sha256}"', "X-Linked-Size": str(len(blob.content))}
            place = blob.sha256 if is_committed(repo) else f"{sha}/{quote(path)}"
            return 302, b"", {**about, "Location": f"{hub.store}/store/{name}/{place}?X-Amz-Signature=signed-canary"}

        def send(self, status: int, content: bytes, headers: dict[str, str]) -> None:
            if self.range and status == 200 and content:
                start, stop = int(self.range[1]), min(int(self.range[2]) + 1, len(content))
                if start >= len(content):
                    return self.say(416, {}, {"Content-Range": f"bytes */{len(content)}"})
                headers = {**headers, "Content-Range": f"bytes {start}-{stop - 1}/{len(content)}"}
                status, content = 206, content[start:stop]
            if self.found and self.found.kind == "stale":
                content = bytes([content[0] ^ 1]) + content[1:]
            self.write(status, content, headers)

        def say(self, status: int, document: Any, headers: dict[str, str] | None = None) -> None:
            self.write(status, json.dumps(document).encode(), headers or {})

        def write(self, status: int, content: bytes, headers: dict[str, str]) -> None:
            kind, amount = (self.found.kind, self.found.amount) if self.found else (None, 0)
            self.send_response(status)
            for name, value in {**headers, "Content-Length": str(len(content))}.items():
                self.send_header(name, value)
            self.end_headers()
            if self.command == "HEAD":
                return
            if self.path.startswith("/store/"):
                with hub.lock:
                    hub.served_bytes += len(content)
            if kind == "cut":
                self.wfile.write(content[:amount])
                self.connection.shutdown(socket.SHUT_RDWR)
                raise Hung
            if kind == "drip":
                for place in range(len(content)):
                    self.wfile.write(content[place : place + 1])
                    if hub.ended.wait(0.4):
                        raise Hung
                return
            self.wfile.write(content)

    return Handler
