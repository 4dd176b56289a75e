"""Logs of a run: by time, by step, by error; followed over a connection that breaks repeatedly."""

import json
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from infra.agent.job import Job, Step
from infra.ledger.journal import Journal
from infra.machines.host_memory import HostMemory
from infra.machines.inventory import load
from infra.providers.local import Local
from infra.providers.ssh import SshPools
from infra.records import Plan, Request
from infra.runs import observation
from infra.transport.ssh import Ssh
from scripts.runs.logs import shares, start, write
from tests.loopback import loopback
from tests.street import launch_on
from tests.world import ROOT, World, until

COUNT = """
import time, pathlib
number = 0
while not pathlib.Path("GO").exists():
    number += 1
    print(number, "ünïcödé" * 20, flush=number % 7 == 0)
    if number % 500 == 0:
        time.sleep(0.05)
print("the end")
"""


@pytest.mark.process
def test_following_loses_and_repeats_no_byte_over_broken_connections(tmp_path):
    world = World(tmp_path, {"SLIPWAY_POOLS": str(tmp_path / "pools.yaml")})
    code = tmp_path / "checkout"
    shutil.copytree(ROOT / "infra", code / "infra", ignore=shutil.ignore_patterns("__pycache__"))
    (code / "count.py").write_text(COUNT)
    with loopback(tmp_path / "box") as host:
        machine = {"ip": host.address.host, "port": host.address.port, "python": sys.executable}
        pool = {"user": host.address.user, "identity_file": host.address.key, "hosts": [machine]}
        (tmp_path / "pools.yaml").write_text(json.dumps({"box": pool}))
        with (
            Journal.open(world.environ["SLIPWAY_STATE_FILE"], world.environ) as journal,
            Ssh(
                host.address, tmp_path / "state" / "known_hosts" / f"box_{host.address.host}:{host.address.port}"
            ) as link,
        ):
            link.python = sys.executable
            vendor = SshPools(load(tmp_path / "pools.yaml").hosts, lambda _: link, HostMemory(tmp_path / "hosts.json"))
            job = Job("", "", (Step(name="count", words=("count.py",)),))
            plan = Plan(
                target="t", store=str(tmp_path / "artifacts"), artifacts=(), job=job, request=Request(run="a-1")
            )
            op = launch_on(vendor, plan, journal, code, print)
            link.close()
            heard = tmp_path / "heard"
            with heard.open("wb") as out:
                follow = subprocess.Popen(
                    [sys.executable, "-m", "invoke", "logs", "a-1", "--follow"],
                    cwd=ROOT,
                    env=world.environ,
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                )
            try:
                for _ in range(10):
                    before = heard.stat().st_size
                    until(partial(is_longer, heard, before), "more of the log", 120)
                    until(host.kill_sessions, "a session to kill", 120)
                (observation.folder_of(op).code / "GO").touch()
                assert follow.wait(120) == 0
                written = observation.folder_of(op).log("count").read_bytes()
                assert heard.read_bytes() == written
                assert (tmp_path / "runs" / "a-1" / "pod" / "logs" / "count.log").read_bytes() == written
                assert written.endswith(b"the end\n")
            finally:
                follow.kill()
                follow.wait()
                world.inv("down", "--all")


TALK = """
import json, os, pathlib, time
while not pathlib.Path("GO").exists():
    record = {"kind": "progress", "at": time.time(), "done": 5, "total": 10, "unit": "steps", "loss": 2.5, "eta_s": 70}
    with open(os.environ["SLIPWAY_RECORDS"], "a") as file:
        file.write(json.dumps(record) + "\\n")
    time.sleep(0.1)
print("the end")
"""


@pytest.mark.process
def test_following_a_step_without_a_log_shows_its_current_work(tmp_path):
    world = World(tmp_path)
    code = tmp_path / "checkout"
    shutil.copytree(ROOT / "infra", code / "infra", ignore=shutil.ignore_patterns("__pycache__"))
    (code / "talk.py").write_text(TALK)
    with Journal.open(world.environ["SLIPWAY_STATE_FILE"], world.environ) as journal:
        job = Job("", "", (Step(name="talk", words=("talk.py",)),))
        plan = Plan(target="t", store=str(tmp_path / "artifacts"), artifacts=(), job=job, request=Request(run="a-1"))
        op = launch_on(Local(tmp_path / "pods"), plan, journal, code, print)
    folder = observation.folder_of(op)
    try:
        until(lambda: folder.progress.exists() and b"loss" in folder.progress.read_bytes(), "its figures")
        follow = world.begin("logs", "--follow")
        said = follow.stderr.readline()
    finally:
        (folder.code / "GO").touch()
    out, err = follow.communicate(timeout=60)
    assert follow.returncode == 0 and out == "the end\n"
    assert "▸ talk" in said and "50 % of 10 steps, loss 2.500, 1 min 10 s left" in said
    assert [line.split()[1:3] for line in err.splitlines()] == [["✓", "talk"], ["succeeded"]]


