"""`ssh RUN`: the system's own ssh reaches a pod by name, and never a different machine."""

import json
import shlex
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from infra.errors import UsageError
from infra.ledger.journal import Journal
from infra.names import new_token
from infra.records import Address
from infra.runs import pod_views, ssh_names
from infra.selection import registry
from infra.settings import Settings
from infra.transport.ssh import Ssh
from infra.transport.ssh_include import PodNames, block, include, is_included, leave_out
from tests.hosts import make_key
from tests.hosts import sshd as sshd
from tests.world import World


def way(tmp_path, name="known"):
    return Ssh(Address("root", "192.0.2.1", 2222, f"{tmp_path}/key", "/root/pod"), tmp_path / name)


def test_the_include_line_is_added_at_the_top_and_removed_again(tmp_path):
    config, line = tmp_path / ".ssh" / "config", PodNames(tmp_path / "names").include_line
    assert not is_included(config, line)
    config.parent.mkdir()
    real = tmp_path / "dotfiles"
    real.write_bytes(b"Host old\r\n  User gr\xf6\xdfe\r\n")
    real.chmod(0o640)
    config.symlink_to(real)
    include(config, line)
    include(config, line)
    assert real.read_bytes() == f"{line}\n".encode() + b"Host old\r\n  User gr\xf6\xdfe\r\n"
    assert is_included(config, line) and config.is_symlink() and real.stat().st_mode & 0o777 == 0o640
    assert leave_out(config, line) and not leave_out(config, line)
    assert real.read_bytes() == b"Host old\r\n  User gr\xf6\xdfe\r\n"


def test_a_line_below_a_host_applies_to_the_host_only(tmp_path):
    config, line = tmp_path / "config", PodNames(tmp_path / "names").include_line
    config.write_text(f"Host one\n  {line}\n")
    assert not is_included(config, line)
    config.write_text(f"# first\n\ninclude={line.removeprefix('Include ')}\nHost one\n")
    assert is_included(config, line)


def test_blocks_are_written_read_and_replaced(tmp_path):
    names = PodNames(tmp_path / "names")
    one, two = (block(f"run-{n}", f"sw1-x-{n}", way(tmp_path)) for n in (1, 2))
    names.write({"sw1-x-1": one, "sw1-x-2": two})
    assert names.read() == {"sw1-x-1": one, "sw1-x-2": two}
    assert names.path.stat().st_mode & 0o777 == 0o600
    names.write({})
    assert names.read() == {} and names.exists and names.remove() and not names.exists


@pytest.mark.parametrize("letter", ['"', "*", "\n", "["])
def test_a_path_with_special_meaning_to_ssh_is_refused(tmp_path, letter):
    with pytest.raises(UsageError, match="is not valid in a config file of ssh"):
        block("run", "token", way(tmp_path, f"a{letter}b"))


@pytest.mark.process
@pytest.mark.needs("sshd", "ssh", "ssh-keygen")
def test_ssh_reaches_a_pod_behind_a_proxy_by_its_name(sshd, tmp_path):
    """The user's own `Host *` sends the name elsewhere; the first key is refused, and the second accepted."""
    to = replace(
        sshd.address,
        host="inner%1.lab",
        proxy=f"{sys.executable} {tmp_path}/relay.py {sshd.address.port} 100%",
        key=str(make_key(tmp_path / "other key")),
        more_keys=(sshd.address.key,),
    )
    (tmp_path / "relay.py").write_text(RELAY)
    with Ssh(to, tmp_path / "known") as way:
        assert way.run(["true"], timeout_s=60).exited == 0
        (tmp_path / "config").write_text(f"{block('run-1', 'sw1-x-1', way)}Host *\n  ProxyJump nowhere.invalid\n")
    line = ["ssh", "-F", tmp_path / "config", "run-1", "echo", "hello"]
    done = subprocess.run(line, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    assert done.stdout == "hello\n", done.stderr
    # `status --json` shows the same way, which pins no host key.
    words = shlex.split(pod_views._ssh(SimpleNamespace(address=str(to))))
    line = [words[0], "-F", "none", "-o", f"UserKnownHostsFile={tmp_path}/hosts", "-o", "StrictHostKeyChecking=no"]
    done = subprocess.run([*line, *words[1:], "echo hello"], stdin=subprocess.DEVNULL, capture_output=True, text=True)
    assert done.stdout == "hello\n", done.stderr


RELAY = """
import os, socket, sys, threading
assert sys.argv[2] == "100%"
link = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
def back():
    while piece := link.recv(65536):
        os.write(1, piece)
    os._exit(0)
threading.Thread(target=back, daemon=True).start()
while piece := os.read(0, 65536):
    link.sendall(piece)
"""


@pytest.mark.process
def test_ssh_reaches_a_pod_by_its_name_until_it_is_gone(sshd, tmp_path, monkeypatch):
    folder = tmp_path / "per cent %h"
    folder.mkdir()
    key = folder / "key"
    key.write_bytes(Path(sshd.address.key).read_bytes())
    key.chmod(0o600)
    machine = {"ip": sshd.address.host, "port": sshd.address.port, "python": sys.executable}
    (folder / "pools.yaml").write_text(
        json.dumps({"box": {"user": sshd.address.user, "identity_file": str(key), "hosts": [machine]}})
    )
    world = World(folder, {"SLIPWAY_POOLS": str(folder / "pools.yaml"), "HOME": str(tmp_path)})
    settings = Settings.load(folder, environ=world.environ)
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / ".ssh").mkdir()
    (tmp_path / ".ssh" / "config").write_text("Host taken\n  HostName 192.0.2.9\n")
    vendor = registry.provider(settings, "ssh")
    place = vendor.hosts[0].place
    with Journal.open(settings.state_file) as journal:
        ops = {}
        for name in ("brave-otter-1", "taken"):
            token = new_token(journal.installation)
            op = journal.plan(token=token, run=name, vendor="ssh", remote_id=f"{token}@{place}", job="")
            address = str(Address(sshd.address.user, sshd.address.host, sshd.address.port, str(key), "/tmp"))
            ops[name] = journal.advance(journal.advance(op, "sending"), "created", address=address)
        ssh_names.add(ops["brave-otter-1"], vendor, journal)
        file = PodNames.for_journal(journal.path)
        assert not file.exists, "nobody has asked for it"
        made = ssh_names.write(journal, registry.vendors(settings))
        assert made.names == ("brave-otter-1",) and "a different machine of this name" in made.left_out[0]
        include(tmp_path / ".ssh" / "config", file.include_line)
        line = ["ssh", "-F", str(tmp_path / ".ssh" / "config"), "brave-otter-1", "echo", "$SSH_CONNECTION"]
        unknown = subprocess.run(line, stdin=subprocess.DEVNULL, capture_output=True, text=True)
        assert unknown.returncode == 255 and "key" in unknown.stderr, "it was never met, so nothing pins its key"
        way = vendor.reach(ssh_names.pod_of(ops["brave-otter-1"]))
        assert way.run(["true"], timeout_s=20).exited == 0
        way.close()
        reached = subprocess.run(line, stdin=subprocess.DEVNULL, capture_output=True, text=True)
        assert reached.returncode == 0 and str(sshd.address.port) in reached.stdout, reached.stderr
        ssh_names.take_away(ops["brave-otter-1"], journal)
        assert file.read() == {} and file.exists
        ssh_names.add(ops["brave-otter-1"], vendor, journal)
        assert list(file.read()) == [ops["brave-otter-1"].token]
