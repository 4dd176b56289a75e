"""Connections to real OpenSSH servers, and their failures."""

import contextlib
import os
import shlex
import socket
import subprocess
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from infra.errors import AuthError, SlipwayError, UsageError
from infra.records import Address
from infra.transport import channels
from infra.transport.host_keys import HostKeyMismatch
from infra.transport.protocol import SILENT_S, ConnectionLost, Unreachable
from infra.transport.ssh import Ssh
from tests.hosts import Host, hosts, make_key, sshd, until  # noqa: F401
from tests.processes import command_lines

pytestmark = pytest.mark.process

VERDICT_S = 15.0


@pytest.fixture
def pod(sshd, tmp_path):  # noqa: F811
    with Ssh(sshd.address, tmp_path / "pins/known_hosts") as pod:
        yield pod


def connections(host: Host) -> int:
    return (host.folder / "sshd.log").read_text().count("Accepted publickey")


# Addresses.


@pytest.mark.parametrize(
    ("address", "place"),
    [
        (Address("root", "10.0.0.1", 22, "/keys/a key?&", "/root/pod #1"), "root@10.0.0.1:22"),
        (Address("a-b@c", "host.example", 40022, "", "/"), "a-b@c@host.example:40022"),
        (Address("ubuntu", "fe80::1", 22, "/k", "/workspace/brave-otter-3"), "ubuntu@[fe80::1]:22"),
    ],
)
def test_an_address_is_parsed_from_its_text_and_shown_as_a_place(address, place):
    assert Address.parse(str(address)) == address
    assert address.place == place


@pytest.mark.parametrize(
    "text", ["/var/pods/a", "ssh://host/f", "ssh://-oX@h/f", "ssh://u@-h/f", "ssh://u@h:0/f", "ssh://u@h"]
)
def test_an_invalid_address_is_refused(text):
    with pytest.raises(ValueError):
        Address.parse(text)


# Run, put, get, read.


def test_no_secret_is_on_a_command_line(pod, tmp_path):
    """Read every command line of this machine, both sides of the connection, as often as possible."""
    seen: set[str] = set()
    stop = threading.Event()

    def poll() -> None:
        while not stop.is_set():
            text = b"".join(command_lines())
            seen.update(word for word in ("canary", "visible") if word.encode() in text)

    watcher = threading.Thread(target=poll)
    watcher.start()
    try:
        for number in range(10):
            words = ["sh", "-c", "sleep 0.05; test ${#TOKEN} = 8 # visible"]
            assert pod.run(words, env={"TOKEN": f"canary-{number}"}, timeout_s=20).exited == 0
            pod.put(b"canary", tmp_path / "secrets", 0o600)
    finally:
        stop.set()
        watcher.join()
    assert seen == {"visible"}


# One connection, one key, one host.


def test_many_threads_share_one_connection(pod, sshd):  # noqa: F811
    with ThreadPoolExecutor(20) as threads:
        answers = threads.map(lambda number: pod.run(["echo", str(number)], timeout_s=60).stdout, range(40))
        assert list(answers) == [f"{number}\n" for number in range(40)]
    assert connections(sshd) == 1


