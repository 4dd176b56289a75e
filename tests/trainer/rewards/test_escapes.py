"""Escapes from the code sandbox: each is refused, under every version of Landlock, in a container too."""

import errno
import getpass
import json
import os
import re
import shutil
import socket
import struct
import subprocess
import sys
import threading
import time
from contextlib import closing
from pathlib import Path

import pytest

from tests.trainer.rewards.escapes import CALLS, PREFIX
from tests.world import ROOT
from trainer.errors import Refused
from trainer.records.rl_config import RlConfig
from trainer.rewards import jail
from trainer.rewards.code import Mbpp
from trainer.rewards.sandbox import kernel, system_calls
from trainer.rewards.task_rewards import judge_of

NOBODY = kernel.NOBODY
IS_ROOT = os.geteuid() == 0
PLACES = ("machine", "container")
KEY = b"a key"
pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(sys.platform != "linux" or not kernel.abi(), reason="this machine has no Landlock"),
]


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """Yield the targets of escapes: a file, a process, sockets; all owned by the user that runs the answers."""
    folder = Path("/var/tmp") / f"slipway-escapes-{os.getpid()}"
    folder.mkdir(mode=0o755)
    (folder / "key").write_bytes(KEY)
    (folder / "own.py").write_text("stolen = 1\n")
    os.setxattr(folder / "key", "user.here", b"1")
    user = {"user": NOBODY, "group": NOBODY, "extra_groups": ()} if IS_ROOT else {}
    if IS_ROOT:
        for one in (folder, *folder.iterdir()):
            os.chown(one, NOBODY, NOBODY)
    bystander = subprocess.Popen(["sleep", "1000"], **user)
    name = f"\0slipway-{os.getpid()}"
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.socket(socket.AF_UNIX) as abstract:
        abstract.bind(name)
        abstract.listen()
        yield {
            "PATH": str(folder / "key"),
            "FOLDER": str(folder),
            "PID": bystander.pid,
            "PORT": listener.getsockname()[1],
            "SOCKET": name,
        }
    bystander.kill()
    bystander.wait()
    shutil.rmtree(folder)


def escape_results(world, kind, version, place, python=(), **how):
    """Return the output of `escaping`, after a check of the targets."""
    words = [*(python or [sys.executable]), "-m", "tests.trainer.rewards.escaping", kind, str(version), place]
    done = subprocess.run([*words, json.dumps(world)], cwd=ROOT, capture_output=True, text=True, timeout=200, **how)
    assert done.returncode == 0, done.stderr[-2000:]
    key = Path(world["PATH"])
    assert key.read_bytes() == KEY and os.getxattr(key, "user.here") == b"1"
    assert (key.stat().st_mode & 0o777, key.stat().st_mtime) == (0o644, world.setdefault("MTIME", key.stat().st_mtime))
    assert sorted(one.name for one in key.parent.iterdir()) == ["key", "own.py"]
    os.kill(world["PID"], 0)
    assert Path(f"/proc/{world['PID']}/stat").read_text().split()[2] == "S"
    return json.loads(done.stdout)


@pytest.mark.parametrize("place", PLACES)
def test_no_escape_succeeds_with_the_oldest_landlock(world, place):
    found = escape_results(world, "landlock", 1, place)
    assert found["through"] == {}
    assert found["tried"] >= 120
    assert found["layers"]["landlock"] == 1
    if place == "container":
        assert not found["layers"]["namespaces"] and not found["layers"]["has_own_root"]


@pytest.mark.nightly
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("version", range(2, 8))
def test_no_escape_succeeds_with_any_landlock(world, version, place):
    assert escape_results(world, "landlock", version, place)["through"] == {}


@pytest.mark.nightly
@pytest.mark.needs("bwrap")
def test_no_escape_succeeds_in_bubblewrap(world):
    assert escape_results(world, "bubblewrap", 0, "machine")["through"] == {}


@pytest.mark.nightly
@pytest.mark.skipif(not IS_ROOT or not Path("/usr/bin/python3").exists(), reason="needs root, and a Python for all")
@pytest.mark.parametrize("place", PLACES)
def test_no_escape_succeeds_for_a_user_without_rights(world, place):
    found = escape_results(
        world,
        "landlock",
        1,
        place,
        ["/usr/bin/python3"],
        user=NOBODY,
        group=NOBODY,
        extra_groups=(),
        env={"PATH": os.environ["PATH"], "PYTHONDONTWRITEBYTECODE": "1"},
    )
    assert found["through"] == {}
    assert not found["layers"]["has_changed_user"]


@pytest.mark.nightly
@pytest.mark.skipif(not IS_ROOT or not shutil.which("setpriv"), reason="needs root, and setpriv")
@pytest.mark.parametrize("rights", ["-all", "-setuid,-setgid", "-sys_admin", "-setpcap"])
@pytest.mark.parametrize("place", PLACES)
def test_no_escape_succeeds_for_root_with_fewer_rights(world, rights, place):
    python = ["setpriv", f"--bounding-set={rights}", sys.executable]
    assert escape_results(world, "landlock", 1, place, python)["through"] == {}


