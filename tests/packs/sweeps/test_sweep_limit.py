"""The default limit of a sweep follows the runs, and never rises by itself."""

from dataclasses import replace

import pytest

from flows.specs.launch import LaunchSpec
from infra.errors import UsageError
from infra.flags import flags_of
from infra.ledger import budgets
from infra.ledger.journal import Journal
from infra.runs.keepers.pod_set import PodEntry
from infra.selection.machine_spec import MachineSpec
from packs.sweeps.control.limit import HighCost, default_of, limit_before
from packs.sweeps.control.pods import KEYS, SweepPods, limit_of, shared_machine_of
from packs.sweeps.control.trials.records import SweepSpec, SweepTrial

USD = 10**6


@pytest.fixture
def journal(tmp_path):
    with Journal.open(tmp_path / "journal.db") as opened:
        yield opened


def test_limit_of_all_runs_is_a_multiple_of_their_total_cost(journal):
    told = []
    tabled = [HighCost(USD, False), HighCost(2 * USD, True)]
    assert default_of("s", tabled, journal, told.append) == 30 * USD
    assert "all runs together: " in told[0] and "10 times the high estimate of 3.00 USD, based on a" in told[0]
    measured = [HighCost(2 * USD, True), HighCost(2 * USD, True)]
    assert default_of("s", measured, journal, told.append) == 12 * USD
    assert default_of("s", [HighCost(USD, True), None], journal, told.append) == 150 * USD
    assert "the cost of the work is unknown" in told[-1] and limit_before("s", journal) is None


def test_resumed_sweep_keeps_its_limit(journal):
    told = []
    budgets.open_budget(journal, "sweep:s", 8 * USD, None)
    assert default_of("s", [HighCost(100 * USD, True)], journal, told.append) == 8 * USD
    assert told == ["s continues with the limit of 8.00 USD; to change the limit: --spend-limit"]
    assert limit_before("s", journal) == 8 * USD


def spec(*limits: str, spend_limit: str = "") -> SweepSpec:
    trials = {
        f"r{n}": SweepTrial(run=f"r{n}", arm="a", spec=LaunchSpec(spend_limit=one)) for n, one in enumerate(limits)
    }
    return SweepSpec(name="s", trials=trials, spend_limit=spend_limit)


def test_pods_have_the_typed_limit_or_the_limit_of_all_runs(tmp_path):
    assert limit_of(spec("3", "$4")) == 7 * USD and limit_of(spec("3", "")) is None
    assert limit_of(spec("3", "", spend_limit="$20")) == 20 * USD
    with pytest.raises(UsageError, match="--spend-limit is 0"):
        limit_of(spec("", spend_limit="0"))
    entry, own = PodEntry(name="p", gpu_count=1), PodEntry(name="q", gpu_count=1, ttl_hours=2.0)
    shared = SweepPods("s", {"p": entry, "q": own})
    assert shared.is_open and not SweepPods("s", {"q": own}).is_open
    limit = shared.with_limit(8 * USD).limit
    assert limit is not None and (limit.budget, limit.amount, limit.share) == ("sweep:s", 8 * USD, 4 * USD)
    assert not shared.with_limit(8 * USD).is_open


def test_pod_shared_by_runs_has_every_machine_flag_or_refuses_the_flag():
    refused = set()
    for each in flags_of(MachineSpec):
        typed = {"gpu": "A100", "num_gpus": 2}.get(each.name, {bool: True, int: 5, str: "5"}[each.kind])
        try:
            pod = shared_machine_of(replace(LaunchSpec(), **{each.name: typed}))
        except UsageError as refusal:
            assert f"--{each.spelling} does not apply" in str(refusal)
            refused.add(each.name)
        else:
            assert getattr(pod, KEYS.get(each.name, each.name)) == typed
    assert refused == {"all_configs", "machine_filter"}
