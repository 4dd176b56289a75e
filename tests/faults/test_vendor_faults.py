"""Vendors without working deletes, and listings that lag, lack rows, or break off: no verdict without proof."""

import contextlib
import random
import re

import pytest

from infra.errors import SlipwayError
from infra.ledger.op import TERMINATED, TERMINATING, Op
from infra.ledger.reconcile import reconcile
from infra.runs import pods
from tests import seeds
from tests.faults import known_bad
from tests.faults.crash import Desk, Renting
from tests.faults.rented import VENDORS, Judge, Wrong, end_all, order
from tests.faults.trial import rounds

pytestmark = pytest.mark.process

FOR_LONG_S = 3 * 3600
REFUSALS = (
    {"kind": "error", "status": 500}, {"kind": "error", "status": 409}, {"kind": "error", "status": 503},
    {"kind": "dropped"}, {"kind": "throttle"},
)  # fmt: skip
LISTS = (
    {"kind": "empty list"}, {"kind": "short list"}, {"kind": "error", "status": 500}, {"kind": "torn"},
    {"kind": "dropped"}, {"kind": "lost"}, {"kind": "throttle"},
)  # fmt: skip
LOST = ({"kind": "lost"}, {"kind": "error but done"}, {"kind": "dropped"}, {"kind": "torn"})


def desk_of(here, tmp_path, chance: random.Random, number: int) -> Desk:
    folder = tmp_path / str(number)
    folder.mkdir()
    name = VENDORS[number % len(VENDORS)]
    desk = Desk(here, Renting(), folder, name, [])
    desk.offers.extend(desk.vendor().offers(order(name, "r")[0]))
    chance.shuffle(desk.offers)
    return desk


def rent(desk: Desk, vendor, journal, run: str, judge: Judge) -> Op | None:
    request, job = order(desk.vendor_name, run)
    desk.offers.append(desk.offers.pop(0))  # Lium has one machine of a kind
    try:
        op = pods.rent(vendor, request, desk.offers[0], job, journal)
    except SlipwayError:
        return None
    judge.acknowledged.add(op.token)
    return op


# Row 4: a delete that fails for long.


def refuse_deletes(here, tmp_path, trials: int, sweep=reconcile) -> None:
    """Refuse deletes. Raises Wrong if a running pod counts as gone."""
    seed = seeds.seed()
    chance = random.Random(seed)
    for number in range(trials):
        desk = desk_of(here, tmp_path, chance, number)
        with desk.journal() as journal:
            vendor, judge = desk.vendor(), Judge(here, f"sw1-{journal.installation}-")
            op = rent(desk, vendor, journal, "brave-otter-1", judge)
            assert op is not None
            judge.acknowledged.clear()
            here.fault({"call": "delete", "count": None, **chance.choice(REFUSALS)})
            with pytest.raises(SlipwayError, match=r"1\.00\d* USD/h. Run again: inv down brave-otter-1"):
                pods.end(vendor, op, journal)
            until = here.now() + FOR_LONG_S
            while here.now() < until:
                here.move(chance.choice([901, 1800, 3600]))
                done = sweep(vendor, journal)
                judge.at_any_time(journal.ops())
                assert journal.op(op.token).state == TERMINATING
                assert any(re.search(r"brave-otter-1.*still cost 1\.00\d* USD/h", one) for one in done.problems), done
            here.fault()
            end_all(here, vendor, journal, pods.end)
            assert journal.op(op.token).state == TERMINATED
            judge.at_rest(journal.ops())


@rounds(3, 200)
def test_every_sweep_reports_a_delete_that_fails_for_hours(here, tmp_path, rounds):
    refuse_deletes(here, tmp_path, rounds)


def test_vendor_rig_rejects_code_that_gives_up_deleting(here, tmp_path):
    with pytest.raises(Wrong, match="early end"):
        refuse_deletes(here, tmp_path, 3, known_bad.give_up_deleting)


# Row 5: pods missing from a listing.


def sweep_wrong_listings(here, tmp_path, listings: int, sweep=reconcile, seed: int | None = None) -> None:
    """Sweep on wrong listings, of installations with a few pods. Raises Wrong for a false verdict."""
    seed = seeds.seed() if seed is None else seed
    chance, number, seen = random.Random(seed), 0, 0
    while seen < listings:
        number += 1
        desk = desk_of(here, tmp_path, chance, number)
        with desk.journal() as journal:
            vendor, judge = desk.vendor(), Judge(here, f"sw1-{journal.installation}-")
            about = {"listing_lag_s": {desk.vendor_name: chance.randint(0, 120)}, "page_size": chance.randint(1, 3)}
            for run in range(chance.randint(1, 4)):
                lost = [{"call": "create", **chance.choice(LOST)}] if chance.random() < 0.3 else []
                here.fault(*lost, **about)
                rent(desk, vendor, journal, f"run-{run}", judge)
            for _ in range(10):
                bad = {"call": "list", "skip": chance.randint(0, 1), **chance.choice(LISTS)}
                bad["count"] = 1 if "list" in bad["kind"] else chance.choice([1, 6])
                here.fault(*([bad] if chance.random() < 0.7 else []), **about)
                live = [op for op in journal.ops() if op.is_live and op.state != TERMINATING]
                if live and chance.random() < 0.2:
                    op = chance.choice(live)
                    judge.acknowledged.discard(op.token)
                    with contextlib.suppress(SlipwayError):  # the sweeps continue
                        pods.end(vendor, op, journal)
                    judge.at_any_time(journal.ops())
                sweep(vendor, journal)
                seen += 1
                judge.at_any_time(journal.ops())
                here.move(chance.choice([1, 20, 61, 130, 600]))
            here.fault()
            judge.acknowledged.clear()
            end_all(here, vendor, journal, pods.end)
            judge.at_rest(journal.ops())


@rounds(20, 2000)
def test_a_stale_or_incomplete_listing_proves_nothing(here, tmp_path, rounds):
    sweep_wrong_listings(here, tmp_path, rounds)


def test_vendor_rig_rejects_code_that_takes_silence_for_absence(here, tmp_path):
    with pytest.raises(Wrong, match="early end|lost work"):
        sweep_wrong_listings(here, tmp_path, 100, known_bad.believe_silence, seed=1)
