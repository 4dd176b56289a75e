"""`inv on`: one command on many machines at once, and custom invoke tasks, over real sshds."""

import json
import os
import signal
import subprocess
import sys
import tarfile

import pytest

from tests.hosts import Hosts
from tests.needs import PRIVILEGE, needs
from tests.processes import command_lines
from tests.world import ROOT, World, until

pytestmark = pytest.mark.process


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """Return a world of pods `a` and `b` on separate machines, and pod `c` on this machine; and the machines."""
    needs("sshd", "ssh-keygen", "ip", "iptables", PRIVILEGE)
    folder = tmp_path_factory.mktemp("world")
    made = Hosts(folder / "hosts")
    try:
        made.open()
        with made.enter():
            machines = [made.add(), made.add()]
            python = getattr(sys, "_base_executable", sys.executable)
            known = [{"ip": one.address.host, "identity_file": one.address.key, "python": python} for one in machines]
            (folder / "pools.yaml").write_text(json.dumps({"lab": {"user": machines[0].address.user, "hosts": known}}))
            one = World(folder, {"SLIPWAY_POOLS": str(folder / "pools.yaml"), "PYTHONPATH": str(ROOT)})
            for name, machine in zip("ab", machines, strict=True):
                place = ("--host", f"lab/{machine.address.host}", "--no-accept")
                one.inv("pod.create", "--provider", "ssh", "--run-name", name, *place)
            one.inv("pod.create", "--provider", "local", "--run-name", "c")
            yield one, machines
            one.inv("down", "--all")
    finally:
        made.close()


def result_of(world, *words):
    """Return the exit code of `inv words`, the sorted lines of stdout, and stderr."""
    process = world.run(*words)
    out, err = process.stdout, process.stderr
    assert "Traceback" not in err
    return process.returncode, sorted(out.splitlines()), err


def results_by_machine(world, *words, code):
    """Return the result of `inv on --json words` per machine; the command must exit with `code`."""
    found = json.loads(world.inv("on", "--json", *words, code=code))
    assert found["exit_code"] == code
    return found["machines"]


def processes(mark):
    """Return the command lines that have `word` as an argument."""
    return [line for line in command_lines() if mark.encode() in line.split(b"\0")]


@pytest.mark.timeout(300)
def test_command_runs_on_all_machines_and_the_worst_exit_code_is_returned(world):
    world, (first, second) = world
    a, b = first.network, second.network
    assert result_of(world, "on", "a", "b", "--", "hostname") == (0, [f"a | {a}", f"b | {b}"], "")
    words = ("sh", "-c", "echo \"$1\" and '$1'", "sh", "two  words")
    assert result_of(world, "on", "a", "--", *words) == (0, ["a | two  words and $1"], "")
    script = f'basename "$PWD" >&2; printf "1%%\\r2%%"; [ $(hostname) != {b} ]'
    code, lines, err = result_of(world, "on", "--all", "--", script)
    assert (code, lines) == (1, ["a | 2%", "b | 2%", "c | 2%"])
    assert sorted(err.splitlines()) == ["1 of 3 machines failed", "a | a", "b | b", "b: exit code 1", "c | c"]
    pools = results_by_machine(world, "lab", "--sudo", "--", "id -u; exit 7", code=7)
    assert [(one["name"], one["stdout"]) for one in pools] == [("lab/10.77.1.2", "0\n"), ("lab/10.77.2.2", "0\n")]
    second.stop()
    code, lines, err = result_of(world, "on", "a", "b", "--", "hostname")
    assert (code, lines) == (255, [f"a | {a}"]) and "b: ssh" in err and "Connection refused" in err
    second.start()
    code, _, err = result_of(world, "on", "nosuch", "--", "true")
    assert code == 2 and "'nosuch' not found; available: a, b, c, lab" in err


@pytest.mark.day_cases(1)
@pytest.mark.timeout(300)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_interrupt_ends_the_command_on_every_machine(world, number):
    world, _ = world
    mark = f"{os.getpid()}{number:02}"
    process = world.begin("on", "--all", "--", f"echo begun; sh -c 'trap \"\" TERM; sleep {mark}; sleep {mark}'")
    assert {process.stdout.readline() for _ in range(3)} == {"a | begun\n", "b | begun\n", "c | begun\n"}
    until(lambda: len(processes(mark)) == 3, "three of them")
    process.send_signal(number)
    _, err = process.communicate(timeout=60)
    if number == signal.SIGINT:
        assert process.returncode == 130 and "the command was ended on every machine" in err
    until(lambda: not processes(mark), "their end")


@pytest.mark.timeout(300)
def test_timeout_ends_the_command_but_not_background_processes(world):
    world, _ = world
    mark = f"{os.getpid()}03"
    found = results_by_machine(world, "a", "c", "--timeout", "2s", "--", f"echo begun; exec sleep {mark}", code=124)
    assert [(one["stdout"], one["exit_code"]) for one in found] == [("begun\n", 143)] * 2
    assert {one["problem"] for one in found} == {"no end after 2 s; the command was ended"}
    assert processes(mark) == []
    world.inv("on", "a", "c", "--", f"sleep {mark} >/dev/null 2>&1 & echo $! > pid")
    assert len(processes(mark)) == 2
    world.inv("on", "a", "c", "--", "kill $(cat pid)")
    until(lambda: not processes(mark), "their end")


@pytest.mark.nightly
@pytest.mark.timeout(300)
def test_custom_tasks_reach_pods_by_name(world):
    """Run the examples as their first lines say, from a different folder."""
    world, machines = world

    def own(file, *words):
        line = [sys.executable, "-m", "invoke", "--search-root", ROOT / "examples" / "tasks", "--collection", file]
        done = subprocess.run([*line, *words], cwd=world.folder, env=world.environ, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout

    (world.folder / "pods" / "c" / "out").mkdir()
    (world.folder / "pods" / "c" / "out" / "it").write_text("here")
    assert own("home", "archive", "c", "out") == f"{world.folder}/c-out.tar.gz\n"
    assert own("home", "archive", "b", "logs") == f"{world.folder}/b-logs.tar.gz\n"
    with tarfile.open(world.folder / "c-out.tar.gz") as archive:
        assert archive.extractfile("out/it").read() == b"here"
    with tarfile.open(world.folder / "b-logs.tar.gz") as archive:
        there = machines[1].folder / "home" / ".slipway" / "pods" / "b" / "logs" / "guard.log"
        assert archive.getmember("logs/guard.log").size <= there.stat().st_size
    lines = own("install", "package", "coreutils").splitlines()
    assert sorted(line.split()[0] for line in lines) == ["a:", "b:", "c:"]
    assert len({line.split()[-1] for line in lines}) == 1
