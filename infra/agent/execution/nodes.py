"""Coordination of the nodes of a multi-node run: node 0 decides, the other nodes follow.

Before a joint step every node reports that it is ready. Node 0 then announces a round, in which each node runs the step
once. A node that fails, falls silent or restarts ends the round on all nodes, and a new round begins when all nodes are
ready again. A step counts as done only when node 0 has done the step, because node 0 holds the results.

Several times per second every other node sends its state to node 0 as a line of JSON, and receives the current decision
as a line of JSON. Node 0 listens only on the address that the other nodes use, and answers only callers with the key of
the run.

A node that stays silent is lost, and every verdict records the loss (state `lost` and the rank); the supervisor of the
run then restarts the run on other machines. No command can stop processes on a lost machine, so each node stops by
itself: a node that cannot reach node 0, and node 0 when any node is unreachable, ends its part of the round after
`silent_s` and cannot begin a new round. `return_s` is at least the longest duration of this shutdown, so that no old
node trains once a node is declared lost. A step that a node runs alone may continue on a lost machine, because such a
step writes only to local files.
"""

import hmac
import json
import os
import secrets
import socket
import socketserver
import threading
import time
from dataclasses import dataclass
from functools import partial
from typing import Any, Callable, Dict, Optional, Union

from infra.agent import untrusted_json
from infra.agent.amounts import duration
from infra.agent.execution.steps import LEAVE_S, RESUME_ME, AttemptOutcome, describe_failure
from infra.agent.job import NodeGroup, Step
from infra.agent.shortage import retry_shortages
from infra.agent.state import NODE_LOST, AgentError, say

TALK_EVERY_S = 0.3
ANSWER_S = 3.0
LINE_BYTES = 1 << 20
POLL_S = 0.05
LINGER_S = 10.0  # time for the other nodes to receive the outcome from node 0
KILL_S = 2.0  # time for the kernel to end killed processes
# Longest time, beyond `silent_s`, from the last answered line of a node to the end of the other side's part of the
# round. Clocks are not compared: both sides count from the same line, and the sender starts counting before node 0 can
# receive the line. Node 0 may last have heard a later line whose answer was lost, sent up to TALK_EVERY_S + ANSWER_S
# after the last answered line.
CUT_OFF_S = TALK_EVERY_S + ANSWER_S + LEAVE_S + KILL_S


def silent_s() -> float:
    """Return the seconds of silence of a node after which the round ends (`SLIPWAY_NODE_SILENT_S`, default 10)."""
    return float(os.environ.get("SLIPWAY_NODE_SILENT_S", "10"))


def return_s() -> float:
    """Return the seconds of silence after which a node is lost (`SLIPWAY_NODE_RETURN_S`, default 60).

    Silence counts from the last message, or from the start of the wait. The result is never so short that a
    disconnected node could still be training.
    """
    return max(float(os.environ.get("SLIPWAY_NODE_RETURN_S", "60")), silent_s() + CUT_OFF_S)


@dataclass(frozen=True)
class StepOutcome:
    """The outcome of a step on all nodes; `state` is done, or the state of the coming verdict."""

    state: str
    reason: str = ""
    exit_code: Optional[int] = None
    result: Any = None  # result from node 0
    lost: Optional[int] = None  # rank of the lost node


@dataclass(frozen=True)
class NodeCallbacks:
    """The callbacks with which a node runs a step."""

    # run the step once, until the step ends or the argument returns a reason to end
    attempt: Callable[[Callable[[], str]], AttemptOutcome]
    is_stop_requested: Callable[[], bool]
    wait: Callable[[str], None]  # wait a moment; the argument says for which node


def environ_of(group: NodeGroup, num_gpus: int) -> Dict[str, str]:
    """Return the environment variables about the nodes for a step, also under SkyPilot's names."""
    ips = "\n".join(group.addresses or ("127.0.0.1",))
    facts = {"NODE_RANK": str(group.rank), "NUM_NODES": str(len(group.addresses) or 1), "NODE_IPS": ips}
    environ = {f"{maker}_{key}": value for maker in ("SLIPWAY", "SKYPILOT") for key, value in facts.items()}
    environ["SKYPILOT_NUM_GPUS_PER_NODE"] = str(num_gpus)
    if group.addresses:
        environ.update({"MASTER_ADDR": group.addresses[0], "MASTER_PORT": str(group.port)})
    if group.interface:
        environ.update({"GLOO_SOCKET_IFNAME": group.interface, "NCCL_SOCKET_IFNAME": group.interface})
    return environ


