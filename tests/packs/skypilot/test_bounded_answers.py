"""An endless answer of SkyPilot's process costs this process no more than a limit."""

import io
import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress

import pytest

from infra.errors import SlipwayError
from packs.skypilot.control import client, worker
from tests.infra.transport.memory import GROWTH_BYTES, bounded

pytestmark = pytest.mark.process


@contextmanager
def talker() -> Iterator[socket.socket]:
    """Return a process that writes one endless line."""
    ours, theirs = socket.socketpair()

    def speak() -> None:
        with closing(theirs), suppress(OSError):
            while True:
                theirs.sendall(b" " * 65536)

    thread = threading.Thread(target=speak, daemon=True)
    thread.start()
    with closing(ours):
        yield ours
    thread.join(20)


def test_answer_of_the_skypilot_process_has_a_limit(monkeypatch):
    monkeypatch.setattr(client, "LONGEST_ANSWER", 1 << 24)
    with talker() as caller, bounded(), pytest.raises(SlipwayError, match="queue: the answer is longer than 16.8 MB"):
        client.Client._answer(caller, {"what": "queue"}, time.monotonic() + 300)


def test_skypilot_process_keeps_the_end_of_an_endless_log(monkeypatch):
    monkeypatch.setattr(worker, "LONGEST_LOG", 1 << 20)
    said = worker.TailBuffer()
    with bounded():
        for _ in range(GROWTH_BYTES >> 14):
            said.write("x" * (1 << 16))
        said.write("last\n")
    assert isinstance(said, io.StringIO) and said.getvalue().endswith("xlast\n")
    assert len(json.dumps(said.getvalue())) < 4 << 20