def is_longer(path: Path, before: int) -> bool:
    return path.stat().st_size > before


@pytest.fixture
def log(tmp_path):
    (tmp_path / "base.log").write_text("one\ntwo\nthree\n")
    # The last line is still being written.
    (tmp_path / "base.times").write_text("100.0 0\n110.0 4\n150.0 10\n200.0 14\n201.0 ")
    return tmp_path / "base.log"


@pytest.mark.parametrize(("after", "shown"), [(90, "one"), (105, "one"), (115, "two"), (160, "two"), (250, "")])
def test_lines_are_dated_by_the_records_of_the_agent(log, after, shown):
    content = log.read_bytes()
    if after == 160:  # A line with an older part is shown whole.
        shown = "three"
    assert content[start(log, after) :].decode().partition("\n")[0] == shown


def test_stamped_lines_are_dated_by_their_stamps(tmp_path, capsys):
    path = tmp_path / "guard.log"
    path.write_text("1970-01-01T00:01:40Z armed\nand more\n1970-01-01T00:03:20Z ended\n")
    assert path.read_text()[start(path, 150) :] == "1970-01-01T00:03:20Z ended\n"
    assert start(path, 300) == len(path.read_text())
    path = tmp_path / "old.log"
    path.write_text("who knows\n")
    assert start(path, 300) == 0 and "has no timestamps" in capsys.readouterr().err


@pytest.mark.nightly
@pytest.mark.process
def test_recent_lines_are_the_lines_that_the_agent_saw_recently(tmp_path):
    world = World(tmp_path)
    with Journal.open(world.environ["SLIPWAY_STATE_FILE"], world.environ) as journal:
        code = tmp_path / "checkout"
        shutil.copytree(ROOT / "infra", code / "infra", ignore=shutil.ignore_patterns("__pycache__"))
        (code / "talk.py").write_text(
            "import pathlib, time\nprint('early', flush=True)\n"
            "while not pathlib.Path('GO').exists(): time.sleep(0.05)\n"
            "print('late')\nprint('last')\nraise SystemExit(3)\n"
        )
        job = Job("", "", (Step(name="talk", words=("talk.py",)),))
        plan = Plan(target="t", store=str(tmp_path / "artifacts"), artifacts=(), job=job, request=Request(run="a-1"))
        op = launch_on(Local(tmp_path / "pods"), plan, journal, code, print)
    folder = observation.folder_of(op)
    until(lambda: (folder.logs / "talk.times").exists(), "the early line is noted")
    times = folder.logs / "talk.times"
    at, size = until(times.read_text, "the early line is noted").split()[:2]
    times.write_text(f"{float(at) - 3600} {size}\n")  # The log has become old: a command may need seconds to start.
    (folder.code / "GO").touch()
    until(folder.verdict.exists, "the end")
    assert world.inv("logs", "a-1") == "early\nlate\nlast\n"
    assert world.inv("logs", "a-1", "--since", "2h") == "early\nlate\nlast\n"
    assert world.inv("logs", "a-1", "--since", "30m") == "late\nlast\n"
    assert world.inv("logs", "a-1", "--since", "30m", "--file", "talk", "--tail", "1") == "last\n"
    assert "run a-1, step talk" in world.inv("logs", "a-1", "--errors", "--since", "1h", "--file", "talk")
    assert world.inv("logs", "a-1", "--errors", "--file", "other") == ""
    world.inv("down", "--all")


@pytest.mark.parametrize(
    ("tail", "shown"),
    [(None, "a\nb\nc\nd"), (0, ""), (1, "d"), (2, "c\nd"), (3, "b\nc\nd"), (9, "a\nb\nc\nd")],
)
def test_tail_counts_lines_of_the_run_and_not_of_each_step(tmp_path, capsys, tail, shown):
    begins = {tmp_path / name: 0 for name in ("environment.log", "not-yet.log", "base.log")}
    (tmp_path / "environment.log").write_text("a\nb\n")
    (tmp_path / "base.log").write_text("c\f\nd")
    most = shares(begins, tail)
    for path, at in begins.items():
        write(path, at, most.get(path))
    assert capsys.readouterr().out == shown


def test_incomplete_utf_8_character_waits_for_its_remaining_bytes(tmp_path, capsys):
    path = tmp_path / "base.log"
    path.write_bytes("é".encode()[:1])
    offset = write(path, 0, is_last=False)
    path.write_bytes("é\n".encode())
    assert (offset, write(path, offset, is_last=False)) == (0, 3)
    assert capsys.readouterr().out == "é\n"
