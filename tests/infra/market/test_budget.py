"""One amount for a run: all pods of a run share the amount, for any number of nodes and recoveries."""

import pytest

from flows.runs import resume
from infra.agent.job import Job, Limits
from infra.agent.limits import read_clocks
from infra.errors import LimitHit, SlipwayError, UsageError
from infra.ledger import spend
from infra.ledger.journal import Journal
from infra.providers.by_name import open_market
from infra.records import Plan, Request
from infra.runs import observation, pods, renting, run_rows
from infra.runs.keepers.run_keeper import RunKeeper
from infra.runs.renting import Terms
from infra.runs.run_home import RunHome
from tests.infra.market.test_boot import SPEED, settings_of
from tests.infra.rehearsal.worlds import world

pytestmark = pytest.mark.process

USD = 1_000_000
NODES = 2
HOURS = 1000.0


@pytest.fixture
def begun(tmp_path, monkeypatch):
    """Return a run on two machines, preempted at different times, and the run's keeper."""
    with world(tmp_path / "world", speed=SPEED) as running, Journal.open(tmp_path / "journal.db") as journal:
        settings = settings_of(running, tmp_path)
        for name in ("runpod", "lium", "shadeform"):
            monkeypatch.setenv(f"{name.upper()}_API_KEY", running.about[name]["key"])
            monkeypatch.setenv(f"SLIPWAY_{name.upper()}_URL", running.about[name]["url"])
        vendor = open_market("runpod", settings)
        request = Request(run="otter", provider="runpod", gpu="L40S", num_gpus=1, nodes=NODES)
        limits = Limits(time_s=HOURS * 3600, spend_micro_usd=20 * USD, idle_gpu_s=900.0)
        plan = Plan("t", "", (), Job(run="", token="", steps=(), limits=limits), request)
        ops: list = []
        rental = renting.Rental(plan, vendor.offers(request), lambda _: vendor, journal, print, Terms())
        renting.rent_all(rental, ops)
        for op, hours in zip(ops, (1, 9), strict=True):
            op = journal.note(journal.op(op.token), boot_s=(op.boot_s or 0) - hours * 3600 / SPEED)
            pods.end(vendor, op, journal, observation.GONE)
        keeper = RunKeeper(journal, lambda _: vendor, vendor.offers, RunHome(tmp_path / "home"), {}, print)
        keeper.home.snapshot.code.mkdir(parents=True)
        yield journal, keeper, settings, vendor


def rows(journal):
    return [op for rank in range(NODES) for op in journal.ops(run=run_rows.name_of("otter", rank))]


def spent(journal):
    return sum(spend.spent(op, read_clocks(), SPEED) for op in rows(journal))


def recover(journal, keeper, limits=None):
    """Return the caps of the new pods of the run, which are given back, and the earlier cost."""
    before, used, seen = {op.token for op in rows(journal)}, spent(journal), []

    def accept(*_):
        seen.append(None)
        if len(seen) == NODES:
            raise SlipwayError("enough was seen")
        return ""

    keeper.terms = Terms(accept=accept)
    with pytest.raises(SlipwayError, match="enough was seen"):
        keeper.restart_on_next_offer(journal.ops(run="otter")[-1], limits=limits, is_asked=True)
    new = [op for op in rows(journal) if op.token not in before]
    assert len(new) == NODES and not any(op.is_live for op in new)
    return [Job.from_json(op.job).limits for op in new], used


def test_nodes_of_a_resumed_run_share_the_limit(begun):
    journal, keeper, settings, _ = begun
    limits = resume.new_limits(journal.ops(run="otter")[-1], journal, settings, "30", "")
    assert limits is not None
    shares, used = recover(journal, keeper, limits)
    caps = [one.spend_micro_usd for one in shares]
    assert all(caps) and used > 0
    assert sum(caps) + used <= 30 * USD and sum(caps) > (30 * USD - used) * 0.99
    assert [one.idle_gpu_s for one in shares] == [900.0] * NODES, "what was not named stays"
    assert all(one.time_s and one.time_s < HOURS * 3600 for one in shares)


def test_a_recovered_run_gets_the_remaining_money_of_all_its_nodes(begun):
    journal, keeper, _, _ = begun
    for _ in range(2):
        shares, used = recover(journal, keeper)
        caps = [one.spend_micro_usd for one in shares]
        assert sum(caps) + used <= 40 * USD and sum(caps) > (40 * USD - used) * 0.99


def test_time_and_money_limits_hold_independently(begun):
    journal, keeper, settings, _ = begun
    limits = resume.new_limits(journal.ops(run="otter")[-1], journal, settings, "", "100h")
    shares, used = recover(journal, keeper, limits)
    assert [one.time_s for one in shares] == [360_000.0] * NODES
    assert sum(one.spend_micro_usd for one in shares) + used <= 40 * USD
    first = journal.ops(run="otter")[-1]
    journal.note(first, lived_s=2 * HOURS * 3600 / SPEED)
    limits = resume.new_limits(journal.ops(run="otter")[-1], journal, settings, "900000", "")
    with pytest.raises(LimitHit, match="inv resume otter --ttl TIME, above"):
        keeper.restart_on_next_offer(journal.ops(run="otter")[-1], limits=limits, is_asked=True)


def test_the_cost_of_all_nodes_counts_when_a_limit_is_refused(begun):
    journal, _, settings, _ = begun
    most = max(spend.spent(op, read_clocks(), SPEED) for op in rows(journal)) / USD
    with pytest.raises(UsageError, match="has already cost .* USD; give a higher --spend-limit"):
        resume.new_limits(journal.ops(run="otter")[-1], journal, settings, f"{most:.2f}", "")


def test_the_share_of_a_pod_that_has_not_ended_stays_reserved(begun):
    journal, keeper, _, vendor = begun
    request = Request(run="otter.1", provider="runpod", gpu="L40S", num_gpus=1)
    job = Job(run="", token="", steps=(), limits=Limits(spend_micro_usd=15 * USD))
    lost = pods.rent(vendor, request, vendor.offers(request)[0], job, journal, pods.RowDraft(rank=1))
    pods.detach(lost, journal, "its machine is silent")
    shares, used = recover(journal, keeper)
    assert sum(one.spend_micro_usd for one in shares) + used + 15 * USD <= 40 * USD + spend.spent(
        journal.op(lost.token), read_clocks(), SPEED
    )
