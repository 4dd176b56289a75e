"""This machine's disk keeps a reserve: below the reserve only the last reports of pods are fetched, and `status`
reports it.
"""

import shutil

import pytest

from infra.errors import SlipwayError
from infra.ledger.op import Op
from infra.runs.run_home import RunHome
from infra.runs.sync import fetched_files, mirror, reports
from infra.runs.sync.snapshot import Downloads
from infra.transport.protocol import ThisMachine
from tests.world import World

OP = Op(token="sw1-aaaaaaaa-bbbbbbbb", run="brave-otter-1", vendor="ssh")


def test_only_reports_are_fetched_below_the_reserve_with_a_reason(tmp_path, monkeypatch):
    brought, said = [], []
    monkeypatch.setattr(reports, "download", lambda *_: brought.append("words"))
    monkeypatch.setattr(mirror, "bring_logs", lambda *_: brought.append("logs"))
    Downloads(RunHome(tmp_path / "runs" / "run"), said.append, 1 << 60).download_all(OP, ThisMachine(), "")
    assert brought == ["words"]
    assert (
        "logs and results of runs stay on the pods until the pods end, and are not downloaded; free some disk space"
        in said[1]
    )
    Downloads(RunHome(tmp_path / "runs" / "run"), said.append, 1).download_all(OP, ThisMachine(), "")
    assert brought == ["words", "logs", "words"] and len(said) == 3


def test_the_disk_of_the_nearest_existing_folder_counts(tmp_path):
    free = shutil.disk_usage(tmp_path).free
    assert fetched_files.reserve_problem(tmp_path / "a" / "b", free // 2) == ""
    assert f"are free on the disk of {tmp_path}, and " in fetched_files.reserve_problem(tmp_path / "a" / "b", free * 2)
    with pytest.raises(SlipwayError, match="SLIPWAY_RESERVE_BYTES"):
        fetched_files.check_reserve(tmp_path, free * 2)


@pytest.mark.process
def test_status_reports_that_fetching_has_stopped(tmp_path):
    process = World(tmp_path, {"SLIPWAY_RESERVE_BYTES": str(1 << 60)}).run("status", "--json")
    out, err = process.stdout, process.stderr
    assert process.returncode == 0 and out == "[]\n", (out, err)
    assert (
        "must stay free (SLIPWAY_RESERVE_BYTES): logs and results of runs stay on the pods until the pods end"
        in " ".join(err.split())
    )
