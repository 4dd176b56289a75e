"""A launch by eleven kinds of users: their login shells, their keys, and the ways of their ssh configuration."""

import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.hosts import Host, loopback
from tests.infra.transport.test_ssh_ways import WORDS, jump_config
from tests.infra.transport.test_ssh_ways import agent as agent
from tests.shells import SHELLS, machine
from tests.world import World

pytestmark = [
    pytest.mark.pack("jobs"),
    pytest.mark.nightly,
    pytest.mark.process,
    pytest.mark.needs("sshd", "ssh", "ssh-keygen", "ssh-agent", "ssh-add"),
    pytest.mark.timeout(300),
]

USERS = {
    "bash with output in .bashrc": "bash that greets",
    "fish with a greeting": "fish that greets",
    "zsh": "zsh that greets",
    "tcsh": "tcsh",
    "dash": "dash",
    "a forced command": "a forced command that stays",
    "a key with a passphrase in ssh-agent": "",
    "ProxyJump": "",
    "a wildcard host": "",
    "Match": "",
    "IPv6": "",
}


def alias_config(folder: Path, host: Host, head: str) -> None:
    address = host.address
    (folder / "config").write_text(
        f"{head}\n  HostName {address.host}\n  Port {address.port}\n"
        f"  User {address.user}\n  IdentityFile {address.key}\n"
    )


@contextlib.contextmanager
def machine_of(user: str, folder: Path, ssh: Path, agent: Any) -> Iterator[dict[str, Any]]:
    """Yield the entry of an inventory for a user's machine; `ssh` is the folder of the user's ssh configuration."""
    with contextlib.ExitStack() as stack:
        if USERS[user]:
            host = stack.enter_context(machine(folder, USERS[user]))
        else:
            host = stack.enter_context(loopback(folder, "OMP_NUM_THREADS=1", "::1" if user == "IPv6" else "127.0.0.1"))
        address = host.address
        entry = {"ip": address.host, "port": address.port, "identity_file": address.key, "user": address.user}
        if user == "a key with a passphrase in ssh-agent":
            key = folder / "locked"
            subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", WORDS, "-f", key], check=True)
            allowed = host.folder / "user.pub"
            allowed.write_text(allowed.read_text() + Path(f"{key}.pub").read_text())
            agent(key)
            entry["identity_file"] = str(key)
        if user == "ProxyJump":
            jump_config(ssh, address)
            entry = {"ip": "inner"}
        if user == "a wildcard host":
            alias_config(ssh, host, "Host gpu-*")
            entry = {"ip": "gpu-7"}
        if user == "Match":
            alias_config(ssh, host, 'Match originalhost rack exec "true"')
            entry = {"ip": "rack"}
        yield {**entry, "python": getattr(sys, "_base_executable", sys.executable)}


@pytest.mark.parametrize("user", USERS)
def test_launch_of_each_kind_of_user_ends_with_its_output_alone(user, tmp_path, agent):
    ssh, work = tmp_path / "home" / ".ssh", tmp_path / "work"
    ssh.mkdir(parents=True)
    work.mkdir()
    (work / "a.txt").write_text("one\n")
    world = World(tmp_path, {"SLIPWAY_POOLS": str(tmp_path / "pools.yaml"), "HOME": str(ssh.parent)})
    with machine_of(user, tmp_path, ssh, agent) as entry:
        (tmp_path / "pools.yaml").write_text(json.dumps({"lab": {"hosts": [entry]}}))
        words = ("--provider", "ssh", "--host", f"lab/{entry['ip']}", "--workdir", str(work), "--no-accept", "--yes")
        done = world.run("launch", "--cmd", "cat a.txt", *words)
        assert done.returncode == 0 and "Traceback" not in done.stderr, done.stderr
        (row,) = world.json("status")
        assert row["state"] == "succeeded" and row["note"] is None
        logs = world.inv("logs", row["run"])
        assert "one\n" in logs
        says = SHELLS[USERS[user]].says if USERS[user] else ""
        assert not says or says not in logs
        world.inv("down", "--all")
