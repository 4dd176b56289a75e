"""A Hugging Face hub on loopback: real HTTP, the answers that the real client needs to keep files, faults to order.

Repositories with commits, `preupload`, LFS batches (one PUT, or parts), `commit` with its parent, `tree` in pages, and
`resolve` with ranges, which leads to a store under another host name for large files, as the real one does. What an
upload has brought stays, whether or not a commit follows. `hub.asked` is what came, `hub.faults` what is to go wrong.
Data sets, which our own client reads out of folders, are served by `tests.data.hub`.
"""

import base64
import hashlib
import json
import re
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

PAGE = 7  # files that one page of a tree lists
REGULAR_BYTES = 100  # larger ones go by LFS
CHUNK_BYTES = 200_000  # of a part


@dataclass(frozen=True)
class Blob:
    content: bytes
    is_lfs: bool

    @property
    def oid(self) -> str:
        return hashlib.sha1(b"blob %d\0" % len(self.content) + self.content).hexdigest()


@dataclass
class Repo:
    commits: list[tuple[str, dict[str, Blob]]] = field(default_factory=list)
    lfs: dict[str, bytes] = field(default_factory=dict)
    parts: dict[tuple[str, int], bytes] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.commit({".gitattributes": Blob(b"*.safetensors filter=lfs\n", False)})

    def commit(self, files: dict[str, Blob]) -> str:
        seed = repr((len(self.commits), sorted((name, blob.oid) for name, blob in files.items())))
        sha = hashlib.sha1(seed.encode()).hexdigest()
        self.commits.append((sha, files))
        return sha

    @property
    def files(self) -> dict[str, Blob]:
        return self.commits[-1][1]


@dataclass(frozen=True)
class Asked:
    """One request as it came; `size` of its body."""

    verb: str
    path: str
    authorization: str
    size: int


@dataclass
class Fault:
    """A fault for the next request whose "VERB path" contains `where`.

    kind: a status; "cut": close after `amount` bytes of the answer's body; "deaf": close after `amount` bytes of the
    request's body were read; "lost": do it, then close without a word; "drip": a byte of the answer now and then;
    "hole": say nothing until the hub ends; "stale": bytes that are not those that were kept; "race": somebody else
    commits first.
    """

    where: str
    kind: Any
    amount: int = -1
    times: int = 1


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exc_info()[1], (ConnectionError, Hung)):  # a client that has enough hangs up
            super().handle_error(request, client_address)


class Hung(Exception):
    """The connection is to be closed."""


class RepositoryHub:
    def __init__(self, write_token: str = "", read_token: str = "") -> None:
        self.write_token, self.read_token = write_token, read_token
        self.repos: dict[str, Repo] = {}
        self.faults: list[Fault] = []
        self.asked: list[Asked] = []
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
        """Bytes of files that were brought to where `path` is found in."""
        return sum(one.size for one in self.asked if one.verb == "PUT" and re.search(path, one.path))