def test_only_the_key_of_the_pod_is_tried(sshd, tmp_path):  # noqa: F811
    """The key of the agent, which the host accepts, is not tried."""
    other = make_key(tmp_path / "other")
    agent = subprocess.Popen(["ssh-agent", "-D", "-a", tmp_path / "agent"], stdout=subprocess.DEVNULL)
    before = os.environ.get("SSH_AUTH_SOCK")
    try:
        until((tmp_path / "agent").exists, "an agent")
        os.environ["SSH_AUTH_SOCK"] = str(tmp_path / "agent")
        subprocess.run(["ssh-add", "-q", sshd.address.key], check=True)
        with Ssh(replace(sshd.address, key=str(other)), tmp_path / "known_hosts") as pod:
            with pytest.raises(AuthError, match="was refused"):
                pod.run(["true"], timeout_s=20)
            line = pod.openssh_command(["true"], is_terminal=False)
            assert subprocess.run(line, stderr=subprocess.DEVNULL).returncode == 255
    finally:
        os.environ.pop("SSH_AUTH_SOCK") if before is None else os.environ.update(SSH_AUTH_SOCK=before)
        agent.terminate()
        agent.wait()
    with pytest.raises(UsageError, match="the private key .*absent is missing"):
        Ssh(replace(sshd.address, key=str(tmp_path / "absent")), tmp_path / "known_hosts").run(["true"], timeout_s=9)


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o602])
def test_a_private_key_readable_by_others_is_refused_with_the_chmod_command(sshd, tmp_path, mode):  # noqa: F811
    key = tmp_path / "a key"
    key.write_bytes(Path(sshd.address.key).read_bytes())
    key.chmod(mode)
    with Ssh(replace(sshd.address, key=str(key)), tmp_path / "known_hosts") as pod:
        with pytest.raises(UsageError, match=f"mode {mode:o}.*chmod 600 ") as refused:
            pod.run(["true"], timeout_s=20)
        assert connections(sshd) == 0
        subprocess.run(str(refused.value).partition("can read the key; run: ")[2], shell=True, check=True)
        assert pod.run(["true"], timeout_s=20).exited == 0


def test_a_changed_host_key_stops_every_command_before_sending(pod, sshd):  # noqa: F811
    assert pod.run(["true"], timeout_s=20).exited == 0
    assert pod.known_hosts.stat().st_mode & 0o777 == 0o600
    pin = pod.known_hosts.read_text()
    prints = [fingerprint(sshd)]
    for _ in range(10):
        pod.close()
        sshd.change_key()
        before = connections(sshd)
        with pytest.raises(HostKeyMismatch, match="no data was sent") as refusal:
            pod.run(["true"], timeout_s=20)
        assert prints[0] in str(refusal.value) and fingerprint(sshd) in str(refusal.value)
        assert connections(sshd) == before and "Postponed" not in (sshd.folder / "sshd.log").read_text()
    with pytest.raises(HostKeyMismatch):
        pod.shell(["true"])
    assert subprocess.run(pod.openssh_command(["true"], is_terminal=False), stderr=subprocess.DEVNULL).returncode == 255
    assert pod.known_hosts.read_text() == pin


def fingerprint(host: Host) -> str:
    done = subprocess.run(["ssh-keygen", "-lf", host.folder / "host.pub"], capture_output=True, text=True, check=True)
    return done.stdout.split()[1]


def test_a_host_key_of_a_different_type_is_a_different_key(pod, sshd):  # noqa: F811
    pod.run(["true"], timeout_s=20)
    pod.close()
    sshd.stop()
    (sshd.folder / "host").unlink()
    subprocess.run(["ssh-keygen", "-q", "-t", "ecdsa", "-N", "", "-f", sshd.folder / "host"], check=True)
    sshd.start()
    with pytest.raises(HostKeyMismatch):
        pod.run(["true"], timeout_s=20)


def test_a_damaged_pin_is_not_replaced(pod):
    pod.known_hosts.parent.mkdir(exist_ok=True)
    pod.known_hosts.write_text("pod ssh-ed25519\n")
    with pytest.raises(UsageError, match="holds no host key"):
        pod.run(["true"], timeout_s=20)


def test_a_shell_returns_its_exit_code_and_its_command_line_can_be_typed(pod, tmp_path):
    assert pod.shell(["sh", "-c", 'test "$PWD" = "$0" || exit 1; exit 9', str(tmp_path)], cwd=tmp_path) == 9
    typed = shlex.join(pod.openssh_command(["echo", "a  b"], is_terminal=False))
    assert subprocess.run(typed, shell=True, capture_output=True, text=True).stdout == "a  b\n"


