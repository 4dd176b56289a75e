"""The message of a launch that finds the machine in use, and the machine of a launch that waits for an offer."""

import pytest

from flows.limits.shared_resources import MachineQueue, find_launch_offers
from infra.errors import Busy, NoOffer
from infra.ledger import wait_queue
from infra.ledger.journal import Journal
from infra.records import Request
from infra.selection import registry
from infra.settings import Settings


@pytest.mark.parametrize(
    ("may_wait", "said"),
    [
        (True, "box: the machine holds the pod of a-1\nto wait in line: --wait"),
        (False, "box: the machine holds the pod of a-1"),
    ],
)
def test_a_launch_that_finds_its_machine_in_use_learns_how_to_wait(tmp_path, may_wait, said):
    def work():
        raise Busy("box: the machine holds the pod of a-1")

    with Journal.open(tmp_path / "journal.db") as journal:
        line = MachineQueue(journal, Settings.load(tmp_path, environ={}), print, may_wait=may_wait)
        with pytest.raises(Busy) as error:
            line.run_at_turn(work)
    assert str(error.value) == said


@pytest.mark.process  # nvidia-smi, if installed
def test_a_waiting_launch_takes_the_first_free_machine(tmp_path):
    settings = Settings.load(tmp_path, environ={"SLIPWAY_PROVIDER": "local", "HOME": str(tmp_path)})
    wanted, plain = (Request(run="new", num_gpus=number) for number in (999, 0))
    told = []
    with Journal.open(tmp_path / "journal.db") as journal:
        had = find_launch_offers(
            registry.candidates(settings), (wanted, plain), True, lambda: "a-1", journal, settings, told.append
        )
        assert had.request == plain and had.offers and had.ticket is None and wait_queue.waiting(journal) == []
    assert told[0].startswith("1 of 2 kinds of machine are not available: ")


@pytest.mark.process  # also nvidia-smi, if installed
def test_a_launch_without_offer_learns_the_reason_and_how_to_wait(tmp_path):
    settings = Settings.load(tmp_path, environ={"SLIPWAY_PROVIDER": "local", "HOME": str(tmp_path)})
    with Journal.open(tmp_path / "journal.db") as journal, pytest.raises(NoOffer) as error:
        find_launch_offers(
            registry.candidates(settings), (Request(run="new", num_gpus=999),), True, None, journal, settings, print
        )
    *why, last = str(error.value).splitlines()
    assert any("999" in line for line in why) and last == "to wait until an offer matches: --wait"
