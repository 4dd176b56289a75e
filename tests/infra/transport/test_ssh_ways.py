"""Machines behind jump hosts and proxy commands, keys in files and in an ssh-agent, certificates: with real OpenSSH."""

import contextlib
import json
import os
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from infra.errors import AuthError, UsageError
from infra.machines import inventory, survey
from infra.records import Address
from infra.transport import private_keys
from infra.transport.fabric_connection import PodConnection
from infra.transport.private_keys import keys_of, public_blob, why_agent, why_ignored
from infra.transport.protocol import Unreachable
from infra.transport.push import push
from infra.transport.ssh import Ssh
from infra.transport.ssh_include import resolve
from tests.hosts import loopback, until
from tests.hosts import sshd as sshd
from tests.infra.transport.rogue import Ed25519Server
from tests.infra.transport.test_push import TOKEN, make_pod
from tests.infra.transport.test_ssh_include import RELAY

pytestmark = [pytest.mark.process, pytest.mark.needs("sshd", "ssh", "ssh-keygen", "ssh-agent", "ssh-add")]
WORDS = "a b'c"


@contextlib.contextmanager
def reach(address, folder, **more):
    with Ssh(replace(address, **more), folder / "known_hosts") as machine:
        yield machine


def check_login(address, folder, **more):
    """Log in by Slipway, and by the command for the system's ssh."""
    with reach(address, folder, **more) as machine:
        assert machine.run(["printf", "%s", WORDS], timeout_s=60.0).stdout == WORDS
        line = machine.openssh_command(["echo", "by ssh"], is_terminal=False)
        done = subprocess.run(line, capture_output=True, text=True, stdin=subprocess.DEVNULL)
        assert done.stdout == "by ssh\n", done.stderr


def check_refusal(address, folder, error, said, **more):
    with pytest.raises(error) as refused, reach(address, folder, **more) as machine:
        machine.run(["true"], timeout_s=60.0)
    assert said in str(refused.value), refused.value


def new_key(path: Path, kind: str = "ed25519", words: str = "") -> Path:
    """Create a private key, of a kind such as `rsa-PEM`: type, and format unless OpenSSH."""
    name, _, form = kind.partition("-")
    line = ["ssh-keygen", "-q", "-t", name, *(("-m", form) if form else ()), "-C", "", "-N", words, "-f", path]
    subprocess.run(line, check=True)
    return path


def allow(host, *keys: Path) -> None:
    """Let the machine accept further keys."""
    allowed = host.folder / "user.pub"
    allowed.write_text("".join([allowed.read_text(), *(Path(f"{key}.pub").read_text() for key in keys)]))


def sign(key: Path, authority: Path, user: str) -> Path:
    """Return a new certificate of a key."""
    subprocess.run(["ssh-keygen", "-q", "-s", authority, "-I", "test", "-n", user, f"{key}.pub"], check=True)
    return Path(f"{key}-cert.pub")


def jump_config(folder: Path, address) -> Path:
    """Return an ssh configuration with a jump host, which is the same server, and a machine behind it."""
    config = folder / "config"
    config.write_text(
        f"Host *\n  User {address.user}\n  IdentityFile {address.key}\n  Port {address.port}\n"
        f"  StrictHostKeyChecking no\n  UserKnownHostsFile {folder}/jump_hosts\n"
        f"Host jump twice\n  HostName {address.host}\n"
        f"Host inner\n  HostName {address.host}\n  ProxyJump jump\n"
        f"Host deep\n  HostName {address.host}\n  ProxyJump jump,twice\n"
        f"Host command\n  HostName {address.host}\n  ProxyCommand ssh -F {config} -W %h:%p jump\n"
    )
    return config


@pytest.mark.day_cases(1)
@pytest.mark.parametrize("alias", ["inner", "deep", "command"])
def test_a_machine_behind_a_proxy_is_used_like_any_other(sshd, tmp_path, alias):
    config = jump_config(tmp_path, sshd.address)
    proxy = resolve(alias, config).proxy
    with reach(sshd.address, tmp_path, proxy=proxy) as machine:
        assert machine.run(["printf", "%s", WORDS], timeout_s=60.0).stdout == WORDS
        code, pod = tmp_path / "code", make_pod(tmp_path / "pod")
        code.mkdir()
        (code / "a.bin").write_bytes(os.urandom(3 << 20))
        push(machine, code, pod, TOKEN)
        assert (pod / "a.bin").read_bytes() == (code / "a.bin").read_bytes()
        done = subprocess.run(
            machine.openssh_command(["echo", "by ssh"], is_terminal=False), capture_output=True, text=True
        )
        assert done.stdout == "by ssh\n", done.stderr


