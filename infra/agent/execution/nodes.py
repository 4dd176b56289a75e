"""The coordination of the nodes of one run: node 0 decides, the others do as it says.

Before a step that runs on all of them every node says that it is ready; node 0 then names a round, in which each runs
the step once. A node that fails, falls silent or restarts ends the round on all of them, and another one begins when
all are ready again. Only what node 0 has done counts as done, since what was made lies there.

A few times a second every other node tells node 0 how it is, in one line of JSON, and hears in another what holds.
Node 0 listens on the one address by which the others reach it, and answers who knows the key of the run.

A node that stays silent is lost, and every verdict says so (state `lost`, and its rank): the run's supervisor then
restarts it on other machines. Nobody can end what the lost machine still runs, so silence itself must: whoever does not
hear node 0, and node 0 when it does not hear everybody, ends its part of the round after `silent_s`, and can begin no
other one. `return_s` is never shorter than what that takes at most, so that once a node is called lost, none of the old
nodes trains. A step that a node runs by itself may go on there: it writes on its own machine only.
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

from infra.agent import outside
from infra.agent.amounts import duration
from infra.agent.execution.steps import LEAVE_S, RESUME_ME, Ending, in_words
from infra.agent.job import NodeGroup, Step
from infra.agent.shortage import patient
from infra.agent.state import NODE_LOST, AgentError, say

TALK_EVERY_S = 0.3
ANSWER_S = 3.0
LINE_BYTES = 1 << 20
POLL_S = 0.05
LINGER_S = 10.0  # time for which node 0 waits until the others have heard the outcome
KILL_S = 2.0  # time that the kernel may take to end the killed processes of a step
# The time from a node's silence towards another one to the end of its own part of the round, beyond `silent_s`. Clocks
# are not compared: both begin with the same line, which a node sends before node 0 can hear it. The last line that node
# 0 has heard may be one that got no answer, sent so much later than the last one that did.
CUT_OFF_S = TALK_EVERY_S + ANSWER_S + LEAVE_S + KILL_S


def silent_s() -> float:
    """Return the seconds of silence of a node after which the round ends."""
    return float(os.environ.get("SLIPWAY_NODE_SILENT_S", "10"))


def return_s() -> float:
    """Return the seconds of silence, since it was last heard or first waited for, after which a node is lost.

    Never so soon that a node which was only cut off could still be training.
    """
    return max(float(os.environ.get("SLIPWAY_NODE_RETURN_S", "60")), silent_s() + CUT_OFF_S)


@dataclass(frozen=True)
class StepOutcome:
    """The outcome of a step on all nodes; `state` is done, or what the verdict will say."""

    state: str
    reason: str = ""
    exit_code: Optional[int] = None
    result: Any = None  # result of node 0
    lost: Optional[int] = None  # the rank of a node that was lost


@dataclass(frozen=True)
class Here:
    """The callbacks by which a node runs a step."""

    attempt: Callable[[Callable[[], str]], Ending]  # run it once, until it ends or the given function says why it must
    asked_to_stop: Callable[[], bool]
    wait: Callable[[str], None]  # waits a moment, saying for whom


def environ_of(group: NodeGroup, num_gpus: int) -> Dict[str, str]:
    """Return the variables that tell a step who the nodes are, also in SkyPilot's names."""
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
    """Node 0: it hears how every other node is, and tells all what holds."""

    def __init__(self, group: NodeGroup) -> None:
        self.group = group
        self.word: Dict[str, Any] = {"step": "", "round": "", "done": {}, "end": None}
        self.others = {rank: _Other(self._name(rank)) for rank in range(1, len(group.addresses))}
        self.lives: Dict[int, str] = {}  # lives of the agents that were ready for the round, by rank
        self.why = ""  # reason of the last round's end
        self.server = _listen(group, self._hear)
        threading.Thread(target=self.server.serve_forever, args=(POLL_S,), daemon=True).start()

    def run(self, step: Step, here: Here) -> StepOutcome:
        """Run the step on all nodes, as often as it takes."""
        for _ in range(1 + step.max_restarts):
            problem = self._gather(step.name, here)
            if problem:
                return problem
            this_round = secrets.token_hex(4)
            self.lives = {rank: other.said["life"] for rank, other in self.others.items()}
            self.why = ""
            self._tell(step=step.name, round=this_round)
            ending = here.attempt(partial(self._why_over, this_round))
            if ending.cut == "" and ending.exit_code == 0:
                if not step.everywhere:
                    return StepOutcome("done")
                stopped = self._wait_for_all(this_round, here)
                if stopped or not self.why:
                    return stopped or StepOutcome("done")
            self._tell(round="")
            if ending.cut == "stop":
                return StepOutcome("stopped", exit_code=ending.exit_code)
            failure = self._failure(step, this_round, ending)
            if failure:
                return failure
            say(f"{step.name}: {self.why}; once more on all nodes")
        return StepOutcome(
            "failed", f"step {step.name} was cut off {1 + step.max_restarts} times; {self.why}", RESUME_ME
        )

    def finished(self, step: str, result: Any) -> None:
        """Tell the others that the mark of a step is written, with its result."""
        self._tell(round="", done={**self.word["done"], step: result})

    def close(self, state: str, reason: str, lost: Optional[int]) -> None:
        """Close this node's part: stay until the others have heard that, or are silent."""
        reason = f"{self._name(0)}: {reason}" if reason else ""
        self._tell(round="", end={"state": state, "reason": reason, "lost": lost})
        deadline = time.monotonic() + LINGER_S
        while time.monotonic() < deadline and any(
            other.said["state"] != "over" and other.heard_at and not other.silence(silent_s())
            for other in self.others.values()
        ):
            time.sleep(POLL_S)

    def _gather(self, step: str, here: Here) -> Optional[StepOutcome]:
        """Wait until all others are ready for the step; the outcome when that will not be."""
        self._tell(step=step, round="")
        since = time.monotonic()
        while True:
            if here.asked_to_stop():
                return StepOutcome("stopped")
            waiting = ""
            for rank, other in self.others.items():
                if other.said["state"] == "over":
                    return other.outcome()
                silence = other.silence(return_s(), since)
                if silence:
                    return StepOutcome(NODE_LOST, f"{silence}{f'; before, {self.why}' if self.why else ''}", lost=rank)
                is_ready = (other.said["state"], other.said.get("step")) == ("ready", step)
                if not is_ready or other.silence(silent_s()):  # it may have said so, and then have fallen silent
                    waiting = f"waiting for {other.name}"
            if not waiting:
                return None
            here.wait(waiting)

    def _wait_for_all(self, this_round: str, here: Here) -> Optional[StepOutcome]:
        """Wait until every other node has done its part, or `why` says that it cannot; return None unless stopped."""
        while not self._why_over(this_round):
            ended = {"state": "ended", "round": this_round}
            left = [one.name for one in self.others.values() if not ended.items() <= one.said.items()]
            if not left:
                return None
            if here.asked_to_stop():
                return StepOutcome("stopped")
            here.wait(f"waiting for {', '.join(left)}")
        return None

    def _why_over(self, this_round: str) -> str:
        """Return why the round must end here, "" while it need not."""
        for rank, other in self.others.items():
            said = other.said
            if said["state"] == "over":
                self.why = f"{other.name} is {said['end']['state']}"
            elif other.silence(silent_s()):
                self.why = other.silence(silent_s())
            elif said.get("round") == this_round and said.get("code", 0) != 0:
                self.why = f"{other.name} ended with exit code {said['code']}"
            elif said["life"] != self.lives[rank]:
                self.why = f"the agent of {other.name} began anew"
            if self.why:
                return self.why
        return ""

    def _failure(self, step: Step, this_round: str, ending: Ending) -> Optional[StepOutcome]:
        """Return the outcome that makes another round pointless, on any node; None = begin another.

        Waits until all have left this one.
        """
        if ending.cut == "timeout" or ending.cut == "" and ending.exit_code > 0 and ending.exit_code != RESUME_ME:
            return StepOutcome("failed", in_words(ending, step), ending.exit_code)
        self.why = self.why or f"{self._name(0)} {'fell silent' if ending.cut else f'left with {ending.exit_code}'}"
        for rank, other in self.others.items():
            while other.said.get("round") == this_round and other.said["state"] == "running":
                if other.silence(silent_s()):
                    break
                time.sleep(POLL_S)
            said = other.said
            if said["state"] == "over":
                return other.outcome()
            if said.get("round") == this_round and said.get("code", 0) > 0 and said["code"] != RESUME_ME:
                words = f"step {step.name} failed with exit code {said['code']} on {other.name}"
                return StepOutcome("failed", f"{words}; see the logs of {self.group.run}.{rank}", said["code"])
        return None

    def _tell(self, **what: Any) -> None:
        self.word = {**self.word, **what}

    def _hear(self, line: bytes) -> Optional[bytes]:
        """Record the report of a node; return the answer, None for a caller without the key."""
        said = outside.parse(line)
        if not isinstance(said, dict) or not isinstance(said.get("key"), str) or type(said.get("rank")) is not int:
            return None
        if not hmac.compare_digest(said["key"].encode("utf-8", "replace"), self.group.key.encode()):
            return None
        if said["rank"] not in self.others or not said.keys() >= {"state", "life"}:
            return None
        other = self.others[said["rank"]]
        other.said, other.heard_at = said, time.monotonic()
        return json.dumps(self.word).encode()

    def _name(self, rank: int) -> str:
        return name_of(self.group, rank)


