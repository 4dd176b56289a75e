"""The queue for a user's own machines: first come, first served, by devices."""

from unittest import mock

import pytest

from infra.agent.process import Identity
from infra.errors import UsageError
from infra.ledger import wait_queue
from infra.ledger.journal import Journal
from infra.ledger.op import Leased
from infra.names import new_token
from infra.runs import run_rows

BOX, OTHER = "lab/box1", "lab/box2"


@pytest.fixture
def journal(tmp_path):
    environ = {"XDG_STATE_HOME": str(tmp_path / "state"), "XDG_CONFIG_HOME": str(tmp_path / "config")}
    with Journal.open(environ=environ) as opened:
        yield opened


@pytest.fixture
def processes():
    """Fake processes by number, as the queue sees processes; `processes.me` is the current process, `processes.dead`
    are gone.
    """
    held = mock.Mock(me=1, dead=set())
    with (
        mock.patch("infra.ledger.wait_queue.current_identity", lambda: Identity("boot", held.me, "then")),
        mock.patch("infra.ledger.wait_queue.is_alive", lambda one: one.pid not in held.dead),
    ):
        yield held


def begin_run(journal, run, place=BOX, devices="", vendor="ssh", own=None, rank=0):
    """Return the row of a run that begins now."""
    return journal.plan(
        token=new_token(journal.installation),
        run=run_rows.name_of(run, rank),
        rank=rank,
        vendor=vendor,
        place=place,
        devices=devices,
        admit=lambda rows, new: wait_queue.admit(journal, rows, new, own),
    )


def end(journal, op):
    journal.advance(op, "unsent")


def test_a_machine_has_one_run_or_several_with_separate_devices(journal):
    first = begin_run(journal, "a", devices="0,1")
    begin_run(journal, "b", devices="2")
    for devices in ("", "1", "2,3"):
        with pytest.raises(Leased, match="lab/box1, device .*, is in use by"):
            begin_run(journal, "c", devices=devices)
    end(journal, first)
    begin_run(journal, "c", devices="0")
    begin_run(journal, "whole", place=OTHER)
    with pytest.raises(Leased, match="lab/box2 is in use by whole"):
        begin_run(journal, "d", place=OTHER, devices="7")


def test_runs_share_this_machine_except_named_devices(journal):
    begin_run(journal, "a", "", vendor="local")
    b = begin_run(journal, "b", "", vendor="local")
    with pytest.raises(Leased, match="this machine is in use by a"):
        begin_run(journal, "c", "", "0", vendor="local")
    for op in journal.ops(live=True):
        end(journal, op)
    begin_run(journal, "c", "", "0", vendor="local")
    begin_run(journal, "d", "", "1", vendor="local")
    for devices in ("", "0"):
        with pytest.raises(Leased, match="this machine, device 0, is in use by c"):
            begin_run(journal, "e", "", devices, vendor="local")
    assert not journal.op(b.token).is_live


def test_the_queue_is_in_order_of_arrival_and_skips_dead_processes(journal, processes):
    has = begin_run(journal, "has")
    lines = {}
    for number, run in enumerate(("one", "two", "three"), 1):
        processes.me = number
        lines[run] = wait_queue.enqueue(journal, run, "ssh", (BOX,), "")
    said = {run: wait_queue.why_waiting(journal, turn) for run, turn in lines.items()}
    assert said["one"] == "waits for lab/box1: has has it until the end of the run"
    end(journal, has)
    assert wait_queue.why_waiting(journal, lines["one"]) == "may start now"
    assert wait_queue.why_waiting(journal, lines["three"]) == "waits for lab/box1: one came before"
    with pytest.raises(wait_queue.QueuedBehind, match="one came before, and is waiting; wait in line: --wait"):
        begin_run(journal, "impatient")
    with pytest.raises(wait_queue.QueuedBehind):
        begin_run(journal, "two", own=lines["two"])
    processes.dead.add(1)
    begin_run(journal, "two", own=lines["two"])
    wait_queue.dequeue(journal, lines["two"])
    assert [one.run for one in wait_queue.waiting(journal)] == ["three"]
    assert wait_queue.why_waiting(journal, lines["three"]) == "waits for lab/box1: two has it until the end of the run"


