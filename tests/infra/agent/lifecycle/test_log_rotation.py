"""An endlessly growing log is rotated on the pod, while the step continues to write."""

import os
import subprocess
import sys

import pytest

from flows.reading.logs import choose
from infra.agent.execution.steps import read_log_end, tail
from infra.agent.job import PodFolder
from infra.agent.lifecycle import log_rotation
from infra.ledger.op import Op
from infra.runs.run_home import RunHome
from infra.runs.sync import mirror
from infra.transport.protocol import ThisMachine
from scripts.runs.logs import catch_up
from tests.infra.agent.world import World, module
from tests.programs import source

pytestmark = pytest.mark.process

COUNT = """
import os, sys
for number in range(200_000):
    os.write(1, b"%06d and what else stands in a line\\n" % number)
"""


@pytest.fixture
def pod(tmp_path) -> PodFolder:
    found = PodFolder(tmp_path / "pod")
    found.logs.mkdir(parents=True)
    return found


def test_an_endlessly_printing_step_continues_in_a_new_log(world: World) -> None:
    world.program("print_much", source("print_much"))
    world.job(module("print_much"))
    world.start()
    assert world.verdict()["state"] == "succeeded"
    log, part = world.pod.log("print_much"), world.pod.log("print_much.1")
    assert log.read_text().splitlines()[-1] == "after the rotation"
    assert part.stat().st_size >= log_rotation.LOG_BYTES > log.stat().st_size
    assert part.stat().st_mode & 0o077 == 0


def test_rotation_during_writes_keeps_every_line_whole_and_in_order(pod: PodFolder) -> None:
    log, seen = pod.log("train"), list[int]()
    with open(log, "ab") as file:
        writer = subprocess.Popen([sys.executable, "-c", COUNT], stdout=file)
    while writer.poll() is None:
        log_rotation.rotate(pod, 500_000)
        if pod.log("train.1").exists():
            lines = pod.log("train.1").read_bytes().splitlines(keepends=True)
            assert all(line.endswith(b" in a line\n") for line in lines)
            seen += [int(line[:6]) for line in lines if not seen or int(line[:6]) > seen[-1]]
            assert seen == sorted(seen)
    rest = [int(line[:6]) for line in log.read_bytes().splitlines()]
    assert len(seen) > 10_000 and rest == list(range(200_000 - len(rest), 200_000))
    assert not rest or rest[0] > seen[-1]


def test_rotation_keeps_times_and_the_lines_of_earlier_pods(pod: PodFolder) -> None:
    earlier = pod.state / "earlier"
    earlier.mkdir(parents=True)
    (earlier / "train.log").write_text("zero\n")
    (earlier / "train.1.log").write_text("older than all\n")
    pod.log("train").write_text("one\n" * 10)
    pod.log("train").with_suffix(".times").write_text("1.0 40\n")
    pod.log("eval").write_text("short\n")
    log_rotation.rotate(pod, 40)
    assert {one.name: one.read_text() for one in pod.logs.iterdir()} == {
        "train.log": "",
        "train.1.log": "one\n" * 10,
        "train.1.times": "1.0 40\n",
        "eval.log": "short\n",
    }
    assert {one.name: one.read_text() for one in earlier.iterdir()} == {"train.1.log": "zero\n"}
    assert tail(pod, "train").splitlines() == ["one"] * 10


def test_rotation_keeps_whole_last_lines_of_a_fast_growing_log(pod: PodFolder) -> None:
    pod.log("train").write_text("".join(f"{number:04d}\n" for number in range(1000)))
    pod.log("train").with_suffix(".times").write_text("1.0 5000\n")
    log_rotation.rotate(pod, 501)
    lines = pod.log("train.1").read_text().split()
    assert lines == [f"{number:04d}" for number in range(900, 1000)]
    assert sorted(os.listdir(pod.logs)) == ["train.1.log", "train.log"]


@pytest.mark.pack("skypilot")
def test_copies_and_readers_follow_a_log_through_rotation(pod: PodFolder, tmp_path, capsys) -> None:
    from packs.skypilot.agent.managed import LogRelay

    op, home = Op(token="sw1-test", run="a-1", vendor="ssh", address=str(pod.root)), RunHome(tmp_path / "home")
    here, relay = home.pod.log("train"), LogRelay(pod)
    pod.log("train").write_text("".join(f"one {number}\n" for number in range(100)))
    mirror.bring_logs(op, ThisMachine(), home)
    offset = catch_up(here, 0, is_last=False)
    relay.print_lines()
    first, _ = capsys.readouterr()
    with pod.log("train").open("a") as file:
        file.write("two\n")
    log_rotation.rotate(pod, 500)
    with pod.log("train").open("a") as file:
        file.write("three\n")
    mirror.bring_logs(op, ThisMachine(), home)
    assert catch_up(here, offset, is_last=True) == len("three\n")
    relay.print_lines(is_last=True)
    assert capsys.readouterr().out == "two\nthree\ntrain | two\ntrain | three\n"
    assert first.count("one 99") == 2
    assert [one.name for one in choose(home.pod.logs, op, "train", False)] == ["train.1.log", "train.log"]
    assert read_log_end(here).endswith(b"one 99\ntwo\nthree\n")  # the lines of `why`
    assert here.read_text() == "three\n" and home.pod.log("train.1").read_text().endswith("one 99\ntwo\n")
