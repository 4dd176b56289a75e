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


# As Slurm's commands: a variable is an option of every call.
SLURM = """#!/bin/sh
case ${0##*/} in
squeue)
    case "$SQUEUE_PARTITION$SQUEUE_ACCOUNT$SQUEUE_QOS$SQUEUE_NODES" in ?*) exit 0; esac
    [ -z "$SQUEUE_FORMAT2" ] || { echo "squeue: error: two formats" >&2; exit 1; }
    case " $* " in *" --all "*" --user $(id -u) "*) ;; *) exit 0; esac
    [ -e cancelled ] || echo '7|RUNNING|gpu|1|1:00|node1|sw1-a|None';;
sacct) [ -n "$SACCT_FEDERATION" ] || echo '7|TIMEOUT|sw1-a';;
sinfo) [ -n "$SINFO_PARTITION" ] || echo 'n1|gpu|idle|8|16000|1-00:00:00|gpu:4';;
scancel) [ -n "$SCANCEL_INTERACTIVE$SCANCEL_PARTITION$SCANCEL_STATE" ] || touch cancelled;;
sbatch) echo "8 account=$SBATCH_ACCOUNT array=$SBATCH_ARRAY_INX wait=$SBATCH_WAIT conf=$SLURM_CONF";;
esac
"""
OWN_OPTIONS = """
SQUEUE_PARTITION SQUEUE_ACCOUNT SQUEUE_QOS SQUEUE_NODES SQUEUE_FORMAT2 SCANCEL_INTERACTIVE SCANCEL_PARTITION
SCANCEL_STATE SINFO_PARTITION SACCT_FEDERATION SBATCH_ARRAY_INX SBATCH_WAIT LOGNAME
""".split()


@pytest.mark.process
@pytest.mark.parametrize("name", ["", *OWN_OPTIONS])
def test_a_variable_of_the_user_hides_no_job(tmp_path, monkeypatch, name):
    for program in ("squeue", "sacct", "sinfo", "scancel", "sbatch"):
        (tmp_path / program).write_text(SLURM)
        (tmp_path / program).chmod(0o755)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setenv("SBATCH_ACCOUNT", "physics")  # the usual place of an account
    monkeypatch.setenv("SLURM_CONF", "/etc/one.conf")
    if name:
        monkeypatch.setenv(name, "1")
    assert queue.newest("sw1-a")["job"] == "7"
    assert [one["state"] for one in queue.ended("sw1-a")["jobs"]] == ["TIMEOUT"]
    assert [one["node"] for one in queue.partitions()["nodes"]] == ["n1"]
    assert queue.call(["sbatch"]) == "8 account=physics array= wait= conf=/etc/one.conf\n"
    assert queue.cancel("sw1-a") == {"jobs": []} and (tmp_path / "cancelled").exists()