def test_a_run_removed_from_the_queue_does_not_start(journal, processes):
    mine = wait_queue.enqueue(journal, "one", "ssh", (BOX,), "")
    wait_queue.check_queued(journal, mine)
    wait_queue.withdraw(journal, mine)
    processes.me = 2
    assert wait_queue.enqueue(journal, "two", "ssh", (BOX,), "").number == mine.number
    with pytest.raises(wait_queue.EndedInQueue, match="one: inv down ended the run during the wait"):
        begin_run(journal, "one", own=mine)
    assert journal.ops() == []


def test_a_run_waits_in_its_last_joined_queue_and_leaves_all_queues_at_once(journal, processes):
    offer = wait_queue.enqueue(journal, "one", "lium", ("an offer for one",), "", "an offer of 1 x H100: none of 3")
    assert wait_queue.why_waiting(journal, offer) == "waits for an offer of 1 x H100: none of 3"
    processes.me = 2
    other = wait_queue.enqueue(journal, "two", "lium", ("an offer for two",), "", "an offer of 1 x H100: none of 3")
    assert wait_queue.why_waiting(journal, other) == "waits for an offer of 1 x H100: none of 3"
    processes.me = 1
    money = wait_queue.enqueue(journal, "one", "budget", ("budget evals",), "")
    assert [(one.run, one.vendor) for one in wait_queue.waiting(journal)] == [("two", "lium"), ("one", "budget")]
    begin_run(journal, "two", "", vendor="lium", own=other)
    wait_queue.withdraw(journal, money)
    with pytest.raises(wait_queue.EndedInQueue):
        begin_run(journal, "one", "", vendor="lium", own=offer)


def test_a_later_run_goes_first_only_if_both_runs_fit_the_machine(journal, processes):
    has = begin_run(journal, "has", devices="0,1")
    begin_run(journal, "elsewhere", place=OTHER)
    turn = wait_queue.enqueue(journal, "one", "ssh", (BOX, OTHER), "1,2")
    assert wait_queue.why_waiting(journal, turn) == (
        "waits for lab/box1: has has devices 0,1 until the end of the run; "
        "lab/box2: elsewhere has it until the end of the run"
    )
    begin_run(journal, "beside", devices="3")
    with pytest.raises(wait_queue.QueuedBehind):
        begin_run(journal, "across", devices="2")
    end(journal, has)
    begin_run(journal, "one", devices="1,2", own=turn)


def test_a_resumed_run_does_not_queue_again(journal, processes):
    op = begin_run(journal, "has")
    wait_queue.enqueue(journal, "one", "ssh", (BOX,), "")
    end(journal, op)
    assert begin_run(journal, "has").is_live


def test_a_run_waiting_for_this_machine_wants_it_for_all_its_nodes(journal, processes):
    has = begin_run(journal, "has", "", vendor="local")
    turn = wait_queue.enqueue(journal, "one", "local", ("",), "")
    assert wait_queue.why_waiting(journal, turn) == "waits for this machine: has has it until the end of the run"
    with pytest.raises(Leased):
        begin_run(journal, "one", "", vendor="local", own=turn)
    begin_run(journal, "careless", "", vendor="local")
    for op in journal.ops(live=True):
        end(journal, op)
    assert has.run == "has"
    begin_run(journal, "one", "", vendor="local", own=turn)
    begin_run(journal, "one", "", vendor="local", own=turn, rank=1)


@pytest.mark.parametrize(
    ("said", "meant"), [("1,0", "0,1"), (" 3 ", "3"), ("0, 1", "0,1"), ("", None), ("0,0", None), ("a", None),
                        ("-1", None), ("0;rm", None), ("٣", None), ("9999", None)]
)  # fmt: skip
def test_devices_are_only_numbers_in_order(said, meant):
    if meant:
        assert wait_queue.read_devices(said) == meant
    else:
        with pytest.raises(UsageError, match="--devices"):
            wait_queue.read_devices(said)
