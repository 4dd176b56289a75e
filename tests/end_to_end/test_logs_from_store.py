"""`inv logs` of a run without a pod and without local logs: the uploader's copies in the store are shown."""

import shutil

import pytest

from infra.agent.job import Job, Step
from infra.ledger.journal import Journal
from infra.names import new_token
from store.run_sync.run_folder import RunFolder
from tests.world import World

pytestmark = pytest.mark.process


def test_logs_of_a_lost_pod_are_read_from_the_store(tmp_path):
    world, run = World(tmp_path), "brave-otter-1"
    store = world.folder / "artifacts"
    there = RunFolder(str(store), run)
    there.put({"logs/base.log": [b"step 1\nstep 2\n"]})
    there.put({"logs/base.times": [b"100.0 7\n200.0 14\n"]})
    there.put({"logs/error-20261121T101112Z.log": [b"run brave-otter-1, step base: why\n"]})
    job = Job(run, "t", (Step("base", ("-m", "trainer", "base")),))
    with Journal.open(world.environ["SLIPWAY_STATE_FILE"], world.environ) as journal:
        token = new_token(journal.installation)
        op = journal.plan(token=token, run=run, vendor="local", store=str(store), job=job.to_json())
        journal.advance(journal.advance(op, "sending"), "refused")
    assert world.inv("logs", run) == "step 1\nstep 2\n"
    assert world.inv("logs", run, "--errors") == "run brave-otter-1, step base: why\n"
    there.put({"logs/base.log": [b"step 1\nstep 2\nstep 3\n"]})  # The local copy is older, and is replaced.
    assert world.inv("logs", run, "--tail", "1") == "step 3\n"
    shutil.rmtree(store)
    assert world.inv("logs", run, "--file", "base") == "step 1\nstep 2\nstep 3\n"  # The log is local now.
