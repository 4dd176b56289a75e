"""The expected parts of a plan add up to the forecast of the plan."""

from dataclasses import replace

import pytest

from infra.agent.job import Limits
from infra.ledger.journal import Journal
from infra.market.step_times import AROUND, SAME
from infra.records import Offer
from infra.selection.preflight import forecast_of, shown_forecast
from packs.bill.commands import tables
from packs.bill.control import projection
from packs.bill.control.bill import Bill
from packs.bill.control.pod_time import COMPILE, EVALUATION, SAVES, STEPS
from packs.bill.control.projection import START, parts_of_plan
from tests.flows.test_estimates import planned, rehearsed
from tests.flows.test_estimates import settings as settings

OFFER = Offer(provider="lium", offer_id="o", gpu="H100-SXM", num_gpus=8, micro_usd_per_hour=14_000_000)


def bill(**seconds: float) -> Bill:
    return Bill(run="a", vendors=("lium",), hosts=("lium",), pods=1, seconds=seconds, micro_usd={}, wall_s=1.0)


@pytest.mark.parametrize("bills", [[], [bill(wait=10, boot=60, checks=30, sync=20, environment=80, steps=900)] * 2])
def test_parts_add_up_to_the_forecast(settings, bills):
    plan = planned(rehearsed(settings), OFFER, profile="d20", phase="base+sft")
    parts, expected = parts_of_plan(plan, OFFER, rehearsed(settings), bills), shown_forecast(plan, OFFER, is_cut=False)
    assert sum(one.seconds for one in parts) == pytest.approx(expected.seconds[1])
    assert sum(one.micro_usd for one in parts) == pytest.approx(expected.micro_usd[1], abs=len(parts))
    steps = {one.step: one for one in parts if one.part == STEPS}
    assert [*steps] == ["base", "mid", "sft"] and steps["base"].seconds > 0.8 * expected.seconds[1]
    beside = {(one.step, one.part): one.seconds for one in parts if one.step and one.part != STEPS}
    assert beside.keys() > {("base", COMPILE), ("base", SAVES), ("base", EVALUATION), ("sft", SAVES)}
    assert ("sft", EVALUATION) not in beside and all(seconds >= 1 for seconds in beside.values())
    assert "base: evaluation" in tables.projected(parts).text and "\nbase  " in tables.projected(parts).text
    starts = {one.part: one.seconds for one in parts if one.part in ("", *START)}
    if bills:
        assert starts == pytest.approx({"wait": 15, "boot": 90, "checks": 45, "sync": 30, "environment": 120})
        assert "(from a table, divided as in 2 runs)" in tables.projected(parts).text
    else:
        assert starts == {"": 300}
        assert "waiting, boot, checks, sending, environment  5 min 00 s" in tables.projected(parts).text


def test_measured_start_replaces_the_table(settings):
    plan = planned(rehearsed(settings), OFFER, profile="d20", phase="base")
    around = next(one for one in plan.forecast if one.step == AROUND)
    measured = [replace(one, seconds=600.0, source=SAME, times=3) if one is around else one for one in plan.forecast]
    own = replace(settings, provider="lium", lium_api_key="k" * 20)
    known = replace(plan, imitated=None, estimate=replace(plan.estimate, steps=tuple(measured)))
    first, *_ = parts_of_plan(known, OFFER, own, [])
    assert (first.seconds, first.evidence) == (600.0, "measured 3 times")
    expected = forecast_of(replace(known, job=replace(known.job, limits=Limits())), OFFER, own)
    assert sum(one.seconds for one in parts_of_plan(known, OFFER, own, [])) == pytest.approx(expected.seconds[1])


def test_measured_training_is_a_single_part(settings):
    plan = planned(rehearsed(settings), OFFER, profile="d20", phase="base")
    measured = [replace(one, source=SAME) if one.step == "base" else one for one in plan.displayed_estimate.steps]
    known = replace(plan, imitated=None, estimate=replace(plan.estimate, steps=tuple(measured)))
    found = parts_of_plan(known, OFFER, settings, [])
    assert [one.part for one in found if one.step] == [STEPS]


def test_plan_of_unknown_length_has_no_parts(settings):
    unknown = Offer(provider="lium", offer_id="o", gpu="TPU-9", num_gpus=1, micro_usd_per_hour=1)
    plan = planned(rehearsed(settings), unknown, profile="d20", phase="base")
    with Journal.open(settings.state_file) as journal:
        assert parts_of_plan(plan, unknown, settings, []) == [] == projection.earlier_bills("lium", journal, settings)
    assert tables.BillView().of_plan(plan, unknown, settings) is None
