"""Planted faults of renting that a scripted hour finds: the default tier finds each of them in seconds.

The rigs find the same faults by kills and races, in minutes, at night.
"""

import pytest

from infra.ledger.reconcile import reconcile
from infra.names import new_token
from infra.runs import pods
from tests.faults import known_bad
from tests.faults.crash import Desk, Recipe, Renting, Rig
from tests.faults.lives import Blow
from tests.faults.rented import Judge, Wrong, order, plant

pytestmark = pytest.mark.process

NO_KILL = Blow("", 10_000, 0.0)
LOST_ANSWERS = Recipe(seed=1, rules=({"call": "create", "kind": "lost"},))


def desk_of(here, tmp_path, renting: Renting) -> Desk:
    desk = Desk(here, renting, tmp_path / "1", "shadeform", [])
    desk.folder.mkdir()
    desk.offers.extend(desk.vendor().offers(order("shadeform", "r")[0]))
    return desk


@pytest.mark.parametrize(
    ("renting", "blow", "complaint"),
    [
        pytest.param(known_bad.Resending, NO_KILL, "duplicates|lost work", marks=pytest.mark.nightly),
        # A later sweep deletes the machine, so the hour ends with the row.
        (known_bad.Forgetting, Blow("after refused", 1, 0.0), "early end"),
        pytest.param(Renting, NO_KILL, "", id="the product"),
    ],
)
def test_lost_answers_to_a_create_find_the_planted_fault(here, tmp_path, renting, blow, complaint):
    trial = Rig(renting(), seed=1)
    desk = desk_of(here, tmp_path, renting())
    foreign = plant(desk.vendor(), desk.offers[0], new_token("zzzzzzzz")).pod_id
    if complaint:
        with pytest.raises(Wrong, match=complaint):
            trial._lives(desk, LOST_ANSWERS, blow, foreign)
    else:
        assert not trial._lives(desk, LOST_ANSWERS, blow, foreign).was_killed


class RentsBeforeListing(known_bad.Wrapped):
    """A vendor's client that rents a pod between the call of a listing and the listing: another launch of this hour."""

    def list(self):
        if not self.rented:
            request, job = order("shadeform", "brave-otter-1")
            self.rented = [pods.rent(self.vendor, request, self.offers[0], job, self.journal)]
        return self.vendor.list()


@pytest.mark.parametrize(("sweep", "lost"), [(known_bad.read_rows_first, True), (reconcile, False)])
def test_a_launch_beside_a_listing_finds_rows_that_are_read_too_early(here, tmp_path, sweep, lost):
    desk = desk_of(here, tmp_path, Renting())
    with desk.journal() as journal:
        vendor = RentsBeforeListing(desk.vendor())
        vendor.rented, vendor.offers, vendor.journal = [], desk.offers, journal
        sweep(vendor, journal)
        judge = Judge(here, f"sw1-{journal.installation}-", acknowledged={vendor.rented[0].token})
        if lost:
            with pytest.raises(Wrong, match="lost work"):
                judge.at_any_time(journal.ops())
        else:
            judge.at_any_time(journal.ops())
