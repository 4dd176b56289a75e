"""Large files over real sshds: what is there already is not sent again, by rsync and without it, with equal results."""

import hashlib
import random
from pathlib import Path

import pytest

from infra.errors import SlipwayError
from infra.transport import large_files, rsync
from infra.transport.meter import Meter
from infra.transport.ssh import Ssh
from tests.hosts import Host, sshd  # noqa: F401
from tests.needs import needs

pytestmark = pytest.mark.process

MB = 1 << 20
SIZE = 12 * MB + 345


@pytest.fixture(params=["rsync", "pieces"])
def pod(request, sshd, tmp_path, monkeypatch):  # noqa: F811
    """A machine to which large files go by rsync, and one to which they go in pieces of 1 MB."""
    monkeypatch.setattr(large_files, "PIECE_BYTES", MB)
    if request.param == "pieces":
        monkeypatch.setattr(rsync, "here", lambda: None)
    else:
        needs("rsync")
    with Ssh(sshd.address, tmp_path / "known_hosts") as one:
        assert large_files.way(one).name == request.param
        yield one


def content(seed: int = 7, size: int = SIZE) -> bytes:
    return random.Random(seed).randbytes(size)


def changed(text: bytes) -> bytes:
    """One percent of it, in one place."""
    at = len(text) // 3
    return text[:at] + content(8, len(text) // 100) + text[at + len(text) // 100 :]


def move(pod: Ssh, direction: str, source: Path, draft: Path, meter: Meter, size: int = SIZE) -> None:
    if direction == "fetch":
        large_files.fetch(pod, str(source), draft, size, meter)
    else:
        large_files.put(pod, source, str(draft), size, meter)


class Cutting(Meter):
    """Cuts the connection each time when so many bytes have been moved since the last cut, as often as it may."""

    def __init__(self, host: Host, every: int, times: int) -> None:
        super().__init__()
        self.host, self.every, self.left, self.since = host, every, times, 0

    def count(self, num_bytes: int) -> None:
        super().count(num_bytes)
        self.since += num_bytes
        if self.left and self.since > self.every:
            self.left, self.since = self.left - 1, 0
            self.host.kill_sessions()


@pytest.mark.parametrize("direction", ["fetch", "put"])
def test_only_what_differs_goes_over_the_connection(pod, direction, tmp_path):
    source, draft, meter = tmp_path / "there" / "a file", tmp_path / "here" / "draft", Meter()
    source.parent.mkdir()
    source.write_bytes(content())
    move(pod, direction, source, draft, meter)
    assert draft.read_bytes() == content()
    assert SIZE <= meter.num_bytes < 1.1 * SIZE
    source.write_bytes(changed(content()))
    again = Meter()
    move(pod, direction, source, draft, again)
    assert draft.read_bytes() == source.read_bytes()
    assert again.num_bytes < SIZE / 4
    draft.write_bytes(content() + b"more")
    move(pod, direction, source, draft, Meter())
    assert draft.read_bytes() == source.read_bytes()


@pytest.mark.parametrize("direction", ["fetch", "put"])
def test_a_link_that_is_cut_ten_times_is_sat_out(pod, direction, sshd, tmp_path):  # noqa: F811
    source, draft, meter = tmp_path / "there", tmp_path / "draft", Cutting(sshd, 2 * MB, 10)
    source.write_bytes(content(size=4 * SIZE))
    said: list[str] = []
    large_files.persist(lambda: move(pod, direction, source, draft, meter, 4 * SIZE), meter, 60.0, said.append)
    assert hashlib.sha256(draft.read_bytes()).digest() == hashlib.sha256(source.read_bytes()).digest()
    assert meter.cuts == len(said) == 10 and "going on where that was cut off" in said[0]
    assert meter.num_bytes < 1.6 * 4 * SIZE
