"""Nodes that run a step together: common start, common failure, common resume, and reports of missing nodes."""

import signal
import socket
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from infra.agent.execution import nodes, steps
from infra.agent.job import Job, NodeGroup, Step
from infra.agent.process import find, send
from tests.infra.agent.world import World, module, until
from tests.programs import source

pytestmark = pytest.mark.process

QUICK = {"SLIPWAY_NODE_SILENT_S": "2", "SLIPWAY_NODE_RETURN_S": "4"}
MEMBER = source("member")


class Pair:
    """Two nodes on loopback."""

    def __init__(self, root: Path, step: Step) -> None:
        self.nodes = [World(root / str(rank)) for rank in (0, 1)]
        ports = []
        for _ in range(2):
            with socket.create_server(("127.0.0.1", 0)) as free:
                ports.append(free.getsockname()[1])
        group = NodeGroup("brave-otter-1", 0, ("127.0.0.1", "127.0.0.1"), "lo", *ports, key="secret")
        for rank, node in enumerate(self.nodes):
            node.program("member", MEMBER)
            node.program("launcher", "import runpy, sys; sys.argv = ['', *sys.argv[1:]]; runpy.run_module('member')")
            node.job(step, group=replace(group, rank=rank))

    def start(self) -> None:
        for node in self.nodes:
            node.start(**QUICK)

    def until_both_run(self, times: int = 1) -> None:
        for node in self.nodes:
            until(lambda node=node: len(node.lines("ran.txt")) >= times, "it runs")

    def go(self, *codes: int) -> None:
        for node, code in zip(self.nodes, codes, strict=True):
            draft = node.pod.work / "draft"
            draft.write_text(str(code))
            draft.rename(node.pod.work / "go")

    def stay(self) -> None:
        for node in self.nodes:
            (node.pod.work / "go").unlink(missing_ok=True)

    def verdicts(self) -> list[dict[str, Any]]:
        return [node.verdict() for node in self.nodes]


def together(**more: Any) -> Step:
    return module("member", together=("-m", "launcher"), **more)


@pytest.fixture
def pair(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Pair]:
    one = Pair(tmp_path, together(**getattr(request, "param", {})))
    yield one
    for node in one.nodes:
        node.end()


def states(verdicts: list[dict[str, Any]]) -> list[str]:
    return [verdict["state"] for verdict in verdicts]


def test_both_nodes_begin_and_succeed_together(pair: Pair) -> None:
    pair.nodes[1].start(**QUICK)
    until(pair.nodes[1].pod.progress.exists, "progress")
    until(lambda: "waiting for node 0" in str(pair.nodes[1].progress()), "it waits")
    assert pair.nodes[1].lines("ran.txt") == []
    pair.nodes[0].start(**QUICK)
    pair.until_both_run()
    pair.go(0, 0)
    assert states(pair.verdicts()) == ["succeeded", "succeeded"]
    assert [node.lines("ran.txt") for node in pair.nodes] == [[f"-m member {rank} brave-otter-1"] for rank in (0, 1)]


NIGHTLY = [("step", 0), ("agent", 1), ("all", 0), ("all", 1)]


@pytest.mark.day_cases(1)
@pytest.mark.parametrize(
    ("what", "rank"), [("step", 1), ("agent", 0), *(pytest.param(*one, marks=pytest.mark.nightly) for one in NIGHTLY)]
)
def test_a_kill_on_one_node_restarts_the_round_on_both_nodes(pair: Pair, what: str, rank: int) -> None:
    pair.start()
    pair.until_both_run()
    began = time.monotonic()
    node = pair.nodes[rank]
    if what == "agent":
        node.kill("agent")
    elif what == "all":
        node.kill("guard", "agent")
        for one in node.members():
            send(one, signal.SIGKILL)
        node.start(**QUICK)
    else:
        kept = {node.living("guard").pid, node.living("agent").pid}
        for one in find(node.token):
            if one.pid not in kept:
                send(one, signal.SIGKILL)
    pair.until_both_run(2)
    assert time.monotonic() - began < 15
    pair.go(0, 0)
    assert states(pair.verdicts()) == ["succeeded", "succeeded"]


def test_a_final_failure_on_one_node_fails_both_and_names_the_node(pair: Pair) -> None:
    pair.start()
    pair.until_both_run()
    (pair.nodes[1].pod.work / "go").write_text("2")
    first, second = pair.verdicts()
    assert states([first, second]) == ["failed", "failed"]
    words = "step member failed with exit code 2 on node 1 (127.0.0.1); see the logs of brave-otter-1.1"
    assert (first["reason"], second["reason"]) == (words, f"node 0 (127.0.0.1): {words}")
    assert len(pair.nodes[0].lines("ran.txt")) == 1


