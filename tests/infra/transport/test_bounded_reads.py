"""A machine with endless output or an endless file costs this process only a limited amount of memory."""

import os
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from infra.errors import SlipwayError
from infra.transport import group_run, large_files, rsync
from infra.transport.fabric_connection import LocalConnection
from infra.transport.protocol import LIMIT_BYTES, READ_BYTES, ConnectionLost, Meter, ThisMachine, TooLarge, Unreachable
from infra.transport.ssh import Ssh
from tests.hosts import sshd  # noqa: F401
from tests.infra.transport.memory import bounded
from tests.infra.transport.rogue import RogueServer
from tests.needs import needs
from tests.processes import is_running
from tests.world import until

pytestmark = pytest.mark.process

MIB = 1 << 20
HOLE_BYTES = 3 << 30


@pytest.fixture(params=["this machine", "ssh"])
def way(request, tmp_path):
    if request.param == "this machine":
        yield ThisMachine()
    else:
        with Ssh(request.getfixturevalue("sshd").address, tmp_path / "pins/known_hosts") as pod:
            pod.run(["true"], timeout_s=20)
            yield pod


def sparse_file(path: Path, num_bytes: int = HOLE_BYTES) -> Path:
    with path.open("wb") as file:
        file.truncate(num_bytes)
    return path


def test_a_sparse_file_of_3_gb_is_refused_with_a_message(way, tmp_path):
    path = sparse_file(tmp_path / "progress.json")
    with bounded(), pytest.raises(TooLarge, match=f"get {path}: the output exceeded the limit of 16.8 MB"):
        way.get(path)
    with pytest.raises(TooLarge, match="the output exceeded the limit of 1.0 kB"):
        way.get(path, 1000)
    assert way.run(["echo", "on"], timeout_s=20).stdout == "on\n"


def test_a_file_of_the_size_of_the_limit_is_read(way, tmp_path):
    (tmp_path / "a file").write_bytes(b"x" * 1000)
    assert way.get(tmp_path / "a file", 1000) == b"x" * 1000
    with pytest.raises(TooLarge):
        way.get(tmp_path / "a file", 999)


def test_a_piece_of_a_file_has_at_most_the_size_of_a_piece(way, tmp_path):
    path = sparse_file(tmp_path / "a.log")
    with bounded():
        assert len(way.read(path, 5)) == READ_BYTES
        assert len(way.read(path, HOLE_BYTES - 7)) == 7


@pytest.mark.parametrize("stream", ["1", "2"])
def test_a_command_with_endless_output_is_ended(way, stream, tmp_path):
    script = f"echo $$ > {tmp_path}/number; exec yes a line of a report >&{stream}"
    with (
        bounded(),
        pytest.raises(TooLarge, match="yes a line of a report.*the output exceeded the limit of 16.8 MB"),
    ):
        way.run(["sh", "-c", script], timeout_s=300)
    until(lambda: not is_running(int((tmp_path / "number").read_text())), "the end of the command")
    assert way.run(["echo", "on"], timeout_s=20).stdout == "on\n"


def test_a_caller_may_raise_the_limit(way):
    script = f"head -c {2 * LIMIT_BYTES} /dev/zero"
    with pytest.raises(TooLarge):
        way.run(["sh", "-c", script], timeout_s=60)
    assert len(way.run(["sh", "-c", script], timeout_s=60, limit_bytes=2 * LIMIT_BYTES).stdout) == 2 * LIMIT_BYTES


def test_a_growing_file_is_refused_or_read_up_to_the_limit(way, tmp_path):
    path = tmp_path / "growing.json"
    writer = subprocess.Popen(["sh", "-c", f"exec yes grows > {path}"])
    try:
        until(lambda: path.exists() and path.stat().st_size > 1000, "a file")
        with bounded(), pytest.raises(TooLarge):
            for _ in range(1000):  # until the file has this length
                assert len(way.get(path)) <= LIMIT_BYTES
    finally:
        writer.kill()
        writer.wait()
        path.unlink()


