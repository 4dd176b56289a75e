"""Machines behind jump hosts and proxy commands, and keys that only an ssh-agent can use, with real OpenSSH."""

import contextlib
import os
import shlex
import signal
import subprocess
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest

from infra.errors import AuthError, UsageError
from infra.machines import inventory
from infra.records import Address
from infra.transport.private_keys import key_of, public_blob, why_agent
from infra.transport.protocol import Unreachable
from infra.transport.push import push
from infra.transport.ssh import Ssh
from infra.transport.ssh_include import resolve
from tests.hosts import loopback
from tests.hosts import sshd as sshd
from tests.infra.transport.test_push import TOKEN, make_pod

pytestmark = [pytest.mark.process, pytest.mark.needs("sshd", "ssh", "ssh-keygen", "ssh-agent", "ssh-add")]
WORDS = "a b'c"


@contextlib.contextmanager
def reach(address, folder, **more):
    with Ssh(replace(address, **more), folder / "known_hosts") as machine:
        yield machine


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
    assert (
        why_agent(key) == "has a passphrase"
        and why_agent(other) == ""
        and key_of(replace(sshd.address, key=str(other))) is None
    )
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
    inventory.refuse_readable(public)


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
        assert Address.parse(str(found)) == found and found.certificate == f"{ssh}/my certificate.pub"
        with reach(found, tmp_path) as machine:
            assert machine.run(["printf", "%s", WORDS], timeout_s=60.0).stdout == WORDS
            line = machine.openssh_command(["echo", "by ssh"], is_terminal=False)
            done = subprocess.run(line, capture_output=True, text=True, stdin=subprocess.DEVNULL)
            assert done.stdout == "by ssh\n", done.stderr
        with pytest.raises(AuthError), reach(found, tmp_path, certificate="") as machine:
            machine.run(["true"], timeout_s=60.0)
        if words:
            absent = (
                f"ssh-agent {tmp_path}/gone does not hold the key; run: SSH_AUTH_SOCK={tmp_path}/gone ssh-add {key}"
            )
            with pytest.raises(UsageError, match=absent), reach(found, tmp_path, agent=f"{tmp_path}/gone") as machine:
                machine.run(["true"], timeout_s=60.0)