def test_a_forwarded_port_answers_on_loopback_only(pod):
    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=shout, args=(server, 3))
        thread.start()
        with pod.forward(0, server.getsockname()[1]) as port:
            for text in (b"one", b"two", b"x" * 1_000_000):
                with socket.create_connection(("127.0.0.1", port), timeout=20) as caller:
                    caller.sendall(text)
                    caller.shutdown(socket.SHUT_WR)
                    assert b"".join(iter(lambda: caller.recv(1 << 16), b"")) == text.upper()
            table = [line.split()[1:4] for line in Path("/proc/net/tcp").read_text().splitlines()]
            listening = [mine for mine, _, state in table if state == "0A" and mine.endswith(f":{port:04X}")]
            assert listening == [f"0100007F:{port:04X}"]
            with pytest.raises(UsageError, match=f"port {port} of this machine cannot be used"), pod.forward(port, 1):
                pass
        thread.join()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port))


def shout(server: socket.socket, times: int) -> None:
    for _ in range(times):
        with closing(server.accept()[0]) as caller:
            text = b"".join(iter(lambda: caller.recv(1 << 16), b""))
            caller.sendall(text.upper())


def test_a_forwarded_port_without_a_listener_closes_the_connection(pod):
    with socket.create_server(("127.0.0.1", 0)) as free:
        empty = free.getsockname()[1]
    with pod.forward(0, empty) as port, socket.create_connection(("127.0.0.1", port), timeout=20) as caller:
        assert caller.recv(1) == b""


def test_a_forwarded_port_is_closed_while_both_sides_are_silent(pod):
    with socket.create_server(("127.0.0.1", 0)) as server, contextlib.ExitStack() as stack:
        with pod.forward(0, server.getsockname()[1]) as port:
            caller = stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=20))
            caller.sendall(b"x")
            silent = stack.enter_context(server.accept()[0])
            assert silent.recv(1) == b"x"
        assert caller.recv(1) == b"" and silent.recv(1) == b""


# Failures.


def test_a_connection_lost_while_idle_is_reopened(pod, sshd):  # noqa: F811
    for number in range(1, 11):
        assert pod.run(["echo", "here"], timeout_s=20).stdout == "here\n"
        assert connections(sshd) == number
        assert sshd.kill_sessions()


def test_a_command_that_may_have_run_is_not_repeated_and_runs_on(pod, sshd, tmp_path):  # noqa: F811
    script = (
        f"echo x >> {tmp_path}/began; while [ ! -e {tmp_path}/go ]; do sleep 0.02; done; echo x >> {tmp_path}/ended"
    )
    began, ended, go = tmp_path / "began", tmp_path / "ended", tmp_path / "go"
    for number in range(1, 6):
        with ThreadPoolExecutor(1) as threads:
            running = threads.submit(pod.run, ["sh", "-c", script], timeout_s=60)
            until(lambda: began.exists() and len(began.read_text()) == 2 * number, "the command")  # noqa: B023
            sshd.kill_sessions()
            with pytest.raises(
                ConnectionLost, match="may have run, or may still run: check before you repeat the command"
            ):
                running.result(timeout=VERDICT_S)
        go.touch()
        until(lambda: ended.exists() and len(ended.read_text()) == 2 * number, "the end of the job")  # noqa: B023
        go.unlink()
        assert len(began.read_text()) == 2 * number


@pytest.mark.parametrize("stdin", [None, b"input"])
def test_a_connection_lost_as_the_command_is_sent_is_a_lost_connection(pod, stdin, monkeypatch):
    """paramiko raises EOFError to the sender if its reader thread has not seen the loss."""
    begin = channels.begin

    def begin_after_loss(link, *args):
        link.transport.packetizer.write_all = partial(broken_pipe, link.transport.sock)
        return begin(link, *args)

    def broken_pipe(sock, _):
        sock.shutdown(socket.SHUT_RDWR)
        raise EOFError

    assert pod.run(["echo", "here"], timeout_s=20).stdout == "here\n"
    with monkeypatch.context() as patch, pytest.raises(ConnectionLost, match="echo: .*check before you repeat"):
        patch.setattr(channels, "begin", begin_after_loss)
        pod.run(["echo", "here"], timeout_s=20, stdin=stdin)
    assert pod.run(["echo", "here"], timeout_s=20).stdout == "here\n"


