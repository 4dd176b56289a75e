"""The forecast and the receipt of a launch are about the offer that was rented, not about the first offer."""

from dataclasses import replace

import pytest

from flows.planning import learned
from flows.runs import rented_offer
from infra.agent.job import Job, Limits
from infra.ledger.op import Op
from infra.ledger.timings import Timings
from infra.records import Offer
from tests.flows.test_estimates import planned, rehearsed
from tests.flows.test_estimates import settings as settings

H100, A100, OTHER_A100 = (
    Offer(provider="runpod", offer_id=gpu, gpu=gpu, num_gpus=1, micro_usd_per_hour=rate)
    for gpu, rate in (("H100-SXM", 3_000_000), ("A100-80GB", 1_500_000), ("A100-80GB", 1_600_000))
)


@pytest.fixture
def rented(settings):
    """Return the settings with an account at a vendor."""
    return replace(settings, provider="runpod", runpod_api_key="k" * 20)


def row(offer, place="", rate=0):
    """Return the row of a pod; the job has the price of the offer, and the vendor may have reported another rate."""
    job = Job("calm-1", "sw1-a", (), limits=Limits(micro_usd_per_hour=offer.micro_usd_per_hour))
    rate = rate or offer.micro_usd_per_hour
    return Op(token="sw1-a", run="calm-1", vendor=offer.provider, place=place, rate=rate, job=job.to_json())


def saved(settings, op, plan, offers):
    offer = rented_offer.find(op, plan, offers, settings)
    on_it = rented_offer.plan_on(offer, plan, offers, settings)
    learned.save_forecast(op, on_it, 1.0, settings, offer)
    return offer, Timings.for_journal(settings.state_file).get(op.token)


@pytest.mark.parametrize("offers", [(H100, A100, OTHER_A100), (A100, H100), (A100,)], ids=["tried", "picked", "left"])
@pytest.mark.parametrize("rate", [0, 1_700_000], ids=["as agreed", "a higher rate"])
def test_forecast_is_about_the_rented_machine(rented, rate, offers):
    plan = planned(rented, H100, profile="smollm2_135m", phase="base")
    _, first = saved(rented, row(H100), plan, (H100, A100))
    offer, second = saved(rented, row(A100, rate=rate), plan, offers)
    assert offer == A100 and first.expected == plan.forecast
    assert {one.machine for one in second.works} == {"1 x A100-80GB"} != {one.machine for one in first.works}
    seconds = [sum(one.seconds for one in found.expected) for found in (first, second)]
    assert seconds[1] > 1.5 * seconds[0] and second.micro_usd is not None


def test_rented_machine_that_fits_different_offers_has_no_forecast(rented):
    plan = planned(rented, H100, profile="smollm2_135m", phase="base")
    alike = replace(H100, micro_usd_per_hour=A100.micro_usd_per_hour)
    offer, found = saved(rented, row(A100), plan, (alike, A100))
    assert (offer, found.expected, found.micro_usd) == (None, (), None)
    assert found.works == plan.works  # the work is known
    offer, found = saved(rented, row(replace(A100, micro_usd_per_hour=7)), plan, (H100, A100))
    assert offer is None and found.expected == ()
    offer, found = saved(rented, row(replace(H100, micro_usd_per_hour=7)), plan, (H100, H100))
    assert offer == H100 and found.expected == plan.forecast


def test_run_without_offers_keeps_the_forecast(rented):
    plan = planned(rented, None, profile="smollm2_135m", phase="base")
    offer, found = saved(rented, replace(row(H100), vendor="local"), plan, ())
    assert offer is None and found.expected == plan.forecast


def test_forecast_of_a_rehearsal_imitates_the_rented_machine(settings):
    own = rehearsed(settings)
    plan = planned(own, H100, profile="smollm2_135m", phase="base")
    for offers in ((H100, A100), (A100, H100)):
        on_it = rented_offer.plan_on(A100, plan, offers, own)
        assert on_it.imitated.machine.name == "1 x A100-80GB" and on_it.estimate == plan.estimate
    assert rented_offer.plan_on(H100, plan, (A100, H100), own) is plan