def test_a_proxy_that_fails_is_quoted(sshd, tmp_path):
    refused = "echo 'no route to the jump host' >&2; exit 1"
    with (
        pytest.raises(Unreachable, match="proxy: no route to the jump host"),
        reach(sshd.address, tmp_path, proxy=f"sh -c {shlex.quote(refused)}") as machine,
    ):
        machine.run(["true"], timeout_s=60.0)


@pytest.fixture
def agent(tmp_path, monkeypatch):
    """Start an ssh-agent, and return a function that adds a key."""
    folder = tempfile.TemporaryDirectory(prefix="agent-")  # An address of a socket has at most 107 bytes.
    socket = Path(folder.name) / "socket"
    said = subprocess.run(["ssh-agent", "-s", "-a", socket], capture_output=True, text=True, check=True).stdout
    pid = int(said.partition("SSH_AGENT_PID=")[2].partition(";")[0])
    monkeypatch.setenv("SSH_AUTH_SOCK", str(socket))
    ask = tmp_path / "ask"
    ask.write_text(f"#!/bin/sh\nprintf '%s' {shlex.quote(WORDS)}\n")
    ask.chmod(0o755)

    def add(key: Path) -> None:
        environ = {**os.environ, "SSH_ASKPASS": str(ask), "SSH_ASKPASS_REQUIRE": "force", "DISPLAY": ":0"}
        subprocess.run(["ssh-add", "-q", key], env=environ, check=True, stdin=subprocess.DEVNULL)

    with folder:
        yield add
        os.kill(pid, signal.SIGTERM)


@pytest.mark.day_cases(1)
@pytest.mark.parametrize("kind", ["ed25519", "rsa", "rsa-pem"])
def test_a_key_with_a_passphrase_is_used_from_the_agent_alone(sshd, tmp_path, agent, kind):
    key, other = tmp_path / "locked", tmp_path / "other"
    form = ["-m", "PEM"] if kind == "rsa-pem" else []
    line = ["ssh-keygen", "-q", "-t", kind.partition("-")[0], *form, "-C", ""]
    subprocess.run([*line, "-N", WORDS, "-f", key], check=True)
    subprocess.run(["ssh-keygen", "-q", "-N", "", "-f", other], check=True)
    assert why_agent(key) == "has a passphrase" and why_agent(other) == ""
    assert public_blob(key) and public_blob(key) != public_blob(other)
    agent(other)
    with (
        pytest.raises(UsageError, match=f"{key} has a passphrase, and the ssh-agent .* ssh-add {key}"),
        reach(sshd.address, tmp_path, key=str(key)) as machine,
    ):
        machine.run(["true"], timeout_s=60.0)
    agent(key)
    with (
        pytest.raises(AuthError, match="was refused"),
        reach(sshd.address, tmp_path, key=str(key)) as machine,
    ):
        machine.run(
            ["true"], timeout_s=60.0
        )  # the server does not know the key yet, and no other key of the agent is offered
    allowed = sshd.folder / "user.pub"
    allowed.write_text(allowed.read_text() + Path(f"{key}.pub").read_text())
    with reach(sshd.address, tmp_path, key=str(key)) as machine:
        assert machine.run(["printf", "%s", WORDS], timeout_s=60.0).stdout == WORDS
        done = subprocess.run(
            machine.openssh_command(["echo", "by ssh"], is_terminal=False), capture_output=True, text=True
        )
        assert done.stdout == "by ssh\n", done.stderr


