"""A hub of data sets on loopback: real HTTP, the answers of huggingface.co that our client needs, and faults to order.

`FakeHub(repos)` serves `/api/datasets/ID/revision/REV`, `tree` and `paths-info` beside it, which the library `datasets`
asks for, and `/datasets/ID/resolve/REV/PATH`, which leads, as the real one does, to a store under another host name,
where byte ranges are served.
"""

import hashlib
import json
import re
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, quote, unquote, urlsplit

import yaml

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@dataclass
class Repo:
    """A data set: a folder of files, what its card says, and the token that it asks for."""

    folder: Path
    configs: list[dict[str, Any]] = field(default_factory=list)
    token: str = ""
    gated: bool = False
    """True if everybody may see that the repository exists, and only the token opens its files."""


@dataclass(frozen=True)
class Asked:
    """One request as it came."""

    path: str
    start: int | None
    authorization: str


class Server(ThreadingHTTPServer):
    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exc_info()[1], ConnectionError):  # a client that has enough hangs up
            super().handle_error(request, client_address)


class FakeHub:
    """Answers are spoilt in the order of `faults`: a status with its Retry-After, or so many bytes and then the end.

    `faults` holds (which, status, Retry-After) or (which, "cut", bytes), where which is `api` or `store`.
    """

    def __init__(self, repos: dict[str, Repo]):
        self.repos = repos
        self.faults: list[tuple[str, Any, int]] = []
        self.asked: list[Asked] = []
        self.served_bytes = 0
        self.lock = threading.Lock()
        self.server = Server(("127.0.0.1", 0), _handler(self))
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        self.store = f"http://localhost:{self.server.server_address[1]}"

    def fault(self, which: str) -> tuple[Any, int] | None:
        with self.lock:
            if self.faults and self.faults[0][0] == which:
                return self.faults.pop(0)[1:]
        return None


@contextmanager
def serving(repos: dict[str, Repo]) -> Iterator[FakeHub]:
    hub = FakeHub(repos)
    thread = threading.Thread(target=hub.server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield hub
    finally:
        hub.server.shutdown()
        hub.server.server_close()
        thread.join()


def card(readme: Path) -> dict[str, Any]:
    """Return what the head of a card says."""
    text = readme.read_text() if readme.is_file() else ""
    return yaml.safe_load(text.split("---\n")[1]) if text.startswith("---\n") else {}


def _handler(hub: FakeHub) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, format: str, *args: Any) -> None:
            pass  # hub.asked is the log

        def do_HEAD(self) -> None:
            self.do_GET()

        def do_POST(self) -> None:
            self.asked_for = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            self.do_GET()

        def do_GET(self) -> None:
            path = unquote(urlsplit(self.path).path)
            found = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
            said = self.headers.get("Authorization", "")
            with hub.lock:
                hub.asked.append(Asked(path, int(found[1]) if found else None, said))
            fault = hub.fault("api" if path.startswith("/api/") else "store" if "/store/" in path else "hub")
            if fault and fault[0] != "cut":
                return self.say(fault[0], {}, {"Retry-After": str(fault[1])} if fault[1] >= 0 else {})
            repo_id, revision, rest = self.names(path)
            repo = hub.repos.get(repo_id)
            is_shut = repo and repo.token and "/store/" not in path and said != f"Bearer {repo.token}"
            if repo is None or (is_shut and not repo.gated):
                return self.say(401 if not said else 404, {"error": "?"}, {"X-Error-Code": "RepoNotFound"})
            if is_shut and "/resolve/" in path:
                return self.say(403 if said else 401, {"error": "?"}, {"X-Error-Code": "GatedRepo"})
            if revision not in ("main", COMMIT):
                return self.say(404, {"error": "?"}, {"X-Error-Code": "RevisionNotFound"})
            if "/tree/" in path:
                return self.tree(repo.folder, rest)
            if "/paths-info/" in path:
                there = (
                    self.listed(repo.folder, repo.folder / one) for one in parse_qs(self.asked_for.decode())["paths"]
                )
                return self.say(200, [one for one in there if one])
            if path.startswith("/api/"):
                return self.say(200, self.info(repo_id, repo))
            if "/store/" not in path:
                if not (repo.folder / rest).is_file():
                    return self.say(404, {"error": "?"}, {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": COMMIT})
                about = self.listed(repo.folder, repo.folder / rest)
                told = {
                    "X-Repo-Commit": COMMIT,
                    "X-Linked-ETag": f'"{about["oid"]}"',
                    "X-Linked-Size": str(about["size"]),
                }
                return self.say(
                    302, {}, {"Location": f"{hub.store}/store/{repo_id}/{COMMIT}/{quote(rest)}?signature=s", **told}
                )
            self.send_file(repo.folder / rest, found, fault)

        def names(self, path: str) -> tuple[str, str, str]:
            words = path.removeprefix("/api").removeprefix("/datasets").removeprefix("/store").strip("/").split("/")
            rest = [
                word
                for at, word in enumerate(words[2:])
                if not (at == 0 and word in ("revision", "resolve", "tree", "paths-info"))
            ]
            return "/".join(words[:2]), (rest or ["main"])[0], "/".join(rest[1:])

        def tree(self, folder: Path, under: str) -> None:
            top = folder / under
            if not top.is_dir():
                return self.say(404, {"error": "?"}, {"X-Error-Code": "EntryNotFound"})
            deep = "recursive=true" in self.path.lower()
            found = sorted(one for one in (top.rglob("*") if deep else top.iterdir()))
            return self.say(200, [self.listed(folder, one) for one in found])

        def listed(self, folder: Path, one: Path) -> dict[str, Any]:
            if not one.exists():
                return {}
            name = one.relative_to(folder).as_posix()
            if one.is_dir():
                return {"type": "directory", "path": name, "oid": hashlib.sha1(name.encode()).hexdigest()}
            content = one.read_bytes()
            return {"type": "file", "path": name, "size": len(content), "oid": hashlib.sha1(content).hexdigest()}

        def info(self, repo_id: str, repo: Repo) -> dict[str, Any]:
            names = sorted(str(one.relative_to(repo.folder)) for one in repo.folder.rglob("*") if one.is_file())
            return {
                "id": repo_id,
                "sha": COMMIT,
                "private": bool(repo.token),
                "siblings": [{"rfilename": name} for name in names],
                "cardData": {"configs": repo.configs} if repo.configs else card(repo.folder / "README.md"),
                "tags": [],
                "downloads": 0,
                "likes": 0,
            }

        def send_file(self, file: Path, found: re.Match[str] | None, fault: tuple[Any, int] | None) -> None:
            if not file.is_file():
                return self.say(404, {"error": "?"})
            content = file.read_bytes()
            start, stop = (int(found[1]), min(int(found[2]) + 1, len(content))) if found else (0, len(content))
            self.send_response(206 if found else 200)
            self.send_header("Content-Length", str(stop - start))
            if found:
                self.send_header("Content-Range", f"bytes {start}-{stop - 1}/{len(content)}")
            self.end_headers()
            if self.command == "HEAD":
                return
            if fault:
                stop = min(stop, start + fault[1])
                self.close_connection = True
            self.wfile.write(content[start:stop])
            with hub.lock:
                hub.served_bytes += stop - start

        def say(self, status: int, document: Any, headers: dict[str, str] | None = None) -> None:
            body = json.dumps(document).encode()
            self.send_response(status)
            for name, value in {**(headers or {}), "Content-Length": str(len(body))}.items():
                self.send_header(name, value)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

    return Handler