def test_a_missing_server_is_reported_at_once(sshd, tmp_path):  # noqa: F811
    sshd.stop()
    with pytest.raises(Unreachable, match="Connection refused"):
        Ssh(sshd.address, tmp_path / "known_hosts").run(["true"], timeout_s=20)


FAULTS: dict[str, Callable[[Host], None]] = {
    "the link is down": Host.cut,
    "a firewall drops": lambda host: host.firewall("-j", "DROP"),
    "a firewall resets": lambda host: host.firewall("-p", "tcp", "-j", "REJECT", "--reject-with", "tcp-reset"),
    "sshd is frozen": Host.freeze,
}


@pytest.mark.nightly
def test_a_silent_network_is_noticed_in_time_during_any_action(hosts, tmp_path):  # noqa: F811
    """Run all faults at once, one host each, during a waiting command, an upload, and a new connection.

    A further host has no fault, and its command prints nothing for the same time.
    """
    *broken, healthy = hosts(len(FAULTS) + 1)
    made = dict(zip(FAULTS, broken, strict=True))

    def break_it(what: str) -> dict[str, tuple[str, float]]:
        host, calls = made[what], {}
        with Ssh(host.address, tmp_path / what) as pod, ThreadPoolExecutor(3) as threads:
            job = "echo began; while sleep 0.1; do echo on >> ~/job; done"
            slow = (time.sleep(0.05) or b"x" * 100_000 for _ in range(100_000))
            calls["waiting"] = threads.submit(timed, lambda: pod.run(["sh", "-c", job], timeout_s=60))
            calls["sending"] = threads.submit(
                timed, lambda: pod.run(["sh", "-c", "cat > ~/sent"], stdin=slow, timeout_s=60)
            )
            home = host.folder / "home"
            until(lambda: (home / "job").exists() and (home / "sent").exists(), "both commands")
            FAULTS[what](host)
            since = time.monotonic()
            late = Ssh(host.address, tmp_path / what)
            calls["connecting"] = threads.submit(timed, lambda: late.run(["true"], timeout_s=60))
            seen = {name: (kind, at - since) for name, (kind, at) in ((n, c.result()) for n, c in calls.items())}
        size = (home / "job").stat().st_size
        until(lambda: (home / "job").stat().st_size > size, "the job to live on")
        return seen

    with ThreadPoolExecutor(len(FAULTS) + 1) as threads, Ssh(healthy.address, tmp_path / "healthy") as pod:
        quiet = threads.submit(pod.run, ["sleep", str(SILENT_S + 1)], timeout_s=60)
        seen = dict(zip(FAULTS, threads.map(break_it, FAULTS), strict=True))
        assert quiet.result().exited == 0 and connections(healthy) == 1
    for what, calls in seen.items():
        kinds = {name: kind for name, (kind, _) in calls.items()}
        lost = "ConnectionLost" if what == "a firewall resets" else "Silent"
        assert kinds == {"waiting": lost, "sending": lost, "connecting": "Unreachable"}, what
        assert max(at for _, at in calls.values()) < VERDICT_S, (what, calls)
    assert all(seen[what]["waiting"][1] > SILENT_S - 4 for what in FAULTS if "resets" not in what)


def timed(call: Callable[[], object]) -> tuple[str, float]:
    """Return the name of the raised error, and the time."""
    try:
        call()
    except SlipwayError as error:
        return type(error).__name__, time.monotonic()
    return "", time.monotonic()


def test_a_foreign_host_at_the_address_of_a_pod_is_refused(hosts, tmp_path):  # noqa: F811
    first, second = hosts(2)
    with Ssh(first.address, tmp_path / "known_hosts") as pod:
        assert pod.run(["hostname"], timeout_s=60).stdout == f"{first.network}\n"
        first.cut()
        first.restore()  # a short silence is tolerated
        assert pod.run(["hostname"], timeout_s=60).stdout == f"{first.network}\n"
    first.cut()
    second.take_address(first)
    with (
        Ssh(first.address, tmp_path / "known_hosts") as pod,
        pytest.raises(HostKeyMismatch, match="a different machine"),
    ):
        pod.run(["hostname"], timeout_s=60)
    assert connections(second) == 0