def test_a_key_given_by_its_public_key_is_used_from_the_agent(sshd, tmp_path, agent):
    public = tmp_path / "held.pub"
    public.write_bytes((sshd.folder / "user.pub").read_bytes())
    public.chmod(0o644)
    with (
        pytest.raises(UsageError, match=f"{public} is given by its public key, .* run: ssh-add {tmp_path}/held$"),
        reach(sshd.address, tmp_path, key=str(public)) as machine,
    ):
        machine.run(["true"], timeout_s=60.0)
    agent(Path(sshd.address.key))
    with reach(sshd.address, tmp_path, key=str(public)) as machine:
        assert machine.run(["printf", "%s", WORDS], timeout_s=60.0).stdout == WORDS
        line = machine.openssh_command(["echo", "by ssh"], is_terminal=False)
        done = subprocess.run(line, capture_output=True, text=True, stdin=subprocess.DEVNULL)
        assert done.stdout == "by ssh\n", done.stderr
    assert why_ignored(public) == ""


@pytest.mark.day_cases(1)
@pytest.mark.parametrize("words", ["", WORDS], ids=["plain", "passphrase"])
def test_a_certificate_beside_a_key_is_used(tmp_path, agent, words):
    key, authority = tmp_path / "signed", tmp_path / "authority"
    for path, secret in ((key, words), (authority, "")):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", secret, "-f", path], check=True)
    with loopback(tmp_path, options=["-o", f"TrustedUserCAKeys={authority}.pub"]) as host:
        sign = ["ssh-keygen", "-q", "-s", authority, "-I", "test", "-n", host.address.user, f"{key}.pub"]
        subprocess.run(sign, check=True)
        if words:
            agent(key)
        with reach(host.address, tmp_path, key=str(key)) as machine:
            assert machine.run(["printf", "%s", WORDS], timeout_s=60.0).stdout == WORDS
            line = machine.openssh_command(["echo", "by ssh"], is_terminal=False)
            done = subprocess.run(line, capture_output=True, text=True, stdin=subprocess.DEVNULL)
            assert done.stdout == "by ssh\n", done.stderr


@pytest.mark.day_cases(1)
@pytest.mark.parametrize("words", [WORDS, ""], ids=["passphrase", "plain"])
def test_certificate_and_agent_of_the_ssh_configuration_are_used(tmp_path, agent, monkeypatch, words):
    key, authority, ssh = tmp_path / "signed", tmp_path / "authority", tmp_path / ".ssh"
    for path, secret in ((key, words), (authority, "")):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", secret, "-f", path], check=True)
    with loopback(tmp_path, options=["-o", f"TrustedUserCAKeys={authority}.pub"]) as host:
        sign = ["ssh-keygen", "-q", "-s", authority, "-I", "test", "-n", host.address.user, f"{key}.pub"]
        subprocess.run(sign, check=True)
        ssh.mkdir()
        Path(f"{key}-cert.pub").rename(ssh / "my certificate.pub")
        if words:
            agent(key)
        monkeypatch.setenv("OTHER_AGENT", os.environ["SSH_AUTH_SOCK"])
        monkeypatch.delenv("SSH_AUTH_SOCK")
        (ssh / "config").write_text(
            f'Host *\n  CertificateFile {ssh}/absent.pub\n  CertificateFile "{ssh}/my certificate.pub"\n'
            f"  IdentityAgent $OTHER_AGENT\n"
            f"Host signed\n  HostName {host.address.host}\n  Port {host.address.port}\n  User {host.address.user}\n"
            f"  IdentityFile {key}\n"
        )
        found = inventory.address_of({"ip": "signed"}, ssh, {"signed"})
        assert Address.parse(str(found)) == found and found.certificates == (f"{ssh}/my certificate.pub",)
        with reach(found, tmp_path) as machine:
            assert machine.run(["printf", "%s", WORDS], timeout_s=60.0).stdout == WORDS
            line = machine.openssh_command(["echo", "by ssh"], is_terminal=False)
            done = subprocess.run(line, capture_output=True, text=True, stdin=subprocess.DEVNULL)
            assert done.stdout == "by ssh\n", done.stderr
        with pytest.raises(AuthError), reach(found, tmp_path, certificates=()) as machine:
            machine.run(["true"], timeout_s=60.0)
        if words:
            absent = (
                f"ssh-agent {tmp_path}/gone does not hold the key; run: SSH_AUTH_SOCK={tmp_path}/gone ssh-add {key}"
            )
            with pytest.raises(UsageError, match=absent), reach(found, tmp_path, agent=f"{tmp_path}/gone") as machine:
                machine.run(["true"], timeout_s=60.0)


