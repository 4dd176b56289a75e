"""Stores on loopback with their real clients: buckets of moto's server and of our own server, and our hub."""

import contextlib
import hashlib
import threading
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from store import credentials
from store.backends.backend import Backend
from store.patience import Patience
from tests import hub as hubs
from tests.store import google as googles

QUICK = Patience(answer_s=5.0, total_s=15.0, first_wait_s=0.01)
KEY = {"AWS_ACCESS_KEY_ID": "canary-key-91", "AWS_SECRET_ACCESS_KEY": "canary-secret-92", "AWS_REGION": "eu-west-1"}
TOKEN = "hf_canary-write-93"
GOOGLES = ("STORAGE_EMULATOR_HOST", "GOOGLE_APPLICATION_CREDENTIALS", "GOOGLE_CLOUD_PROJECT")


class S3:
    """moto's server, with the received requests."""

    def __init__(self) -> None:
        import logging

        from moto.server import ThreadedMotoServer

        logging.getLogger("werkzeug").setLevel(logging.ERROR)
        self.server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
        self.server.start()
        host, port = self.server.get_host_and_port()
        self.url = f"http://{host}:{port}"

    def bucket(self) -> str:
        """Return a new bucket name; the bucket does not exist yet."""
        return f"s3://bucket-{uuid.uuid4().hex[:12]}/some/folder"


App = Callable[[dict[str, Any], Any], Any]


@contextlib.contextmanager
def serving(app: App) -> Iterator[str]:
    """Yield the address of a server of a WSGI application."""
    from werkzeug.serving import make_server

    server = make_server("127.0.0.1", 0, app, threaded=True)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()


def moto_app() -> App:
    """Return moto's application, with the same buckets as the server of `s3`."""
    from moto.server import DomainDispatcherApplication, create_backend_app

    found: App = DomainDispatcherApplication(create_backend_app)
    return found


@pytest.fixture(scope="session")
def s3_server() -> Iterator[S3]:
    server = S3()
    yield server
    server.server.stop()


@pytest.fixture(autouse=True)
def no_keys(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Give tests only their own keys, and keep the user's cache unchanged."""
    for name in (*credentials.EVERY, "AWS_PROFILE", "AWS_ENDPOINT_URL", "HF_ENDPOINT", *GOOGLES):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(credentials, "_lent", {})
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "aws"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HUB_DISABLE_IMPLICIT_TOKEN", "1")


@pytest.fixture
def s3(s3_server: S3, monkeypatch: pytest.MonkeyPatch) -> S3:
    for name, value in {**KEY, "AWS_ENDPOINT_URL": s3_server.url}.items():
        monkeypatch.setenv(name, value)
    return s3_server


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[hubs.FakeHub]:
    with hubs.serving(write_token=TOKEN, read_token="hf_canary-read-94") as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        monkeypatch.setenv("HF_TOKEN", TOKEN)
        yield hub


@pytest.fixture
def google(monkeypatch: pytest.MonkeyPatch) -> Iterator[googles.Google]:
    with googles.serving() as server:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", server.url)
        yield server


@pytest.fixture(params=["folder", "s3", "gs", "hf"])
def uri(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Return the address of a store of each kind, empty and ready."""
    if request.param == "folder":
        return str(tmp_path / "the store")
    return away(request.param, request)


@pytest.fixture(params=["s3", "gs", "hf"])
def away_uri(request: pytest.FixtureRequest) -> str:
    return away(request.param, request)


def away(kind: str, request: pytest.FixtureRequest) -> str:
    from store.backends.backend import open_place

    if kind == "s3":
        found: str = request.getfixturevalue("s3").bucket()
    elif kind == "gs":
        found = request.getfixturevalue("google").bucket()
    else:
        request.getfixturevalue("hub")
        found = "hf://us/things/some/folder"
    open_place(found).create()
    return found


def quick(uri: str, **words: Any) -> Backend:
    """Return the place, with a short timeout."""
    from store.backends.gs import GoogleBucket
    from store.backends.hub import Repository
    from store.backends.s3 import Bucket

    kinds: dict[str, Any] = {"s3": Bucket, "gs": GoogleBucket, "hf": Repository}
    return kinds[credentials.kind(uri)](uri, QUICK, **words)  # type: ignore[no-any-return]


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