@pytest.mark.parametrize("pair", [{"max_restarts": 1}], indirect=True)
def test_a_step_that_requests_a_restart_is_restarted_up_to_a_limit(pair: Pair) -> None:
    pair.start()
    pair.until_both_run()
    pair.go(75, 75)
    first, second = pair.verdicts()
    assert "was cut off 2 times" in first["reason"] and first["reason"] in second["reason"]
    assert len(pair.nodes[0].lines("ran.txt")) == 2


@pytest.mark.nightly
@pytest.mark.parametrize("rank", [0, 1])
def test_a_silent_node_ends_the_round_and_the_run_and_is_named(pair: Pair, rank: int) -> None:
    pair.start()
    pair.until_both_run()
    gone, left = pair.nodes[rank], pair.nodes[1 - rank]
    frozen = gone.members()
    for one in frozen:
        send(one, signal.SIGSTOP)
    try:
        until(lambda: len(left.members()) == 2, "the step has ended here", within_s=2 + 3 + 2)
        verdict = left.verdict()
    finally:
        for one in frozen:
            send(one, signal.SIGKILL)
    assert (verdict["state"], verdict["lost"]) == ("lost", rank)
    assert f"node {rank} (127.0.0.1) has not answered for" in verdict["reason"]


@pytest.mark.nightly
def test_a_node_that_falls_silent_after_ready_is_lost_before_the_round(tmp_path: Path) -> None:
    """Node 0 still works alone; its last information is that node 1 is ready."""
    pair = Pair(tmp_path, together())
    alone = "import os, time\nwhile not os.path.exists('go'): time.sleep(0.02)"
    for node in pair.nodes:
        node.program("alone", alone)
        job = Job.from_json(node.pod.job.read_text())
        node.pod.job.write_text(replace(job, steps=(module("alone"), *job.steps)).to_json())
    first, second = pair.nodes
    (second.pod.code / "go").touch()
    pair.start()
    until(second.pod.progress.exists, "progress")
    until(lambda: "waiting for node 0" in str(second.progress()), "it is ready")
    frozen = second.members()
    for one in frozen:
        send(one, signal.SIGSTOP)
    try:
        (first.pod.code / "go").touch()
        verdict = first.verdict()
    finally:
        for one in frozen:
            send(one, signal.SIGKILL)
        for node in pair.nodes:
            node.end()
    assert (verdict["state"], verdict["lost"]) == ("lost", 1)
    assert len(first.lines("ran.txt")) <= 1


def test_a_lost_node_had_time_to_end_its_own_work(monkeypatch: pytest.MonkeyPatch) -> None:
    for silent, back in (("10", "60"), ("5", "1"), ("300", "60")):
        monkeypatch.setenv("SLIPWAY_NODE_SILENT_S", silent)
        monkeypatch.setenv("SLIPWAY_NODE_RETURN_S", back)
        assert nodes.return_s() >= max(float(back), float(silent) + nodes.ANSWER_S + steps.LEAVE_S)


@pytest.mark.day_cases(1)
@pytest.mark.parametrize("rank", [0, pytest.param(1, marks=pytest.mark.nightly)])
def test_a_stopped_node_stops_the_other_nodes(pair: Pair, rank: int) -> None:
    pair.start()
    pair.until_both_run()
    assert pair.nodes[rank].call("stop")["stopped"]
    verdicts = pair.verdicts()
    assert states(verdicts) == ["stopped", "stopped"]
    assert f"node {rank} (127.0.0.1): asked to stop" in verdicts[1 - rank]["reason"]
    pair.start()
    pair.until_both_run(2)
    pair.go(0, 0)
    assert states(pair.verdicts()) == ["succeeded", "succeeded"]


def test_a_client_without_the_key_gets_no_answer(pair: Pair) -> None:
    pair.start()
    pair.until_both_run()
    port = int(pair.nodes[0].pod.job.read_text().split('"words_port": ')[1].split("\n")[0].strip(","))
    with socket.create_connection(("127.0.0.1", port), timeout=5) as link:
        link.sendall(b'{"key": "guess", "rank": 1, "state": "over", "end": {"state": "failed", "reason": ""}}\n')
        assert link.recv(100) == b""
    pair.go(0, 0)
    assert states(pair.verdicts()) == ["succeeded", "succeeded"]