BOMBS = {
    "a number of x32": "def f(): return call(0x40000000 + 39)",
    "memory": "def f(): return len('x' * 10 ** 10)",
    "memory bit by bit": "def f():\n    seen = []\n    while True: seen.append(bytearray(1 << 20))",
    "a loop": "def f():\n    while True: pass",
    "a loop that ignores the limit": "import signal\nsignal.signal(signal.SIGXCPU, signal.SIG_IGN)\n"
    "def f():\n    while True: pass",
    "sleep": "import time\ndef f(): time.sleep(1000)",
    "threads": "import threading, time\ndef f():\n"
    "    while True: threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()",
    "words without end": "def f():\n    while True: os.write(4, b'x' * 60000)",
    "its own end": "def f(): os.abort()",
    "a stop": "import signal\ndef f(): os.kill(os.getpid(), signal.SIGSTOP)",
    "a bad address": "def f(): return ctypes.string_at(1)",
    "a deep recursion": "sys.setrecursionlimit(10 ** 9)\ndef f():\n    def g(): return g()\n    return g()",
}


@pytest.mark.nightly
@pytest.mark.parametrize("what", BOMBS)
def test_fork_bomb_ends_only_itself(what):
    with closing(jail.Jail("landlock")) as one:
        (found,) = one.run_answer(f"{PREFIX}\n{BOMBS[what]}", ["f()"], [], "").calls
        assert found.error
        assert one.run_answer("", ["1 + 1"], [], "").calls[0].plain == 2


def test_sandbox_leaves_no_process_behind():
    one = jail.Jail("landlock")
    one.run_answer("", ["1"], [], "")
    starter = one.free.get_nowait()
    one.free.put(starter)
    one.close()
    assert starter.child.returncode is not None
    until = time.monotonic() + 20  # Children of a killed process end after the process.
    while members(starter.child.pid) and time.monotonic() < until:
        time.sleep(0.05)
    assert members(starter.child.pid) == []


def members(group):
    """Return the processes of a group, without zombies."""
    stats = [one.read_text().rpartition(")")[2].split() for one in Path("/proc").glob("[0-9]*/stat") if one.exists()]
    return [one for one in stats if one[2] == str(group) and one[0] != "Z"]


def test_answers_of_several_threads_share_a_sandbox():
    found = []
    with closing(Mbpp(is_unsafe=False)) as judge:
        ask = lambda: found.append(judge.pass_rate("def f(x): return x + 1", "", ["assert f(1) == 2"]))  # noqa: E731
        threads = [threading.Thread(target=ask) for _ in range(6)]
        for one in threads:
            one.start()
        for one in threads:
            one.join()
    assert found == [1.0] * 6


def test_process_of_an_answer_has_no_right_and_no_name_of_root():
    code = "import os, ctypes\nLIBC = ctypes.CDLL(None)\nrights = [LIBC.prctl(16), os.geteuid(), os.getuid()]"
    with closing(jail.Jail("landlock")) as one:
        found = one.run_answer(code, ["os.geteuid()", "os.getuid()"], [], "").calls
        layers = one.layers()
    assert [said.plain for said in found] == [NOBODY if IS_ROOT else os.geteuid()] * 2
    assert layers["has_changed_user"] == IS_ROOT, getpass.getuser()


# The list of calls.


@pytest.mark.parametrize("machine", system_calls.AUDIT)
def test_list_has_about_sixty_calls(machine):
    column = list(system_calls.AUDIT).index(machine)
    allowed = [one for one in (*system_calls.FREE.values(), *system_calls.FILTERED.values()) if one[column] >= 0]
    assert 50 <= len(allowed) <= 70
    assert len(set(allowed)) == len(allowed)


@pytest.mark.parametrize("machine", system_calls.AUDIT)
def test_list_refuses_unlisted_calls_and_foreign_numbers(machine):
    column = list(system_calls.AUDIT).index(machine)
    known = {**system_calls.FREE, **system_calls.FILTERED}
    numbers = {pair[column] for pair in known.values()} | {one[0][column] for one in system_calls.OTHERWISE.values()}
    code, audit = system_calls.program(machine, 77), system_calls.AUDIT[machine]
    refused = system_calls.ERRNO | errno.EPERM
    assert {decided(code, audit, one) for one in range(1024) if one not in numbers} == {refused}
    assert {decided(code, audit, pair[column]) for pair in system_calls.FREE.values() if pair[column] >= 0} == {
        system_calls.ALLOW
    }
    for foreign in (0x40000003, 0xC000003E ^ audit ^ 0xC00000B7, 0x40000028):
        assert decided(code, foreign, 0) == system_calls.KILL
    assert decided(code, audit, 0x40000000) == decided(code, audit, 0xFFFFFFFF) == system_calls.KILL


