import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from infra.agent.job import Job, Limits, PodFolder, Step
from infra.agent.process import find
from infra.errors import NoOffer, SlipwayError, UsageError
from infra.ledger.journal import Journal
from infra.names import new_token
from infra.providers import local as local_provider
from infra.providers.local import Local
from infra.records import Plan, Request
from infra.runs import pods, renting

pytestmark = pytest.mark.process

REPOSITORY = Path(__file__).parents[3]
FOREVER = "import time\nprint('working', flush=True)\nwhile True: time.sleep(0.1)\n"


@pytest.fixture
def local(tmp_path):
    return Local(tmp_path / "pods")


def rent(local, run="a-1", token=None):
    request = Request(run=run)
    (offer,) = local.offers(request)
    return local.create(request, offer, token or new_token("abcdefgh"), Limits())


def start(pod, script=FOREVER):
    """Hand over a job with a single step and start the agent, as a launch does."""
    folder = PodFolder(Path(pod.address))
    (folder.code / "work").mkdir(parents=True, exist_ok=True)
    (folder.code / "step.py").write_text(script)
    job = Job(run=pod.run, token=pod.token, steps=(Step(name="work", words=("step.py",)),))
    folder.job.write_text(job.to_json())
    folder.secrets.write_text("{}")
    words = [sys.executable, "-m", "infra.agent", "start", pod.address]
    subprocess.run(words, check=True, capture_output=True, env={**os.environ, "PYTHONPATH": str(REPOSITORY)})
    return folder


def await_text(path, text):
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        if path.exists() and text in path.read_text():
            return
        time.sleep(0.01)
    raise AssertionError(f"{path} never said {text!r}")


def test_this_machine_is_offered_for_free_if_it_meets_the_request(local):
    (offer,) = local.offers(Request(run="a-1"))
    assert (offer.provider, offer.micro_usd_per_hour) == ("local", 0)
    assert 1 <= offer.cpus <= os.cpu_count() and offer.memory_bytes > 1 << 28
    assert local.offers(Request(run="a-1", num_gpus=offer.num_gpus + 1)) == []
    assert local.offers(Request(run="a-1", gpu="Quantum9000")) == []
    assert local.offers(Request(run="a-1", nodes=2)) == [offer]  # any number of pods
    assert local.account().balance_micro_usd is None and local.account().owner


@pytest.mark.parametrize(
    ("request_said", "of_job", "expected"),
    [
        ({"gpu": "H100:8,A100:4"}, 1, 8),
        ({"gpu": "H100:2,A100:4"}, 1, 2),
        ({"gpu": "H100,A100", "num_gpus": 4}, 4, 4),
        ({"gpu": "H100"}, 1, 1),
        ({"gpu": "H100:8,A100:4"}, 0, 0),
    ],
)
def test_job_has_the_number_of_a_set_that_the_own_machine_satisfies(
    local, tmp_path, monkeypatch, request_said, of_job, expected
):
    monkeypatch.setattr(local_provider, "_gpus", lambda: ["NVIDIA H100 80GB HBM3"] * 8)
    request, ops = Request(run="a-1", provider="local", **request_said), []
    plan = Plan("t", "", (), Job(run="", token="", steps=(), num_gpus=of_job), request)
    with Journal.open(tmp_path / "journal.db") as journal:
        rental = renting.Rental(plan, local.offers(request), lambda _: local, journal, print, renting.PLAIN)
        renting.rent_all(rental, ops)
        assert ops[0].read_job().num_gpus == expected
        pods.end(local, journal.op(ops[0].token), journal)


def test_a_pod_exists_from_create_to_delete_and_its_work_survives(local):
    assert local.list() == []
    pod = rent(local)
    assert local.find(pod.token) == local.find(pod.pod_id) == pod and local.list() == [pod]
    assert json.loads((Path(pod.address) / "POD.json").read_text()) == {"token": pod.token, "run": "a-1"}
    folder = PodFolder(Path(pod.address))
    folder.work.mkdir()
    (folder.work / "checkpoint").write_text("precious")
    for _ in range(2):
        local.delete(pod.pod_id)
        assert local.find(pod.pod_id) is None and local.list() == []
    again = rent(local)
    assert again.address == pod.address and again.pod_id != pod.pod_id
    assert (folder.work / "checkpoint").read_text() == "precious"
    local.delete(pod.pod_id)
    assert local.find(again.pod_id) == again


def test_one_of_many_competing_pods_gets_the_folder_of_a_run(local):
    outcomes = []

    def attempt():
        try:
            outcomes.append(rent(local).token)
        except NoOffer as error:
            outcomes.append(str(error))

    threads = [threading.Thread(target=attempt) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    (winner,) = [one for one in outcomes if one.startswith("sw1-")]
    assert [pod.token for pod in local.list()] == [winner]
    assert all("run: inv down a-1" in one for one in outcomes if one != winner)


def test_a_run_name_cannot_lead_out_of_the_folder_of_pods(local):
    with pytest.raises(UsageError, match="is not a valid name"):
        rent(local, run="../elsewhere")


def test_a_damaged_marker_is_an_error_and_does_not_prove_absence(local):
    pod = rent(local)
    (Path(pod.address) / "POD.json").write_text("{")
    with pytest.raises(SlipwayError, match=r"POD.json is damaged"):
        local.find(pod.pod_id)


def test_deleting_ends_every_process_of_the_pod(local):
    pod = rent(local)
    folder = start(pod)
    try:
        await_text(folder.log("work"), "working")
        assert find(pod.token)
    finally:
        local.delete(pod.pod_id)
    assert find(pod.token) == []
    assert not folder.marker.exists() and not folder.secrets.exists()
    assert json.loads(folder.verdict.read_text())["state"] == "stopped"


def test_processes_that_outlive_their_folder_are_ended_too(local):
    pod = rent(local)
    folder = start(pod)
    await_text(folder.log("work"), "working")
    folder.marker.unlink()
    local.delete(pod.pod_id)
    assert find(pod.token) == []


def test_a_pod_with_unkillable_processes_keeps_its_marker(local):
    pod = rent(local)
    (Path(pod.address) / "job.json").write_text("not a job")
    with pytest.raises(SlipwayError, match="local: ending a-1 in .*: exit code 1: .*job.json"):
        local.delete(pod.pod_id)
    assert local.find(pod.pod_id) == pod