@pytest.mark.day_cases(2)
@pytest.mark.parametrize("kind", ["rsa-PEM", "ecdsa", "rsa-PKCS8", "ed25519", "rsa", "ecdsa-PEM", "ecdsa-PKCS8"])
def test_a_key_of_each_kind_and_format_is_used_or_named_as_refused(sshd, tmp_path, kind):
    key = new_key(tmp_path / "key", kind)
    check_refusal(sshd.address, tmp_path, AuthError, f"the key {key} was refused: Authentication failed", key=str(key))
    allow(sshd, key)
    check_login(sshd.address, tmp_path, key=str(key))


def test_a_file_that_is_no_key_is_named(sshd, tmp_path):
    key = tmp_path / "key"
    key.write_text("-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n")
    key.chmod(0o600)
    check_refusal(sshd.address, tmp_path, UsageError, f"{key} is not in a format that can be used", key=str(key))


def test_keys_are_offered_in_order_until_the_machine_accepts_one(sshd, tmp_path, agent):
    old, locked = new_key(tmp_path / "old", "rsa"), new_key(tmp_path / "locked", "ed25519", WORDS)
    absent, good = str(tmp_path / "absent"), sshd.address.key
    check_login(sshd.address, tmp_path, key=str(old), more_keys=(str(locked), absent, good))
    check_login(sshd.address, tmp_path, key=absent, more_keys=(good,))
    keys = {"key": str(old), "more_keys": (str(locked), absent)}
    for said in (
        f"the key {old} was refused: Authentication failed",
        f"{locked} has a passphrase, and the ssh-agent of this machine does not hold the key; run: ssh-add {locked}",
        f"the private key {absent} is missing",
    ):
        check_refusal(sshd.address, tmp_path, AuthError, said, **keys)
    agent(locked)
    check_refusal(sshd.address, tmp_path, AuthError, f"the keys {old}, {locked} were refused", **keys)
    allow(sshd, locked)
    check_login(sshd.address, tmp_path, **keys)
    check_refusal(
        sshd.address,
        tmp_path,
        UsageError,
        f"ssh {sshd.address.place}: the private key {absent} is missing; the private key {absent}2 is missing",
        key=absent,
        more_keys=(f"{absent}2",),
    )


@pytest.mark.day_cases(1)
@pytest.mark.parametrize("number", [2, 1])
def test_a_machine_that_counts_attempts_refuses_the_keys_and_is_reachable(tmp_path, number):
    keys = [str(new_key(tmp_path / f"key{one}")) for one in range(number)]
    with loopback(tmp_path, options=["-o", f"MaxAuthTries={number}"]) as host:
        more = {"key": keys[0], "more_keys": (*keys[1:], host.address.key)}
        check_refusal(host.address, tmp_path, AuthError, "Too many authentication failures", **more)


def test_a_machine_may_ask_for_two_keys(tmp_path):
    key = new_key(tmp_path / "second")
    with loopback(tmp_path, options=["-o", "AuthenticationMethods=publickey,publickey"]) as host:
        check_refusal(host.address, tmp_path, AuthError, "a key was accepted, but the machine also asks for publickey")
        allow(host, key)
        check_login(host.address, tmp_path, more_keys=(str(key),))


def test_the_configuration_names_the_offered_keys(sshd, tmp_path, agent):
    """Check several IdentityFile lines, default keys beside other lines, and a public key alone."""
    ssh, to = tmp_path / "home/.ssh", sshd.address
    ssh.mkdir(parents=True)
    old, good = new_key(ssh / "id_rsa", "rsa"), ssh / "id_ed25519"
    good.write_bytes(Path(to.key).read_bytes())
    good.chmod(0o600)
    (ssh / "work.pub").write_bytes((sshd.folder / "user.pub").read_bytes())
    head = f"  HostName {to.host}\n  Port {to.port}\n  User {to.user}\n"
    (ssh / "config").write_text(
        f"Host default*\n{head}Host lines\n{head}  IdentityFile {old}\n  IdentityFile {good}\n"
        f"Host work\n{head}  IdentityFile ~/.ssh/work\n"
    )
    hosts = {"default1": (old, good), "lines": (old, good), "work": (ssh / "work.pub",)}
    (tmp_path / "pools.yaml").write_text(f"p: {{hosts: [{', '.join(hosts)}]}}")
    found = inventory.load(tmp_path / "pools.yaml", ssh.parent)
    assert not found.unusable and {one.name: tuple(keys_of(one.address)) for one in found.hosts} == hosts
    check_refusal(found.find("work").address, tmp_path, UsageError, f"run: ssh-add {ssh}/work")
    agent(good)
    for host in found.hosts:
        check_login(host.address, tmp_path)
        assert Address.parse(str(host.address)) == host.address


