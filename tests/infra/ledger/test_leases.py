"""Leases, and their holders: beating, silent and waking processes, and the permitted actions of each."""

import os
import signal

import pytest

from infra.ledger import leases
from tests.infra.ledger.test_journal import child
from tests.infra.ledger.test_journal import environ as environ
from tests.infra.ledger.test_journal import journal as journal
from tests.world import until

HOLDER = """
import sys
from infra.interrupts import WorkTakenOver
from infra.ledger import leases
from infra.ledger.journal import Journal
leases.BEAT_S, leases.SILENT_S = 0.2, 4.0
with Journal.open() as journal:
    lease = journal.leases.acquire("run:a")
    print("up", flush=True)
    for line in sys.stdin:
        try:
            if line == "hang\\n":
                journal.leases.set_health_check(lambda: False)
                print("done", flush=True)
                continue
            if line == "write\\n":
                journal.plan(token="sw1-late", run="late-1", vendor="local")
            elif line == "call\\n":
                journal.leases.check_held()  # as before each call of a vendor
            else:
                journal.leases.release(lease)
            print("done", flush=True)
        except (WorkTakenOver, leases.Fenced) as error:
            print(f"{type(error).__name__}: {error}", flush=True)
"""


@pytest.fixture
def held_lease(journal, environ, monkeypatch):
    """Start a process that holds run:a and follows commands; the process counts as silent after four seconds."""
    monkeypatch.setattr(leases, "SILENT_S", 4.0)
    holder = child(HOLDER, environ)
    assert holder.stdout.readline() == "up\n"

    def tell(word: str) -> str:
        holder.stdin.write(f"{word}\n")
        holder.stdin.flush()
        return holder.stdout.readline()

    yield holder, tell
    holder.kill()
    holder.communicate()


def heard_at(journal):
    return journal.read("SELECT heard_s FROM leases WHERE name = 'run:a'")[0][0]


@pytest.mark.process
def test_a_beating_holder_keeps_its_lease_and_may_write(journal, held_lease):
    holder, tell = held_lease
    first = heard_at(journal)
    until(lambda: heard_at(journal) > first + 4.5, "beats for longer than a holder may be silent")
    assert journal.leases.holder("run:a").pid == holder.pid
    assert tell("call") == tell("write") == "done\n"


@pytest.mark.process
def test_a_stopped_holder_is_replaced_and_may_not_act_after_waking(journal, held_lease):
    holder, tell = held_lease
    holder.send_signal(signal.SIGSTOP)
    until(lambda: journal.leases.holder("run:a") is None, "silence")
    assert (journal.leases.held_names(), journal.leases.abandoned_names()) == (set(), {"run:a"})
    ours = journal.leases.acquire("run:a")
    before = journal.version()
    holder.send_signal(signal.SIGCONT)
    for word in ("call", "write", "call"):
        said = tell(word)
        assert said.startswith(f"WorkTakenOver: run:a: process {os.getpid()} has taken over"), said
    assert tell("release").startswith("Fenced: run:a: another process has taken over")
    assert journal.version() == before and journal.leases.is_ours(ours)


@pytest.mark.process
def test_a_hanging_holder_with_living_threads_is_replaced(journal, held_lease):
    _, tell = held_lease
    assert tell("hang") == "done\n"
    until(lambda: journal.leases.holder("run:a") is None, "silence")
    journal.leases.acquire("run:a")
    assert tell("write").startswith("WorkTakenOver: ")


@pytest.mark.process
def test_a_stopped_holder_without_a_replacement_continues(journal, held_lease):
    holder, tell = held_lease
    holder.send_signal(signal.SIGSTOP)
    until(lambda: journal.leases.holder("run:a") is None, "silence")
    holder.send_signal(signal.SIGCONT)
    until(lambda: journal.leases.holder("run:a"), "a beat")
    assert tell("write") == "done\n"


@pytest.mark.parametrize(
    ("awake_for_s", "is_held"), [(0.0, True), (59.0, True), (60.0, False), (7200.0, False)], ids=str
)
def test_silence_does_not_count_the_sleep_of_the_machine(journal, monkeypatch, awake_for_s, is_held):
    """A closed laptop is not awake."""
    journal.leases.acquire("run:a")
    at = heard_at(journal)
    monkeypatch.setattr(leases, "awake_s", lambda: at + awake_for_s)
    monkeypatch.setattr("infra.agent.limits.boottime_s", lambda: at + 8 * 3600.0)
    assert (journal.leases.holder("run:a") is not None) is is_held
