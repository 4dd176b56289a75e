"""A hostile program on a rented pod that attacks the laptop's files, keys and code execution, over a real sshd."""

import json
import secrets
import shutil
from pathlib import Path

import pytest

from infra.agent.process import end_all
from tests.end_to_end.test_street_keep import kill_guard_and_agent
from tests.end_to_end.test_street_ssh import world as world
from tests.hosts import sshd as sshd
from tests.programs import source
from tests.world import World, until

pytestmark = [pytest.mark.pack("jobs"), pytest.mark.process, pytest.mark.timeout(300)]

RUN, SECRET = "guest", secrets.token_hex()


def job_of(folder: Path, **files: object) -> list[str]:
    """Return the words of a launch of the hostile program with these files, named without their suffix."""
    (folder / "job").mkdir()
    (folder / "job" / "hostile.py").write_text(source("hostile_job"))
    (folder / "job" / "files.json").write_text(json.dumps({f"{name}.json": said for name, said in files.items()}))
    command = f"python3 hostile.py {folder / 'go'}"
    return ["launch", "--provider", "ssh", "--cmd", command, "--workdir", str(folder / "job"), "-n", RUN, "--yes"]


def logs_at_home(world: World) -> list[Path]:
    """Return the local copies of the log; their lines in the list follow the forged entries."""
    return list(world.folder.glob(f"*/{RUN}/**/z.log"))


def run_to_its_end(world: World, words: list[str]) -> None:
    launch = world.begin(*words)
    until(lambda: logs_at_home(world), "the logs are at home")
    (world.folder / "go").touch()
    out, err = launch.communicate(timeout=120)
    assert launch.returncode == 0, f"{out}\n{err}"


@pytest.mark.nightly
def test_log_named_like_a_record_removes_no_folder_of_the_laptop(world, tmp_path):
    for name in ("thesis", "photos"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "work").write_text(SECRET)
    carried = [{"name": name, "source": "/", "file": ""} for name in (str(tmp_path / "thesis"), "../../photos")]
    run_to_its_end(world, job_of(tmp_path, carried=carried))
    assert [(tmp_path / name / "work").read_text() for name in ("thesis", "photos")] == [SECRET] * 2
    (row,) = world.json("status")
    assert row["state"] == "succeeded"
    assert (
        "the local copy of the pod's files is incomplete: 1 file of the pod cannot be downloaded, because of the names:"
        in row["note"]
    )
    assert world.inv("logs", RUN, "--file", "z") == "said\n"


@pytest.mark.nightly
def test_files_named_in_a_log_of_a_pod_are_not_sent_to_the_next_pod(world, sshd, tmp_path):
    (tmp_path / "keys").mkdir()
    (tmp_path / "keys" / "known.txt").write_text(SECRET)
    launch = world.begin(*job_of(tmp_path, carried=[{"name": "loot", "source": str(tmp_path / "keys"), "file": ""}]))
    until(lambda: logs_at_home(world), "the logs are at home")
    pod = sshd.folder / ".slipway" / "pods" / RUN
    lose(pod)
    (tmp_path / "go").touch()
    out, err = launch.communicate(timeout=200)
    assert launch.returncode == 0 and "looking for a new machine (recovery 1)" in err, f"{out}\n{err}"
    assert (pod / "workdir" / "hostile.py").exists()
    assert not [path for path in pod.rglob("*") if path.is_file() and SECRET.encode() in path.read_bytes()]
    assert "loot" not in out + err


@pytest.mark.nightly
@pytest.mark.pack("history")
def test_log_named_like_the_receipt_runs_no_code_in_again(world, tmp_path):
    stolen = tmp_path / "run-by-the-laptop"
    words = ["-c", f"open({str(stolen)!r}, 'w').close()"]
    config = {"making": {"name": "x", "fingerprint": "0" * 12, "inputs": {}, "store": ""}}
    receipt = {
        "schema": 1,
        "at": 0.0,
        "commit": "",
        "diff_sha256": "",
        "environment": "",
        "provider": "ssh",
        "micro_usd_per_hour": 0,
        "asked": {},
        "offer": {},
        "store": str(tmp_path / "artifacts"),
        "extensions": [],
        "job": {"steps": [{"name": "x", "words": words, "config": config}]},
    }
    run_to_its_end(world, job_of(tmp_path, run=receipt))
    (ours,) = world.folder.glob(f"*/{RUN}/run.json")
    assert str(stolen) not in ours.read_text()
    world.run("again", RUN)
    assert not stolen.exists()


def lose(pod: Path) -> None:
    """Remove the pod from the machine, processes and disk."""
    token = json.loads((pod / "POD.json").read_text())["token"]
    kill_guard_and_agent(pod)
    end_all(token, 0.0)
    shutil.rmtree(pod.parents[1])