def test_a_key_of_the_agent_alone_is_used_by_its_public_key(sshd, tmp_path, agent):
    agent(Path(sshd.address.key))
    (tmp_path / ".ssh").mkdir()
    pools, to = tmp_path / "pools.yaml", sshd.address
    entry = f"ip: {to.host}, port: {to.port}, user: {to.user}"
    pools.write_text(f"p: {{hosts: [{{{entry}}}]}}")
    (bad,) = inventory.load(pools, tmp_path).unusable
    assert "a file with the public key, which this command prints: ssh-add -L" in bad.why
    listed = subprocess.run(["ssh-add", "-L"], capture_output=True, check=True).stdout
    (tmp_path / "agent key").write_bytes(listed)
    pools.write_text(f"p: {{hosts: [{{{entry}, identity_file: {tmp_path}/agent key}}]}}")
    check_login(inventory.load(pools, tmp_path).hosts[0].address, tmp_path)


@pytest.mark.parametrize("kind", ["rsa-PEM"])
def test_a_locked_key_without_its_public_part_is_named(sshd, tmp_path, agent, kind):
    key = new_key(tmp_path / "locked", kind, WORDS)
    allow(sshd, key)
    agent(key)
    public = Path(f"{key}.pub").read_bytes()
    Path(f"{key}.pub").unlink()
    said = f"the key by its public part, which is missing; run: ssh-keygen -y -f {key} > {key}.pub"
    check_refusal(sshd.address, tmp_path, UsageError, said, key=str(key))
    Path(f"{key}.pub").write_bytes(public)
    check_login(sshd.address, tmp_path, key=str(key))


def test_a_key_that_the_agent_refuses_to_use_is_named_and_leaves_the_other_keys(sshd, tmp_path, monkeypatch):
    with tempfile.TemporaryDirectory(prefix="agent-") as folder:
        deny = {**os.environ, "SSH_ASKPASS": "/bin/false", "SSH_ASKPASS_REQUIRE": "force", "DISPLAY": ":0"}
        place = Path(folder, "socket")
        agent = subprocess.Popen(["ssh-agent", "-D", "-a", place], stdout=subprocess.DEVNULL, env=deny)
        try:
            until(place.exists, "an agent")
            monkeypatch.setenv("SSH_AUTH_SOCK", str(place))
            asks, other = new_key(tmp_path / "asks"), new_key(tmp_path / "other")
            subprocess.run(["ssh-add", "-q", "-c", asks], check=True)
            subprocess.run(["ssh-add", "-q", sshd.address.key], check=True)
            said = f"the ssh-agent refuses to sign with the key {asks}.pub"
            check_refusal(sshd.address, tmp_path, UsageError, said, key=f"{asks}.pub")
            check_refusal(sshd.address, tmp_path, AuthError, said, key=f"{asks}.pub", more_keys=(str(other),))
            check_login(sshd.address, tmp_path, key=f"{asks}.pub", more_keys=(f"{sshd.folder}/user.pub",))
            check_login(sshd.address, tmp_path, key=f"{asks}.pub", more_keys=(sshd.address.key,))
        finally:
            agent.terminate()
            agent.wait()


@pytest.mark.parametrize("is_listed", [False, True], ids=["refused", "not offered"])
def test_a_key_without_a_common_algorithm_leaves_the_other_keys(tmp_path, is_listed):
    """The server of paramiko lists its algorithms, so the client cannot offer the key; OpenSSH 9.2 lists them all."""
    first = str(new_key(tmp_path / "first", "rsa"))
    sshd_options = ["-o", "PubkeyAcceptedAlgorithms=ssh-ed25519"]
    with Ed25519Server(tmp_path) if is_listed else loopback(tmp_path, options=sshd_options) as host:
        said = f"accepts no signature of the key {first}" if is_listed else f"the key {first} was refused"
        check_refusal(host.address, tmp_path, AuthError, said, key=first)
        more_keys = (first, host.address.key)
        with PodConnection(replace(host.address, key=first, more_keys=more_keys), tmp_path / "known_hosts") as machine:
            machine.open()
            assert machine.is_connected


