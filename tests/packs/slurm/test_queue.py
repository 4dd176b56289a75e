"""The agent's parsing of Slurm's listings."""

import json
import subprocess
import sys

import pytest

from packs.slurm.agent import queue
from tests.world import ROOT


def test_job_number_is_bounded():
    assert [queue.number(one) for one in ("17", "17_4", "17+1", "", "x")] == [17, 17, 17, 0, 0]
    with pytest.raises(queue.QueueError, match="a number of 5000 digits: 77777777777777777777..."):
        queue.number("7" * 5000)


@pytest.mark.process
def test_job_number_of_5000_digits_is_an_error_message(tmp_path):
    squeue = tmp_path / "squeue"
    squeue.write_text(f"#!/bin/sh\necho '{'7' * 5000}|RUNNING|gpu|1|1:00|node1|name|None'\n")
    squeue.chmod(0o755)
    done = subprocess.run(
        [sys.executable, str(ROOT / "packs" / "slurm" / "agent" / "queue.py"), "jobs"],
        env={"PATH": f"{tmp_path}:/usr/bin:/bin"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0 and "a number of 5000 digits" in json.loads(done.stdout)["unheard"], done.stderr
