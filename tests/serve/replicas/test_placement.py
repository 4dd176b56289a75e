"""Replicas are placed like runs: no unaffordable machine, recent failures last."""

import pytest

from infra.errors import Ambiguous, NoOffer, OutOfMoney
from infra.machines.host_memory import HostMemory, failure_key
from infra.providers.lium import Lium
from infra.records import Request
from infra.selection import choose, registry
from serve.replicas import placement
from tests.infra.market.test_boot import settings_of
from tests.infra.rehearsal.worlds import world

pytestmark = pytest.mark.process

L40S = Request(run="demo-0", gpu="L40S", num_gpus=1)


@pytest.fixture
def poor(tmp_path):
    """Return a market in which one vendor's account cannot pay for an hour, and the settings."""
    plan = tmp_path / "faults.yaml"
    plan.write_text("balance_usd: {runpod: 0.05}\n")
    with world(tmp_path / "world", "--faults", str(plan)) as running:
        yield settings_of(running, tmp_path)


def test_offer_beyond_the_account_is_left_out_and_reported(poor):
    told = []
    names = placement.candidates("market", poor)
    assert "runpod" in names
    found = placement.find(names, L40S, True, poor, told.append)
    assert {one.provider for one in found} == {"shadeform"}
    assert any(line.startswith("demo-0: runpod: the balance is 0.05 USD; an hour costs") for line in told)
    with pytest.raises(
        OutOfMoney, match="no vendor would rent the machine to this account: runpod: the balance is 0.05 USD"
    ):
        placement.find(("runpod",), L40S, True, poor, told.append)


def test_vendor_without_an_account_answer_is_named_in_the_refusal(poor, monkeypatch):
    def silent(self):
        raise Ambiguous("lium: no answer in 30 s")

    monkeypatch.setattr(Lium, "account", silent)
    told = []
    request = Request(run="otter", provider="lium", gpu="L40S,RTX4090,H100,A6000", num_gpus=1)
    with pytest.raises(NoOffer, match="no vendor would rent the machine to this account: lium: no answer in 30 s"):
        choose.find_payable(request, poor, told.append)


def test_recently_failed_machine_is_tried_last_with_a_note(poor):
    told = []
    first, *others = placement.find(("shadeform",), L40S, True, poor, told.append)
    assert others and not told
    HostMemory.for_journal(poor.state_file).record_failure(failure_key(first), "it never booted")
    again = placement.find(("shadeform",), L40S, True, poor, told.append)
    assert [failure_key(one) for one in again] == [failure_key(one) for one in [*others, first]]
    (line,) = told
    assert line.startswith("demo-0: tried last: shadeform") and line.endswith("it never booted")


def test_keeper_of_a_run_gets_the_offers_of_a_command(poor):
    told = []
    request = Request(run="otter", provider="market", gpu="L40S", num_gpus=1)
    candidates = registry.candidates(poor, "market")
    usual = choose.payable(choose.find(candidates, request, poor, told.append), 1, poor, told.append)
    found = choose.find_payable(request, poor, told.append)
    assert [failure_key(one) for one in found] == [failure_key(one) for one in usual]
    assert "runpod" not in {one.provider for one in found}