@contextlib.contextmanager
def deaf_agent(monkeypatch, to: str = ""):
    """Yield a list of the requests to an agent that never signs, and that lists the keys of the agent `to`, if any."""
    with tempfile.TemporaryDirectory(prefix="agent-") as folder, socket.socket(socket.AF_UNIX) as server:
        server.bind(f"{folder}/socket")
        server.listen()
        monkeypatch.setenv("SSH_AUTH_SOCK", f"{folder}/socket")
        monkeypatch.setattr(private_keys, "AGENT_S", 0.5)
        heard: list[bytes] = []
        links = []

        def serve():
            with contextlib.suppress(OSError):  # the end of the test
                while True:
                    links.append(server.accept()[0])
                    threading.Thread(target=answer, args=(links[-1],), daemon=True).start()

        def answer(link):
            with contextlib.suppress(OSError):
                while request := link.recv(65536):
                    heard.append(request[4:5])
                    if to and request[4:5] == LIST:
                        with socket.socket(socket.AF_UNIX) as real:
                            real.connect(to)
                            real.sendall(request)
                            link.sendall(real.recv(65536))

        threading.Thread(target=serve, daemon=True).start()
        yield heard
        server.shutdown(socket.SHUT_RDWR)
        for link in links:
            link.close()


LIST, SIGN = b"\x0b", b"\x0d"


def test_an_agent_without_an_answer_is_asked_last_and_named(sshd, tmp_path, monkeypatch):
    locked, other = new_key(tmp_path / "locked", "ed25519", WORDS), new_key(tmp_path / "other")
    keys = {"key": str(locked), "more_keys": (str(other),)}
    with deaf_agent(monkeypatch) as heard:
        with reach(sshd.address, tmp_path, key=str(locked), more_keys=(sshd.address.key,)) as machine:
            assert machine.run(["printf", "%s", WORDS], timeout_s=60.0).stdout == WORDS
        assert not heard
        check_refusal(sshd.address, tmp_path, UsageError, "gives no answer: timed out; restart", key=str(locked))
        check_refusal(sshd.address, tmp_path, AuthError, "gives no answer: timed out; restart", **keys)
        assert set(heard) == {LIST}


def test_an_agent_that_does_not_sign_in_time_is_named(sshd, tmp_path, agent, monkeypatch):
    held, other = new_key(tmp_path / "held"), new_key(tmp_path / "other")
    agent(held)
    with deaf_agent(monkeypatch, to=os.environ["SSH_AUTH_SOCK"]) as heard:
        said = f"the ssh-agent does not answer in time to sign with the key {held}.pub"
        check_refusal(sshd.address, tmp_path, UsageError, said, key=f"{held}.pub")
        check_refusal(sshd.address, tmp_path, AuthError, said, key=f"{held}.pub", more_keys=(str(other),))
        assert set(heard) == {LIST, SIGN}


@pytest.mark.day_cases(2)
@pytest.mark.parametrize("kind", ["ed25519", "rsa-PEM", "ecdsa"])
def test_a_certificate_of_another_key_is_left_out(sshd, tmp_path, kind):
    """The other key has the same type, or another one; a certificate without effect does not hide its plain key."""
    key, authority, user = new_key(tmp_path / "key", kind), new_key(tmp_path / "authority"), sshd.address.user
    allow(sshd, key)
    others = [new_key(tmp_path / f"other{n}", one) for n, one in enumerate((kind.partition("-")[0], "rsa", "ed25519"))]
    foreign = [str(sign(one, authority, user)) for one in others]
    (tmp_path / "damaged").write_text("ssh-ed25519-cert-v01@openssh.com AAAA")
    certificates = (*foreign, str(tmp_path / "damaged"), str(sign(key, authority, user)))
    check_login(sshd.address, tmp_path, key=str(key), certificates=certificates)