@pytest.mark.parametrize("kind", ["pipe", "device", "folder"])
def test_only_a_regular_file_is_read(way, kind, tmp_path):
    path = tmp_path / "progress.json"
    {"pipe": os.mkfifo, "device": lambda one: one.symlink_to("/dev/zero"), "folder": Path.mkdir}[kind](path)
    for read in (lambda: way.get(path), lambda: way.read(path, 0)):
        with bounded(), pytest.raises(SlipwayError, match=f"{path}: not a regular file"):
            read()


def test_a_background_program_with_endless_output_keeps_only_its_last_output(way, tmp_path):
    script = f"yes words | head -c {8 * LIMIT_BYTES}; touch {tmp_path}/said; echo last"
    with bounded(), way.run_in_background(["sh", "-c", script]) as look:
        until(look, "the end of the program")
        assert (tmp_path / "said").exists()
        ending = look()
        assert ending.exited == 0 and (ending.stdout + ending.stderr).endswith("last\n")


@pytest.mark.parametrize("where", ["here", "there"])
def test_output_kept_for_json_is_bounded_and_its_command_is_ended(where, sshd, tmp_path):  # noqa: F811
    command = f"echo $$ > {tmp_path}/number; exec yes a line of a report"
    machine = LocalConnection("one", "") if where == "here" else None
    if machine is None:
        pod = Ssh(sshd.address, tmp_path / "pins/known_hosts")
        machine = pod.connection("one", "")
    with bounded(16 * group_run.KEPT_BYTES):
        (found,) = group_run.run([machine], command, lambda *_: None, keeps=True, timeout_s=300)
    assert found.problem.startswith("the output exceeded 16.8 MB") and found.code != 0
    assert len(found.stdout) <= group_run.KEPT_BYTES
    until(lambda: not is_running(int((tmp_path / "number").read_text())), "the end of the command")


@pytest.mark.parametrize("by", ["rsync", "pieces"])
def test_a_large_file_is_read_only_up_to_its_listed_size(by, sshd, tmp_path, monkeypatch):  # noqa: F811
    """A listing promises 40 MB, and the file is a sparse file of 3 GB that begins with these 40 MB."""
    if by == "pieces":
        monkeypatch.setattr(rsync, "local_version", lambda: None)
    else:
        needs("rsync")
    promised = 40 * MIB + 333
    content = os.urandom(promised)
    source, draft = tmp_path / "there", tmp_path / "here" / "draft"
    source.write_bytes(content)
    os.truncate(source, HOLE_BYTES)
    largest = 0
    with Ssh(sshd.address, tmp_path / "known_hosts") as pod:
        assert large_files.transfer_method(pod).name == by
        stop = threading.Event()

        def watch() -> None:
            nonlocal largest
            while not stop.wait(0.01):
                largest = max([largest, *(one.stat().st_size for one in draft.parent.glob("*"))])

        watcher = threading.Thread(target=watch)
        watcher.start()
        try:
            large_files.fetch(pod, str(source), draft, promised, Meter())
        finally:
            stop.set()
            watcher.join()
    assert draft.read_bytes() == content
    assert largest <= promised + 512


# a machine with an sshd other than OpenSSH


@pytest.fixture
def rogue(tmp_path) -> Iterator[Callable[[str], Ssh]]:
    servers: list[RogueServer] = []

    def make(what: str) -> Ssh:
        server = RogueServer(tmp_path, what)
        servers.append(server)
        return Ssh(server.address, tmp_path / "pins/known_hosts")

    yield make
    for server in servers:
        server.stop()


def test_a_server_that_exceeds_the_window_loses_the_connection(rogue):
    """The client does not read the output meanwhile, as with a slow disk."""
    with bounded(), rogue("no window") as pod, pod.open_duplex("true") as program:
        until(lambda: not pod._link.is_alive, "a closed connection")
        while program.recv(1 << 16):
            pass
        assert not program.has_ended()


def test_a_server_that_sends_an_endless_packet_loses_the_connection(rogue):
    with bounded(), rogue("a packet") as pod, pytest.raises((ConnectionLost, Unreachable)):
        pod.run(["true"], timeout_s=60)


def test_a_server_with_an_endless_greeting_is_refused(rogue):
    with bounded(), rogue("a greeting") as pod, pytest.raises(Unreachable, match="bytes before the version"):
        pod.run(["true"], timeout_s=60)
