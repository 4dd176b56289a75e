"""The copies of a pod's logs at home, on folders of this machine."""

import os
from pathlib import Path

import pytest

from infra.ledger.op import Op
from infra.runs.run_home import RunHome
from infra.runs.sync import fetched_files, mirror
from infra.transport.protocol import ThisMachine

pytestmark = pytest.mark.process


def bring(root: Path, home: Path) -> str:
    mirror.bring_logs(Op(token="sw1-test", run="a-1", vendor="ssh", address=str(root)), ThisMachine(), RunHome(home))
    return RunHome(home).pod.log("fetch").read_text()


def write(root: Path, text: str, folder: str = "logs") -> None:
    (root / folder).mkdir(parents=True, exist_ok=True)
    (root / folder / "fetch.log").write_text(text)


def test_the_copy_of_a_log_joins_the_logs_of_all_pods_in_order(tmp_path):
    first, second, home = tmp_path / "first", tmp_path / "second", tmp_path / "home"
    write(first, "one\n")
    assert bring(first, home) == "one\n"
    write(first, "one\n" + "two\n" * 200)
    assert bring(first, home) == "one\n" + "two\n" * 200
    write(second, "three, which is as long as all that the first one has written\n" * 50)
    write(second, "one\n", "state/earlier")  # as far as the store had the log
    for _ in range(2):
        assert bring(second, home) == "one\n" + "three, which is as long as all that the first one has written\n" * 50
    third = tmp_path / "third"
    write(third, "")  # the pod began the log without an earlier log
    assert bring(third, home) == ""


def test_a_too_large_log_is_cut_at_the_end_and_the_cut_is_reported(tmp_path, monkeypatch):
    monkeypatch.setattr(fetched_files, "FILE_BYTES", 100_000)
    there, home = tmp_path / "there", RunHome(tmp_path / "home")
    write(there, "beginning\n")
    os.truncate(there / "logs" / "fetch.log", 10**12)  # a sparse file
    for _ in range(2):
        assert len(bring(there, home.folder)) == 100_000
        (told,) = fetched_files.read_cuts(home)
        assert told.startswith(
            "logs/fetch.log: the first 100.0 kB of 1000.0 GB are here (100.0 kB is the maximum per file"
        )
    write(there, "beginning\n")
    assert bring(there, home.folder) == "beginning\n" and fetched_files.read_cuts(home) == []
