"""An unreadable inventory or cluster is a problem of that entry only: the others are listed."""

import pytest

from flows.pods import accounts
from infra.ledger.journal import Journal
from infra.ledger.reconcile import take_snapshot
from infra.machines.inventory import InvalidEntry
from infra.providers import PartialListing
from infra.records import Address, Pod
from infra.runs.acceptance import terms_for
from infra.runs.engine import engine_of
from infra.settings import Settings
from packs.slurm.control.clusters import SlurmClusters
from packs.slurm.control.inventory import SlurmCluster

KEY = "k" * 24


def settings_in(tmp_path, **more):
    environ = {"HOME": str(tmp_path), "SLIPWAY_STATE_FILE": str(tmp_path / "state" / "journal.db")}
    return Settings.load(tmp_path, environ={**environ, **more})


def test_unreadable_inventory_of_clusters_is_a_problem_next_to_the_accounts(tmp_path):
    (tmp_path / "clusters.yaml").write_text("- nothing")
    found = settings_in(tmp_path, SLIPWAY_CLUSTERS=str(tmp_path / "clusters.yaml"), LIUM_API_KEY=KEY)
    with Journal.open(found.state_file) as journal:
        markets, problems = accounts.known_accounts(found, journal, "")
    assert [one.name for one in markets] == ["lium"]
    assert len(problems) == 1 and problems[0].startswith("slurm: ") and "clusters.yaml" in problems[0]


def test_other_machines_are_listed_despite_an_unusable_entry(tmp_path):
    bad = InvalidEntry("keyless", "192.0.2.1", "pools.yaml: pool keyless, host 192.0.2.1: private key not found: /none")
    mine = Pod(provider="slurm", pod_id="t@fx", token="sw1-aaaaaaaa-0000000000000000", run="r", address="")

    class Seen(SlurmClusters):
        def _on(self, cluster):
            return [mine]

    cluster = SlurmCluster(name="fx", address=Address("a", "192.0.2.2", 22, "/key", "/"), partitions={})
    engine = Seen((cluster,), lambda _: None, (bad,))
    with pytest.raises(PartialListing, match="some clusters have not answered: keyless/192.0.2.1: ") as error:
        engine.list()
    assert error.value.pods == (mine,)
    with Journal.open(settings_in(tmp_path).state_file) as journal:
        seen = take_snapshot(engine, journal)
    assert seen.listing.pods == (mine,) and not seen.listing.is_complete and len(seen.problems) == 1


def test_slurm_recovers_its_runs_costs_no_money_and_is_reachable(tmp_path):
    clusters = SlurmClusters((), lambda cluster: pytest.fail("no cluster is asked"))
    assert clusters.restarts_runs and engine_of(clusters) is None
    terms = terms_for(settings_in(tmp_path), clusters)
    assert terms.accept is None and terms.admit is None