class Leader:
    """Node 0: collects the states of the other nodes and announces the decisions."""

    def __init__(self, group: NodeGroup) -> None:
        self.group = group
        self.announcement: Dict[str, Any] = {"step": "", "round": "", "done": {}, "end": None}
        self.others = {rank: _Other(self._name(rank)) for rank in range(1, len(group.addresses))}
        self.agent_ids: Dict[int, str] = {}  # ids of the agents in the round, by rank
        self.why = ""  # reason for the end of the last round
        self.server = _listen(group, self._receive_report)
        threading.Thread(target=self.server.serve_forever, args=(POLL_S,), daemon=True).start()

    def run(self, step: Step, here: NodeCallbacks) -> StepOutcome:
        """Run the step on all nodes, with up to `step.max_restarts` further rounds."""
        for _ in range(1 + step.max_restarts):
            problem = self._gather(step.name, here)
            if problem:
                return problem
            this_round = secrets.token_hex(4)
            self.agent_ids = {rank: other.report["life"] for rank, other in self.others.items()}
            self.why = ""
            self._announce(step=step.name, round=this_round)
            ending = here.attempt(partial(self._round_end_reason, this_round))
            if ending.stop_reason == "" and ending.exit_code == 0:
                if not step.everywhere:
                    return StepOutcome("done")
                stopped = self._wait_for_all(this_round, here)
                if stopped or not self.why:
                    return stopped or StepOutcome("done")
            self._announce(round="")
            if ending.stop_reason == "stop":
                return StepOutcome("stopped", exit_code=ending.exit_code)
            failure = self._failure(step, this_round, ending)
            if failure:
                return failure
            say(f"{step.name}: {self.why}; restarting the step on all nodes")
        return StepOutcome(
            "failed", f"step {step.name} was cut off {1 + step.max_restarts} times; {self.why}", RESUME_ME
        )

    def announce_done(self, step: str, result: Any) -> None:
        """Announce the mark of a step, with the result of the step."""
        self._announce(round="", done={**self.announcement["done"], step: result})

    def close(self, state: str, reason: str, lost: Optional[int]) -> None:
        """Announce the end and wait up to LINGER_S seconds until the other nodes have heard the end or are silent."""
        reason = f"{self._name(0)}: {reason}" if reason else ""
        self._announce(round="", end={"state": state, "reason": reason, "lost": lost})
        deadline = time.monotonic() + LINGER_S
        while time.monotonic() < deadline and any(
            other.report["state"] != "over" and other.heard_at and not other.silence(silent_s())
            for other in self.others.values()
        ):
            time.sleep(POLL_S)

    def _gather(self, step: str, here: NodeCallbacks) -> Optional[StepOutcome]:
        """Wait until all other nodes are ready for the step; return an outcome if the step cannot run, else None."""
        self._announce(step=step, round="")
        since = time.monotonic()
        while True:
            if here.is_stop_requested():
                return StepOutcome("stopped")
            waiting = ""
            for rank, other in self.others.items():
                if other.report["state"] == "over":
                    return other.outcome()
                silence = other.silence(return_s(), since)
                if silence:
                    return StepOutcome(NODE_LOST, f"{silence}{f'; before, {self.why}' if self.why else ''}", lost=rank)
                is_ready = (other.report["state"], other.report.get("step")) == ("ready", step)
                if not is_ready or other.silence(silent_s()):  # the node may have fallen silent after reporting ready
                    waiting = f"waiting for {other.name}"
            if not waiting:
                return None
            here.wait(waiting)

    def _wait_for_all(self, this_round: str, here: NodeCallbacks) -> Optional[StepOutcome]:
        """Wait until every other node has finished the round or `why` is set.

        Returns an outcome only after a stop request.
        """
        while not self._round_end_reason(this_round):
            ended = {"state": "ended", "round": this_round}
            left = [one.name for one in self.others.values() if not ended.items() <= one.report.items()]
            if not left:
                return None
            if here.is_stop_requested():
                return StepOutcome("stopped")
            here.wait(f"waiting for {', '.join(left)}")
        return None

    def _round_end_reason(self, this_round: str) -> str:
        """Return the reason to end the round, or ""."""
        for rank, other in self.others.items():
            said = other.report
            if said["state"] == "over":
                self.why = f"{other.name} is {said['end']['state']}"
            elif other.silence(silent_s()):
                self.why = other.silence(silent_s())
            elif said.get("round") == this_round and said.get("code", 0) != 0:
                self.why = f"{other.name} ended with exit code {said['code']}"
            elif said["life"] != self.agent_ids[rank]:
                self.why = f"the agent of {other.name} restarted"
            if self.why:
                return self.why
        return ""

    def _failure(self, step: Step, this_round: str, ending: AttemptOutcome) -> Optional[StepOutcome]:
        """Return an outcome if no further round can help, or None to begin a new round.

        Waits until the other nodes have left the current round.
        """
        stopped, code = ending.stop_reason, ending.exit_code
        if stopped == "timeout" or (stopped == "" and code > 0 and code != RESUME_ME):
            return StepOutcome("failed", describe_failure(ending, step), ending.exit_code)
        self.why = (
            self.why or f"{self._name(0)} {'fell silent' if ending.stop_reason else f'left with {ending.exit_code}'}"
        )
        for rank, other in self.others.items():
            while other.report.get("round") == this_round and other.report["state"] == "running":
                if other.silence(silent_s()):
                    break
                time.sleep(POLL_S)
            said = other.report
            if said["state"] == "over":
                return other.outcome()
            if said.get("round") == this_round and said.get("code", 0) > 0 and said["code"] != RESUME_ME:
                words = f"step {step.name} failed with exit code {said['code']} on {other.name}"
                return StepOutcome("failed", f"{words}; see the logs of {self.group.run}.{rank}", said["code"])
        return None

    def _announce(self, **what: Any) -> None:
        self.announcement = {**self.announcement, **what}

    def _receive_report(self, line: bytes) -> Optional[bytes]:
        """Record the report of a node and return the answer, or None for an invalid report or a wrong key."""
        said = untrusted_json.parse(line)
        if not isinstance(said, dict) or not isinstance(said.get("key"), str) or type(said.get("rank")) is not int:
            return None
        if not hmac.compare_digest(said["key"].encode("utf-8", "replace"), self.group.key.encode()):
            return None
        if said["rank"] not in self.others or not said.keys() >= {"state", "life"}:
            return None
        other = self.others[said["rank"]]
        other.report, other.heard_at = said, time.monotonic()
        return json.dumps(self.announcement).encode()

    def _name(self, rank: int) -> str:
        return name_of(self.group, rank)


