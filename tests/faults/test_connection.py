"""A connection that breaks at any stage of a launch: the job survives, or ends with a message."""

import os
import re
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from infra.agent.job import PodFolder, Step
from infra.agent.process import find
from infra.agent.state import acquire_lock, lock
from infra.errors import SlipwayError
from infra.ledger.journal import Journal
from infra.ledger.op import Op
from infra.providers.ssh import SshPools
from infra.runs import pods
from infra.runs.observation import follow
from infra.transport.ssh import Ssh
from tests.faults.trial import COUNT, SMALL, Counted, checkout, counted, environ, plan, provider_of, rounds
from tests.hosts import Host, descendants, hosts, until  # noqa: F401 (a fixture)
from tests.processes import command_line
from tests.street import launch_on

pytestmark = [pytest.mark.process, pytest.mark.nightly]

VERDICT_S = 25.0  # from the fault to the first message: three questions of 5 s, and sixteen launches on few CPUs
Break = Callable[[Host], Any]
KILLED = "sshd's session is killed"  # the fault after which a new connection works at once
FAULTS: dict[str, tuple[Break, Break]] = {  # ways to break and to mend
    KILLED: (Host.kill_sessions, lambda host: None),
    "sshd is frozen": (Host.freeze, Host.thaw),
    "the link is cut": (Host.cut, Host.restore),
    "a firewall resets": (lambda host: reset(host), Host.open_firewall),
}
STAGES = ("sync", "hand-over", "set-up", "follow")


def reset(host: Host) -> None:
    """Refuse all packets, and drop the answers in transit."""
    host.firewall("-p", "tcp", "!", "--tcp-flags", "RST", "RST", "-j", "DROP", chain="OUTPUT")
    host.firewall("-p", "tcp", "-j", "REJECT", "--reject-with", "tcp-reset")


class Fault:
    """A break of a host, with its time."""

    def __init__(self, host: Host, what: str) -> None:
        self.host, (self._break, self._mend) = host, FAULTS[what]
        self.at_s: float | None = None

    def strike(self) -> None:
        """Break the connection once; later calls do nothing."""
        if self.at_s is None:
            self.at_s = time.monotonic()
            self._break(self.host)

    @property
    def age_s(self) -> float:
        assert self.at_s is not None, "it never came"
        return time.monotonic() - self.at_s

    def mend(self) -> None:
        self._mend(self.host)


class Breaking(Ssh):
    """Breaks during the transfer of code, or while the guard is being armed."""

    def __init__(self, folder: Path, stage: str, fault: Fault, pod: PodFolder) -> None:
        super().__init__(fault.host.address, folder / "known_hosts")
        self.stage, self.fault, self.pod = stage, fault, pod

    def run(self, words: Any, *, stdin: Any = None, **more: Any) -> Any:
        if self.stage == "sync" and stdin is not None and "-ISX" in words:
            return super().run(words, stdin=self._cut(stdin), **more)
        if self.stage == "hand-over" and "start" in words and self.fault.at_s is None:
            turn = acquire_lock(lock(self.pod, "command"))
            with ThreadPoolExecutor(1) as threads:
                struck = threads.submit(self._strike_while_it_waits, turn)
                try:
                    return super().run(words, stdin=stdin, **more)
                finally:
                    struck.result()
        return super().run(words, stdin=stdin, **more)

    def _strike_while_it_waits(self, turn: Any) -> None:
        """Let the start run after the connection has broken."""
        server = self.fault.host.server
        assert server is not None
        until(lambda: any(is_start(pid) for pid in descendants(server.pid)), "a start that waits for its turn")
        self.fault.strike()
        os.close(turn)

    def _cut(self, pieces: Iterable[bytes]) -> Iterator[bytes]:
        sent = 0
        for piece in pieces:
            yield piece
            sent += len(piece)
            if sent > 1_000_000:
                self.fault.strike()


def is_start(pid: int) -> bool:
    return b"infra.agent\0start" in command_line(pid)


