"""uv is sent once to a host without uv; a host's own uv is used."""

import json
import sys
from pathlib import Path

import pytest

from infra.agent.job import PodFolder
from infra.transport import bootstrap
from infra.transport.ssh import Ssh
from tests.hosts import hosts as hosts

pytestmark = pytest.mark.process


@pytest.fixture
def host(hosts):
    (one,) = hosts(1, hidden=["uv"])
    return one


@pytest.fixture
def reach(host, tmp_path):
    with Ssh(host.address, tmp_path / "known_hosts") as transport:
        transport.python = getattr(sys, "_base_executable", sys.executable)
        yield transport


def put_program(host, place, script):
    path = host.folder / "home" / place
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


def test_uv_is_sent_once_and_works_there(host, reach):
    pod = PodFolder(Path(host.address.folder))
    assert bootstrap.bring(reach, pod).startswith("uv sent, ")
    assert bootstrap.bring(reach, pod) == "uv was sent earlier"
    carried = json.loads(reach.get(pod.state / "packages.json"))
    there = reach.run(["sh", "-c", f"{carried['uv']} --version; ls ~/.cache/slipway/tools | wc -l"], timeout_s=20)
    assert there.stdout.startswith("uv ") and there.stdout.splitlines()[-1].strip() == "1"


def test_a_host_that_has_uv_keeps_its_own(host, reach):
    put_program(host, ".local/bin/uv", "echo uv 0.9.1")
    assert bootstrap.bring(reach, PodFolder(Path(host.address.folder))) == "uv is installed"
    assert not (host.folder / "home" / ".cache").exists()


def test_an_old_or_broken_uv_counts_as_missing(host, reach):
    put_program(host, ".local/bin/uv", "echo uv 0.1.9")
    put_program(host, ".cargo/bin/uv", "echo uv 0.9.1; exit 1")
    assert bootstrap.bring(reach, PodFolder(Path(host.address.folder))).startswith("uv sent, ")


@pytest.mark.parametrize(
    ("program", "script", "said"),
    [("uname", "echo Linux sparc64", "no uv for Linux sparc64"), ("getconf", "exit 1", "other: the pod downloads uv")],
)
def test_a_machine_of_a_different_architecture_gets_no_uv(host, tmp_path, program, script, said):
    put_program(host, f"bin/{program}", script)
    host.stop()
    host.options = ["-o", f"SetEnv=PATH={Path(host.address.folder).parent / 'bin'}:/usr/bin:/bin"]
    host.start()
    with Ssh(host.address, tmp_path / "known_hosts") as transport:
        assert said in bootstrap.bring(transport, PodFolder(Path(host.address.folder)))
    assert not (host.folder / "home" / ".cache").exists()


def test_a_damaged_uv_is_not_kept(host, reach):
    place = f"{bootstrap.FOLDER}/uv-damaged"
    said = bootstrap._send(reach, bootstrap._ours()[0], "0" * 64, place)
    assert said == "uv was sent, but is not used: uv arrived damaged"
    assert list((host.folder / "home" / ".cache" / "slipway" / "tools").iterdir()) == []