class _Other:
    """The state of a node other than 0, as known to node 0."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.report: Dict[str, Any] = {"state": "unheard"}
        self.heard_at = 0.0

    def silence(self, limit_s: float, since: float = 0.0) -> str:
        return silence(self.name, max(self.heard_at, since), limit_s)

    def outcome(self) -> StepOutcome:
        end = self.report["end"]
        return StepOutcome(end["state"], f"{self.name}: {end['reason'] or end['state']}", lost=end["lost"])


class Follower:
    """A node other than 0: reports its state and follows the decisions of node 0."""

    def __init__(self, group: NodeGroup) -> None:
        self.group = group
        self.agent_id = secrets.token_hex(4)  # identifies this agent process; a restarted agent gets a new id
        self.report: Dict[str, Any] = {"state": "busy"}
        self.announcement: Dict[str, Any] = {"step": "", "round": "", "done": {}, "end": None}
        self.heard_at = time.monotonic()
        self.is_acknowledged = threading.Event()  # set when node 0 has answered the latest report
        threading.Thread(target=self._exchange_loop, daemon=True).start()

    def run(self, step: Step, here: NodeCallbacks) -> StepOutcome:
        """Run the step in every round that node 0 announces; return the outcome."""
        last = ""
        while True:
            self._set_report(state="ready", step=step.name)
            outcome = self._wait(step.name, here, partial(self._has_round_begun, step.name, last))
            if outcome:
                return outcome
            last = self.announcement["round"]
            self._set_report(state="running", step=step.name, round=last)
            ending = here.attempt(partial(self._round_end_reason, last))
            code = (
                ending.exit_code
                if ending.stop_reason in ("", "stop")
                else 1
                if ending.stop_reason == "timeout"
                else RESUME_ME
            )
            self._set_report(state="ended", step=step.name, round=last, code=code)
            if ending.stop_reason == "stop":
                return StepOutcome("stopped", exit_code=ending.exit_code)
            outcome = self._wait(step.name, here, partial(self._is_over, last))
            if outcome:
                return outcome

    def announce_done(self, step: str, result: Any) -> None:
        """Do nothing: node 0 does not need the result of this node."""

    def close(self, state: str, reason: str, lost: Optional[int]) -> None:
        """Report the end and wait up to `silent_s()` seconds for the answer of node 0."""
        self._set_report(state="over", end={"state": state, "reason": reason, "lost": lost})
        self.is_acknowledged.wait(silent_s())

    def _wait(self, step: str, here: NodeCallbacks, truth: Callable[[], bool]) -> Optional[StepOutcome]:
        """Wait until `truth` holds and return None; return the outcome if the step is done or cannot continue."""
        while True:
            word = self.announcement
            if here.is_stop_requested():
                return StepOutcome("stopped")
            if step in word["done"]:
                return StepOutcome("done", result=word["done"][step])
            if word["end"]:
                return StepOutcome(word["end"]["state"], word["end"]["reason"], lost=word["end"]["lost"])
            if truth():
                return None
            gone = self._silence(return_s())
            if gone:
                return StepOutcome(NODE_LOST, gone, lost=0)
            here.wait(f"waiting for {name_of(self.group, 0)}")

    def _has_round_begun(self, step: str, last: str) -> bool:
        word = self.announcement
        return word["step"] == step and word["round"] not in ("", last)

    def _is_over(self, this_round: str) -> bool:
        return self.announcement["round"] != this_round

    def _round_end_reason(self, this_round: str) -> str:
        if self._is_over(this_round):
            return f"{name_of(self.group, 0)} has ended the round"
        return self._silence(silent_s())

    def _silence(self, limit_s: float) -> str:
        return silence(name_of(self.group, 0), self.heard_at, limit_s)

    def _set_report(self, **said: Any) -> None:
        self.is_acknowledged.clear()
        self.report = said

    def _exchange_loop(self) -> None:
        """Exchange reports with node 0 forever, and reconnect after errors."""
        while True:
            try:
                with (
                    socket.create_connection(
                        (self.group.addresses[0], self.group.words_port), timeout=ANSWER_S
                    ) as link,
                    link.makefile("rb") as answers,
                ):
                    while self._exchange(link, answers):
                        time.sleep(TALK_EVERY_S)
            except (OSError, ValueError, MemoryError):  # node 0 is unreachable; `silence` measures for how long
                pass
            time.sleep(TALK_EVERY_S)

    def _exchange(self, link: socket.socket, answers: Any) -> bool:
        said, began = self.report, time.monotonic()
        whole = {"key": self.group.key, "rank": self.group.rank, "life": self.agent_id, **said}
        link.sendall(json.dumps(whole).encode() + b"\n")
        answer = answers.readline(LINE_BYTES)
        if not answer:
            return False
        word = untrusted_json.parse(answer)
        if not isinstance(word, dict) or not word.keys() >= self.announcement.keys():
            raise ValueError("node 0 sent an unexpected answer")
        self.announcement = word
        # the time before sending: node 0 counts from the receipt of the line, and must not count from an earlier time
        self.heard_at = began
        if said is self.report:
            self.is_acknowledged.set()
        return True


Nodes = Union[Leader, Follower]


def nodes_of(group: NodeGroup) -> Optional[Nodes]:
    """Return the coordinator of this node, or None for a single-node run. Raises AgentError if node 0 cannot listen."""
    if len(group.addresses) < 2:
        return None
    return Leader(group) if group.rank == 0 else Follower(group)


def name_of(group: NodeGroup, rank: int) -> str:
    return f"node {rank} ({group.addresses[rank]})"


def silence(name: str, heard_at: float, limit_s: float) -> str:
    """Return the reason why a node counts as silent, or ""."""
    passed_s = time.monotonic() - heard_at
    return f"{name} has not answered for {duration(passed_s)}" if passed_s > limit_s else ""


def _listen(group: NodeGroup, hear: Callable[[bytes], Optional[bytes]]) -> socketserver.ThreadingTCPServer:
    class Conversation(socketserver.StreamRequestHandler):
        timeout = 2 * ANSWER_S

        def handle(self) -> None:
            try:
                for line in iter(lambda: self.rfile.readline(LINE_BYTES), b""):
                    answer = hear(line)
                    if answer is None:
                        return
                    self.wfile.write(answer + b"\n")
            except (OSError, ValueError):  # a broken connection or a foreign protocol; the node may reconnect
                return

    class Server(socketserver.ThreadingTCPServer):
        allow_reuse_address = True
        daemon_threads = True

    try:
        return retry_shortages(Server)((group.addresses[0], group.words_port), Conversation)
    except OSError as error:
        raise AgentError(f"{name_of(group, 0)} cannot listen on port {group.words_port}: {error}") from error