@pytest.mark.parametrize("machine", system_calls.AUDIT)
def test_list_checks_arguments(machine):
    column = list(system_calls.AUDIT).index(machine)
    code, audit = system_calls.program(machine, 77), system_calls.AUDIT[machine]

    def passes(name, *some):
        return decided(code, audit, system_calls.FILTERED[name][column], some) == system_calls.ALLOW

    assert passes("kill", 77, 9) and not passes("kill", 78, 9) and not passes("kill", 0, 9)
    assert not passes("kill", 0xFFFFFFFFFFFFFFFF, 9)
    assert passes("tgkill", 77, 77, 6) and not passes("tgkill", 1, 77, 6)
    assert passes("clone", 0x3D0F00) and not passes("clone", 0x11) and not passes("clone", 0x3D0F00 | 0x20000000)
    assert not passes("clone", 0x3D0F00 ^ 0x10000)
    assert passes("fcntl", 0, 1) and passes("fcntl", 0, 1030)
    assert not any(passes("fcntl", 0, one) for one in (4, 5, 6, 7, 8, 10, 15, 1024, 1026, 1033))
    assert passes("mmap", 0, 1, 3, 0x22) and passes("mmap", 0, 1, 5, 2)
    assert not passes("mmap", 0, 1, 7, 2) and not passes("mmap", 0, 1, 5, 0x22)
    assert passes("mprotect", 0, 1, 3) and not passes("mprotect", 0, 1, 5) and not passes("mprotect", 0, 1, 7)
    assert passes("prlimit64", 0, 7, 0, 1) and not passes("prlimit64", 5, 7, 0, 1)
    assert not passes("prlimit64", 0, 7, 1 << 40, 1) and not passes("prlimit64", 0, 7, 5, 1)
    assert passes("openat", 0, 1, 0x80000) and not any(passes("openat", 0, 1, 1 << bit) for bit in (0, 1, 6, 9, 10, 21))
    assert passes("prctl", 15) and not any(passes("prctl", one) for one in (1, 4, 22, 35, 38, 47))


HEADERS = {"x86_64": "/usr/include/x86_64-linux-gnu/asm/unistd_64.h", "aarch64": "/usr/include/asm-generic/unistd.h"}


@pytest.mark.parametrize("machine", system_calls.AUDIT)
def test_call_numbers_equal_the_kernel(machine):
    header = Path(HEADERS[machine])
    if not header.exists():
        pytest.skip(f"needs {header}")
    words = re.sub(
        r"__NR3264_(fcntl|lseek|fstat|mmap|sendfile|truncate|ftruncate|statfs)\b", r"__NR_\1", header.read_text()
    ).replace("__NR3264_fstatat", "__NR_newfstatat")
    known = {name: int(number) for name, number in re.findall(r"#define __NR_(\w+)\s+(\d+)", words)}
    column = list(system_calls.AUDIT).index(machine)
    ours = {
        **system_calls.FREE,
        **system_calls.FILTERED,
        **system_calls.STARTER,
        **{name: pair for name, (pair, _) in system_calls.OTHERWISE.items()},
        **{name: one[:2] for name, one in CALLS.items() if name in known},
    }
    wrong = {name: pair[column] for name, pair in ours.items() if pair[column] != known.get(name, -1)}
    assert {name: one for name, one in wrong.items() if name in known or one >= 0 and name not in CALLS} == {}


def decided(code, audit, number, arguments=()):
    """Return the decision of a seccomp program about a call, as the kernel would decide."""
    steps = list(struct.iter_unpack("=HBBI", code))
    data = struct.pack("=IIQ6Q", number, audit, 0, *(*arguments, *[0] * 6)[:6])
    place, register = 0, 0
    while True:
        kind, yes, no, value = steps[place]
        place += 1
        if kind == system_calls.RETURN:
            return value
        if kind == system_calls.LOAD:
            (register,) = struct.unpack_from("=I", data, value)
            continue
        true = {
            system_calls.EQUAL: register == value,
            system_calls.AT_LEAST: register >= value,
            system_calls.BITS: bool(register & value),
        }[kind]
        place += yes if true else no


def test_phase_is_refused_at_its_start_without_a_sandbox(monkeypatch):
    monkeypatch.setattr(jail, "kind", lambda: "")
    monkeypatch.setattr(kernel, "abi", lambda: 0)
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(Refused, match="landlock: the kernel has no Landlock.*bubblewrap: bwrap is not installed"):
        judge_of("mbpp", RlConfig())
    judge_of("mbpp", RlConfig(unsafe_rewards=True)).close()


def test_leaking_sandbox_is_not_used(monkeypatch):
    assert jail.problem("landlock") == "" == jail.problem("landlock", 1)
    monkeypatch.setattr(jail, "PROBE", "seen = ['a socket']")
    assert jail.problem("landlock") == "the jail lets a socket through"
    monkeypatch.setattr(jail, "PROBE", "1 / 0")
    assert "ZeroDivisionError" in jail.problem("landlock")
