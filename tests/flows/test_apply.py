"""The maximum common cost of all pods of a set."""

import pytest

from flows.pods.apply import SetLimit
from infra.errors import UsageError
from infra.ledger import budgets
from infra.ledger.journal import Journal
from infra.settings import Settings
from tests.world import ROOT


def test_apply_changes_an_existing_limit_of_a_set_with_unchanged_pods(tmp_path):
    environ = {"SLIPWAY_STATE_FILE": str(tmp_path / "journal.db"), "HOME": str(tmp_path)}
    settings = Settings.load(ROOT, environ=environ)

    def limit(said):
        found = SetLimit.for_set("fleet", said, {})
        assert found
        return found

    def amount():
        found = budgets.find(journal, "set:fleet")
        return found and found.amount

    with Journal.open(settings.state_file, environ) as journal:
        assert not limit("2").change_budget(journal, settings) and amount() is None  # no budget pays for the pods
        limit("2").open_budget(journal, settings)
        assert not limit("2").change_budget(journal, settings) and limit("5").change_budget(journal, settings)
        assert amount() == 5_000_000
        budgets.reserve(journal, "set:fleet", "a", 3_000_000)
        with pytest.raises(UsageError, match="Give at least 3.00 USD: --spend-limit"):
            limit("2.99").change_budget(journal, settings)
        assert limit("3").change_budget(journal, settings) and amount() == 3_000_000