def test_each_key_has_its_own_certificate(tmp_path):
    keys, authority = [new_key(tmp_path / one) for one in ("first", "second")], new_key(tmp_path / "authority")
    with loopback(tmp_path, options=["-o", f"TrustedUserCAKeys={authority}.pub"]) as host:
        names = ("somebody", host.address.user)
        signed = [sign(key, authority, name) for key, name in zip(keys, names, strict=True)]
        moved = [str(one.rename(tmp_path / f"certificate {n}")) for n, one in enumerate(signed)]
        more = {"key": str(keys[0]), "more_keys": (str(keys[1]),)}
        check_refusal(host.address, tmp_path, AuthError, f"the keys {keys[0]}, {keys[1]} were refused", **more)
        check_login(host.address, tmp_path, certificates=tuple(moved), **more)


def test_a_proxy_command_runs_in_the_shell_of_the_user(sshd, tmp_path, monkeypatch):
    """`sh` does not know `>(...)`; the system's ssh, which runs the same command, uses this shell too."""
    shell, mark = tmp_path / "my shell", tmp_path / "mark"
    shell.write_text(f'#!/bin/sh\necho "$1" >> {mark}\nexec bash "$@"\n')
    shell.chmod(0o755)
    monkeypatch.setenv("SHELL", str(shell))
    to = sshd.address
    (tmp_path / "relay.py").write_text(RELAY)
    relay = f"{sys.executable} {tmp_path}/relay.py {to.port} 100% 2> >(cat >/dev/null)"
    check_login(to, tmp_path, proxy=relay)
    assert mark.read_text() == "-c\n-c\n"


@pytest.mark.day_cases(1)
@pytest.mark.parametrize("shell", ["absent", "nologin", "false"])
def test_an_account_without_a_shell_reaches_machines_behind_jump_hosts(sshd, tmp_path, monkeypatch, shell):
    """A service has such an account; with several jump hosts, ssh runs a further ssh in the same shell."""
    if shell != "absent":
        (tmp_path / shell).write_text("#!/bin/sh\nexit 1\n")
        (tmp_path / shell).chmod(0o755)
    monkeypatch.setenv("SHELL", str(tmp_path / shell))
    proxy = resolve("deep", jump_config(tmp_path, sshd.address)).proxy
    with reach(sshd.address, tmp_path, proxy=proxy) as machine:
        assert machine.run(["printf", "%s", WORDS], timeout_s=60.0).stdout == WORDS


def test_a_jump_host_that_refuses_is_no_machine_that_boots(sshd, tmp_path):
    config = jump_config(tmp_path, sshd.address)
    config.write_text(config.read_text().replace(sshd.address.key, str(new_key(tmp_path / "unknown"))))
    proxy = resolve("inner", config).proxy
    host = inventory.Host(pool="p", name="inner", address=replace(sshd.address, proxy=proxy))
    (look,) = survey.reachable([host], lambda host: Ssh(host.address, tmp_path / "known_hosts"))
    assert "Permission denied" in look.problem and look.problem.endswith(f"and try: {proxy}")
    assert "boot" not in look.problem


def test_a_machine_that_a_jump_host_does_not_reach_may_boot(sshd, tmp_path):
    proxy = resolve("inner", jump_config(tmp_path, sshd.address), port=1).proxy
    host = inventory.Host(pool="p", name="inner", address=replace(sshd.address, proxy=proxy))
    (look,) = survey.reachable([host], lambda host: Ssh(host.address, tmp_path / "known_hosts"))
    assert "stdio forwarding failed" in look.problem and look.problem.endswith("to boot: try again")


@pytest.mark.parametrize("form", ["ip", "alias"])
def test_an_address_with_a_zone_is_reached(tmp_path, form):
    """A number is a zone of any address; the name of an interface is a zone of a link-local address."""
    (tmp_path / ".ssh").mkdir()
    with loopback(tmp_path, listen="::1") as host:
        to = host.address
        (tmp_path / ".ssh/config").write_text(f"Host box\n  HostName ::1%%1\n  IdentityFile {to.key}\n")
        entry = {"ip": "::1%1" if form == "ip" else "box", "port": to.port, "identity_file": to.key, "user": to.user}
        (tmp_path / "pools.yaml").write_text(json.dumps({"p": {"hosts": [entry]}}))
        (found,) = inventory.load(tmp_path / "pools.yaml", tmp_path).hosts
        assert found.address.host == "::1%1" and Address.parse(str(found.address)) == found.address
        check_login(found.address, tmp_path)