@contextmanager
def serving(**words: Any) -> Iterator[RepositoryHub]:
    hub = RepositoryHub(**words)
    thread = threading.Thread(target=hub.server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield hub
    finally:
        hub.ended.set()
        hub.server.shutdown()
        hub.server.server_close()
        thread.join()


def _handler(hub: RepositoryHub) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True  # heads and bodies go apart, and the second would wait for a late ACK
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
            body = self.body()
            said = self.headers.get("Authorization", "")
            with hub.lock:
                hub.asked.append(Asked(self.command, path, said, len(body)))
            if isinstance(kind, int):
                assert self.found is not None
                after = {"Retry-After": str(self.found.amount)} if self.found.amount >= 0 else {}
                return self.say(kind, {"error": "?"}, after)
            with hub.lock:
                if kind == "race":
                    for repo in hub.repos.values():
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

        def route(self, path: str, query: dict[str, list[str]], body: bytes, said: str) -> tuple[int, Any, dict]:
            if path.startswith("/store/"):
                return self.stored(path, query, body)
            token = said.removeprefix("Bearer ")
            may_write = not hub.write_token or token == hub.write_token
            if not (may_write or token == hub.read_token and hub.read_token):
                return 401, {"error": "Invalid username or password."}, {}
            if path == "/api/validate-yaml":  # of a card that is about to be committed
                return 200, {"errors": [], "warnings": []}, {}
            if path == "/api/repos/create":
                return self.create(json.loads(body)) if may_write else (403, {"error": "read only"}, {})
            kind = r"(?:datasets/)?"
            if found := re.fullmatch(rf"/{kind}([^/]+/[^/]+)\.git/info/lfs/objects/(batch|verify)", path):
                return self.lfs(found[1], found[2], json.loads(body), may_write)
            if found := re.fullmatch(rf"/{kind}([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path):
                return self.resolve(*found.groups())
            found = re.fullmatch(r"/api/(?:models|datasets)/([^/]+/[^/]+)(?:/([a-z-]+)/([^/]+)(?:/(.*))?)?", path)
            if not found or found[1] not in hub.repos:
                return 404, {"error": "Repository not found"}, {"X-Error-Code": "RepoNotFound"}
            repo, verb, revision, rest = hub.repos[found[1]], found[2] or "revision", found[3] or "main", found[4] or ""
            at = self.at(repo, revision)
            if at is None:
                return 404, {"error": "no revision"}, {"X-Error-Code": "RevisionNotFound"}
            if verb == "revision":
                return 200, self.about(found[1], *at), {}
            if verb == "tree":
                return self.tree(path, at[1], rest, int(query.get("cursor", ["0"])[0]))
            if verb == "paths-info":
                asked_for = parse_qs(body.decode())["paths"]
                return 200, [self.listed(one, at[1][one]) for one in asked_for if one in at[1]], {}
            if verb in ("preupload", "commit") and not may_write:
                return 403, {"error": "you may only read here"}, {}
            if verb == "preupload":
                return 200, {"files": [self.mode(repo, one) for one in json.loads(body)["files"]]}, {}
            if verb == "commit":
                return self.commit(found[1], repo, [json.loads(line) for line in body.splitlines()])
            return 404, {"error": "?"}, {}

        def at(self, repo: Repo, revision: str) -> tuple[str, dict[str, Blob]] | None:
            if revision == "main":
                return repo.commits[-1]
            return next((one for one in repo.commits if one[0] == revision), None)

        def about(self, name: str, sha: str, files: dict[str, Blob]) -> dict[str, Any]:
            listed = [{"rfilename": one} for one in sorted(files)]
            return {"id": name, "sha": sha, "private": True, "siblings": listed, "tags": [], "downloads": 0, "likes": 0}

        def create(self, asked: dict[str, Any]) -> tuple[int, Any, dict]:
            name = f"{asked['organization']}/{asked['name']}"
            status = 409 if name in hub.repos else 200
            hub.repos.setdefault(name, Repo())
            return status, {"url": f"{hub.url}/{name}", "id": name, "error": "You already created this"}, {}

        def tree(self, path: str, files: dict[str, Blob], under: str, start: int) -> tuple[int, Any, dict]:
            names = [one for one in sorted(files) if not under or one.startswith(f"{under}/")]
            if under and not names:
                return 404, {"error": "no entry"}, {"X-Error-Code": "EntryNotFound"}
            listed = [self.listed(name, files[name]) for name in names[start : start + PAGE]]
            more = f'<{hub.url}{path}?recursive=True&cursor={start + PAGE}>; rel="next"'
            return 200, listed, {"Link": more} if len(names) > start + PAGE else {}

        def listed(self, name: str, blob: Blob) -> dict[str, Any]:
            one: dict[str, Any] = {"type": "file", "path": name, "size": len(blob.content), "oid": blob.oid}
            if blob.is_lfs:
                oid = hashlib.sha256(blob.content).hexdigest()
                one["lfs"] = {"oid": oid, "size": len(blob.content), "pointerSize": 130}
            return one

        def mode(self, repo: Repo, asked: dict[str, Any]) -> dict[str, Any]:
            mode = "lfs" if asked["size"] > REGULAR_BYTES else "regular"
            there = repo.files.get(asked["path"])
            oid = None
            if there:
                oid = hashlib.sha256(there.content).hexdigest() if there.is_lfs else there.oid
            return {"path": asked["path"], "uploadMode": mode, "shouldIgnore": False, "oid": oid}

        def lfs(self, name: str, verb: str, asked: dict[str, Any], may_write: bool) -> tuple[int, Any, dict]:
            repo = hub.repos.get(name)
            if repo is None or not may_write:
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

        def stored(self, path: str, query: dict[str, list[str]], body: bytes) -> tuple[int, Any, dict]:
            if "X-Amz-Signature" not in query:
                return 403, {"error": "not signed"}, {}
            found = re.fullmatch(r"/store/([^/]+/[^/]+)/([0-9a-f]{64})", path)
            repo, oid = hub.repos[found[1]], found[2]
            if self.command == "GET":
                return 200, repo.lfs[oid], {}
            if self.command == "POST":  # all parts are there
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

        def commit(self, name: str, repo: Repo, lines: list[dict[str, Any]]) -> tuple[int, Any, dict]:
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

        def resolve(self, name: str, revision: str, path: str) -> tuple[int, Any, dict]:
            if name not in hub.repos:
                return 404, {"error": "?"}, {"X-Error-Code": "RepoNotFound"}
            at = self.at(hub.repos[name], revision)
            if at is None or path not in at[1]:
                return 404, {"error": "?"}, {"X-Error-Code": "EntryNotFound"}
            blob = at[1][path]
            about = {"X-Repo-Commit": at[0], "ETag": f'"{blob.oid}"'}  # the client's own downloads ask for these
            if not blob.is_lfs:
                return 200, blob.content, about
            oid = hashlib.sha256(blob.content).hexdigest()
            about |= {"X-Linked-ETag": f'"{oid}"', "X-Linked-Size": str(len(blob.content))}
            return 302, b"", {**about, "Location": f"{hub.store}/store/{name}/{oid}?X-Amz-Signature=signed-canary"}

        def send(self, status: int, content: bytes, headers: dict[str, str]) -> None:
            found = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
            if found and status == 200 and content:
                start, stop = int(found[1]), min(int(found[2]) + 1, len(content))
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
            if kind == "cut":
                self.wfile.write(content[: min(amount, len(content) - 1)])
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


def main() -> None:
    """`python -m tests.store.hub ID...`: serve empty repositories until stdin ends; the first line is the address."""
    with serving() as hub:
        hub.repos |= {name: Repo() for name in sys.argv[1:]}
        print(hub.url, flush=True)
        while sys.stdin.read(1):
            time.sleep(0.01)


if __name__ == "__main__":
    main()
