"""An endless answer over HTTP or from SkyPilot's process costs this process only a limited amount of memory."""

import asyncio
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import aiohttp
import pytest

from flows.models import init_model
from infra.checkout import ROOT
from infra.errors import UsageError
from infra.settings import Settings
from serve.replicas import probe
from tests.infra.transport.memory import bounded

pytestmark = pytest.mark.process

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nConnection: close\r\n\r\n"


class Endless(BaseHTTPRequestHandler):
    """Answers without end."""

    def do_GET(self) -> None:
        self.wfile.write(HEAD)
        try:
            while True:
                self.wfile.write(b"[" + b" " * 65536)
        except OSError:  # the other side closed the connection
            self.close_connection = True

    do_POST = do_GET

    def log_message(self, *words: object) -> None:
        pass


@pytest.fixture
def endless() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Endless) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


def test_an_answer_of_the_hub_has_a_limit(endless, monkeypatch):
    monkeypatch.setattr(init_model, "hub", lambda: endless)
    with bounded(4 * init_model.MOST_BYTES), pytest.raises(UsageError, match="the answer is longer than 64 MiB"):
        init_model.get("api/models/a/b", "hf://a/b", Settings.load(ROOT))


def test_an_answer_of_a_replica_has_a_limit(endless):
    async def ask() -> probe.Counters:
        async with aiohttp.ClientSession() as session:
            async with session.get(f"{endless}/metrics") as reply:
                with pytest.raises(aiohttp.ClientPayloadError, match="the answer is longer than 8 MiB"):
                    await probe.body_of(reply)
            return await probe.counters(session, endless)

    with bounded():
        assert asyncio.run(ask()) == probe.Counters(None, None, None)
