"""All pods or none: the machines rented and given back by a launch over N nodes."""

from pathlib import Path

import pytest

from infra.agent.job import Job, Limits, Step
from infra.errors import NoOffer
from infra.ledger.journal import Journal
from infra.providers.local import Local
from infra.records import Plan, Request
from infra.runs import observation, pods, run_rows
from infra.runs.renting import Terms
from tests.infra.agent.world import until
from tests.street import launch_on

pytestmark = pytest.mark.process

REPOSITORY = Path(__file__).parents[3]
STEP = Step(name="work", words=("-c", "import os; print(repr(dict(os.environ)))"))


class HasOne(Local):
    """A provider with a second machine just taken by a different user."""

    def create(self, request, offer, token, limits):
        if len(self.list()) == 1:
            raise NoOffer("someone else took it")
        return super().create(request, offer, token, limits)


@pytest.fixture
def journal(tmp_path):
    with Journal.open(environ={"XDG_STATE_HOME": str(tmp_path), "XDG_CONFIG_HOME": str(tmp_path)}) as opened:
        yield opened


def plan(tmp_path: Path, nodes: int) -> Plan:
    job = Job(run="", token="", steps=(STEP,), limits=Limits(time_s=60))
    return Plan("target", str(tmp_path / "store"), (), job, Request(run="brave-otter-3", nodes=nodes))


def start(tmp_path, provider, journal, **more):
    return launch_on(provider, plan(tmp_path, 3), journal, REPOSITORY, terms=Terms(**more))


def test_all_nodes_are_given_back_before_sending_if_one_is_unavailable(tmp_path, journal):
    provider = HasOne(tmp_path / "pods")
    with pytest.raises(NoOffer, match=r"1 of 3 were available.*someone else took it"):
        start(tmp_path, provider, journal)
    assert provider.list() == [] and journal.ops(live=True) == []
    assert not list((tmp_path / "pods").rglob("code"))


def test_a_refused_node_gives_all_nodes_back(tmp_path, journal):
    provider, seen = Local(tmp_path / "pods"), []

    def refuse_the_last(transport, request, offer):
        seen.append(request.run)
        return "a slow disk" if len(seen) == 3 else ""

    with pytest.raises(NoOffer, match="a slow disk"):
        start(tmp_path, provider, journal, accept=refuse_the_last)
    assert seen == ["brave-otter-3", "brave-otter-3.1", "brave-otter-3.2"]
    assert provider.list() == [] and journal.ops(live=True) == []


def test_every_node_is_a_pod_with_a_row_and_a_rank(tmp_path, journal):
    provider = Local(tmp_path / "pods")
    op = start(tmp_path, provider, journal)
    rows = run_rows.nodes_of(op, journal)
    assert [(row.run, row.rank) for row in rows] == [
        ("brave-otter-3", 0),
        ("brave-otter-3.1", 1),
        ("brave-otter-3.2", 2),
    ]
    try:
        for rank, row in enumerate(rows):
            until(lambda row=row: observation.verdict_of(row, provider.reach(observation.pod_of(row))), "a verdict")
            said = observation.folder_of(row).log("work").read_text()
            for words in (
                f"'SLIPWAY_NODE_RANK': '{rank}'",
                f"'SKYPILOT_NODE_RANK': '{rank}'",
                "'SLIPWAY_NUM_NODES': '3'",
                r"'SLIPWAY_NODE_IPS': '127.0.0.1\n127.0.0.1\n127.0.0.1'",
                "'MASTER_ADDR': '127.0.0.1'",
                "'SLIPWAY_RUN_ID': 'brave-otter-3'",
                "'SKYPILOT_NUM_GPUS_PER_NODE': '0'",
            ):
                assert words in said
    finally:
        for row in rows:
            pods.end(provider, journal.op(row.token), journal)
    assert run_rows.nodes_of(journal.op(op.token), journal)[2].state == "TERMINATED"
