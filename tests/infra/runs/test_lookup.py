"""The connection to the pod of a row."""

import pytest

from infra.errors import UsageError
from infra.ledger.journal import Journal
from infra.runs.lookup import find_run, names_of_runs, transport_to
from infra.settings import Settings
from tests.world import ROOT


def test_a_gone_rented_machine_gets_no_connection(tmp_path):
    environ = {"SLIPWAY_STATE_FILE": str(tmp_path / "journal.db"), "HOME": str(tmp_path), "RUNPOD_API_KEY": "k"}
    settings = Settings.load(ROOT, environ=environ)
    with Journal.open(settings.state_file) as journal:
        op = journal.plan(token="sw1-1", run="calm-1", vendor="runpod", rate=2_000_000)
        for event in ("sending", "created", "gone"):
            op = journal.advance(op, event, **({"remote_id": "p1"} if event == "created" else {}))
    with pytest.raises(UsageError, match="calm-1 has ended, and the machine is gone; .* inv logs calm-1"):
        transport_to(settings, op)


def test_a_detached_node_is_not_a_separate_run(tmp_path):
    """A node with an unanswered creation got no list of other nodes: only its row shows that it is a node."""
    with Journal.open(tmp_path / "journal.db") as journal:
        journal.plan(token="sw1-1", run="calm-1", vendor="runpod")
        op = journal.plan(token="sw1-2", run="calm-1.1", rank=1, vendor="runpod")
        for event in ("sending", "unclear", "detach"):
            op = journal.advance(op, event)
        assert names_of_runs(journal) == ["calm-1"] and find_run(journal, "calm").run == "calm-1"
        assert find_run(journal, "calm-1.1") == op