@rounds(1, 7)
def test_a_launch_survives_every_break_or_shows_the_next_command(hosts, tmp_path, rounds):  # noqa: F811
    """Run every fault at every stage at once, one host each."""
    cases = list(product(STAGES, FAULTS))
    root = checkout(tmp_path / "checkout", ballast_bytes=8_000_000)
    machines = hosts(len(cases))
    late = {}
    for number in range(rounds):
        with ThreadPoolExecutor(len(cases)) as threads:
            folders = [tmp_path / f"trial{number}-{case}" for case in range(len(cases))]
            trials = [
                threads.submit(launch_and_recover, host, stage, fault, root, folder, f"otter-{number}")
                for host, (stage, fault), folder in zip(machines, cases, folders, strict=True)
            ]
        for (stage, fault), trial in zip(cases, trials, strict=True):
            late[number, stage, fault] = trial.result()
    print({case: round(heard_s, 1) for case, heard_s in late.items()})
    assert max(late.values()) <= VERDICT_S, late


def launch_and_recover(host: Host, stage: str, what: str, root: Path, folder: Path, run: str) -> float:
    """Launch, break, mend, and finish. Return the time from the break to the first message."""
    fault, count = Fault(host, what), counted(host, run)
    ssh = Breaking(folder, stage, fault, count.pod)
    provider = provider_of(host, ssh, folder)
    step = Step("count", COUNT.words, environment="small") if stage == "set-up" else COUNT
    wanted = plan(folder / "store", step, run=run, environ=SMALL)
    with ssh, Journal.open(environ=environ(folder)) as journal:
        if stage in ("sync", "hand-over") and what != KILLED:  # then everything is repeated at once, without a question
            heard_s = fails_with_message(wanted, provider, journal, root, fault)
            for op in journal.ops(live=True):  # as every command does before it begins
                assert pods.settle(provider, op, journal).state == "TERMINATED"
            assert find(journal.ops()[0].token) == []
            op = launch_on(provider, wanted, journal, root)
        else:
            op = launch_on(provider, wanted, journal, root)
            heard_s = 0.0  # a launch without delay has nothing to report
            if stage in ("set-up", "follow"):
                heard_s = await_news(op, journal, ssh, "environment" if stage == "set-up" else "count", fault)
                fault.mend()
            assert len(journal.ops()) == 1
        verdict = ended(op, journal, ssh, count)
        assert verdict["state"] == "succeeded", verdict
        count.check()
        assert pods.settle(provider, op, journal).state == "TERMINATED"
    return heard_s


def fails_with_message(wanted: Any, provider: SshPools, journal: Journal, root: Path, fault: Fault) -> float:
    """Expect the launch to end by itself, and to report that nothing runs, or how to end a possible run."""
    heard: list[float] = []
    with pytest.raises(SlipwayError) as failure:
        launch_on(provider, wanted, journal, root, lambda _: heard.append(fault.age_s) if fault.at_s else None)
    fault.mend()
    (op,) = journal.ops()
    if op.is_live:
        assert re.search(
            f"ending {op.run}: .* the pod may still run. Run again: inv down {op.run}$", str(failure.value)
        )
    else:
        assert re.search("the run was ended, and no pod is left: launch again$", str(failure.value))
    return heard[0]


def await_news(op: Op, journal: Journal, ssh: Ssh, step: str, fault: Fault) -> float:
    """Break during a step; return the time from the break to the next report of the run, or of its silence."""
    for progress, verdict in follow(op, journal, ssh):
        assert not verdict
        if fault.at_s is not None:
            break
        # On a busy machine a short step can end before the first look. The fault then strikes in the next step.
        if any(one["name"] == step and one["state"] != "waiting" for one in progress.get("steps", ())):
            fault.strike()
    return fault.age_s


def ended(op: Op, journal: Journal, ssh: Ssh, count: Counted) -> dict[str, Any]:
    """Return the verdict, after the first counted number."""
    last: dict[str, Any] = {}
    for _, last in follow(op, journal, ssh):  # noqa: B007 (the last one counts)
        if count.lines():
            count.enough()
    return last