class _Other:
    """The state of another node, as node 0 knows it."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.said: Dict[str, Any] = {"state": "unheard"}
        self.heard_at = 0.0

    def silence(self, limit_s: float, since: float = 0.0) -> str:
        return silence(self.name, max(self.heard_at, since), limit_s)

    def outcome(self) -> StepOutcome:
        end = self.said["end"]
        return StepOutcome(end["state"], f"{self.name}: {end['reason'] or end['state']}", lost=end["lost"])


class Follower:
    """Any other node: it reports its state, and does what node 0 says."""

    def __init__(self, group: NodeGroup) -> None:
        self.group = group
        self.life = secrets.token_hex(4)  # another agent of this node is another one
        self.said: Dict[str, Any] = {"state": "busy"}
        self.word: Dict[str, Any] = {"step": "", "round": "", "done": {}, "end": None}
        self.heard_at = time.monotonic()
        self.is_heard = threading.Event()  # node 0 has answered to what was said last
        threading.Thread(target=self._talk, daemon=True).start()

    def run(self, step: Step, here: Here) -> StepOutcome:
        """Run the step on all nodes, as often as node 0 says."""
        last = ""
        while True:
            self._say(state="ready", step=step.name)
            outcome = self._wait(step.name, here, partial(self._begins, step.name, last))
            if outcome:
                return outcome
            last = self.word["round"]
            self._say(state="running", step=step.name, round=last)
            ending = here.attempt(partial(self._why_over, last))
            code = ending.exit_code if ending.cut in ("", "stop") else 1 if ending.cut == "timeout" else RESUME_ME
            self._say(state="ended", step=step.name, round=last, code=code)
            if ending.cut == "stop":
                return StepOutcome("stopped", exit_code=ending.exit_code)
            outcome = self._wait(step.name, here, partial(self._is_over, last))
            if outcome:
                return outcome

    def finished(self, step: str, result: Any) -> None:
        """Do nothing: it is of no interest to node 0."""

    def close(self, state: str, reason: str, lost: Optional[int]) -> None:
        """Close this node's part: stay until node 0 has heard that, or is silent."""
        self._say(state="over", end={"state": state, "reason": reason, "lost": lost})
        self.is_heard.wait(silent_s())

    def _wait(self, step: str, here: Here, truth: Callable[[], bool]) -> Optional[StepOutcome]:
        """Wait until `truth` holds; return the outcome when the step is done, or will not be."""
        while True:
            word = self.word
            if here.asked_to_stop():
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

    def _begins(self, step: str, last: str) -> bool:
        word = self.word
        return word["step"] == step and word["round"] not in ("", last)

    def _is_over(self, this_round: str) -> bool:
        return self.word["round"] != this_round

    def _why_over(self, this_round: str) -> str:
        if self._is_over(this_round):
            return f"{name_of(self.group, 0)} has ended the round"
        return self._silence(silent_s())

    def _silence(self, limit_s: float) -> str:
        return silence(name_of(self.group, 0), self.heard_at, limit_s)

    def _say(self, **said: Any) -> None:
        self.is_heard.clear()
        self.said = said

    def _talk(self) -> None:
        """Report, listen and pause for ever. A connection that breaks is made anew."""
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
            except (OSError, ValueError, MemoryError):  # nobody there, or no longer: silence() tells how long
                pass
            time.sleep(TALK_EVERY_S)

    def _exchange(self, link: socket.socket, answers: Any) -> bool:
        said, began = self.said, time.monotonic()
        whole = {"key": self.group.key, "rank": self.group.rank, "life": self.life, **said}
        link.sendall(json.dumps(whole).encode() + b"\n")
        answer = answers.readline(LINE_BYTES)
        if not answer:
            return False
        word = outside.parse(answer)
        if not isinstance(word, dict) or not word.keys() >= self.word.keys():
            raise ValueError("node 0 answers with something else")
        self.word = word
        self.heard_at = began  # not now: node 0 counts from when it heard the line, and must not count from earlier
        if said is self.said:
            self.is_heard.set()
        return True


Nodes = Union[Leader, Follower]


def nodes_of(group: NodeGroup) -> Optional[Nodes]:
    """Return this node's part; None for a run on one node. Raises AgentError when node 0 cannot listen."""
    if len(group.addresses) < 2:
        return None
    return Leader(group) if group.rank == 0 else Follower(group)


def name_of(group: NodeGroup, rank: int) -> str:
    return f"node {rank} ({group.addresses[rank]})"


def silence(name: str, heard_at: float, limit_s: float) -> str:
    """Return why a node counts as gone; "" while it does not."""
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
            except (OSError, ValueError):  # it broke off, or speaks something else; it may call again
                return

    class Server(socketserver.ThreadingTCPServer):
        allow_reuse_address = True
        daemon_threads = True

    try:
        return patient(Server)((group.addresses[0], group.words_port), Conversation)
    except OSError as error:
        raise AgentError(f"{name_of(group, 0)} cannot listen on port {group.words_port}: {error}") from error
