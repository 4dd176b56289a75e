"""Shadeform's rehearsed server, with the requests of a client."""

import base64
import copy
from datetime import datetime, timezone

import pytest

from infra.agent import process
from infra.rehearsal.clock import parse_iso
from tests.infra.rehearsal.worlds import Running, until
from tests.vendors import contract

pytestmark = pytest.mark.process

DOCUMENT = contract.load("shadeform")
B200 = {"cloud": "hyperstack", "region": "canada-1", "shade_instance_type": "8x_b200_pcie_192gb"}
BODY = {**B200, "shade_cloud": True, "name": "sw1-a"}


def create(world: Running, **fields) -> str:
    body = {**BODY, "ssh_key_id": world.shadeform_key(), **fields}
    assert not DOCUMENT.violations("CreateRequest", body)
    answer = world.call("shadeform", "POST", "/instances/create", body)
    assert answer.status_code == 200, answer.text
    assert not DOCUMENT.violations("CreateResponse", answer.json())
    return answer.json()["id"]


def info(world: Running, pod_id: str) -> dict:
    return world.call("shadeform", "GET", f"/instances/{pod_id}/info").json()


def active(world: Running, pod_id: str) -> dict:
    return until(lambda: (row := info(world, pod_id))["status"] == "active" and row, "an active instance")


def ids(world: Running) -> list[str]:
    return [row["id"] for row in world.call("shadeform", "GET", "/instances").json()["instances"]]


def test_an_instance_runs_from_its_offer_to_its_proven_end(world):
    types = world.call("shadeform", "GET", "/instances/types", params={"gpu_type": "B200", "sort": "price"}).json()
    assert not DOCUMENT.violations("InstanceTypesResponse", types)
    assert [row["hourly_price"] for row in types["instance_types"]] == [3360, 3584, 3840]
    script = base64.b64encode(b"echo begun > $HOME/begun").decode()
    launch = {"type": "script", "script_configuration": {"base64_script": script}}
    world.fault(machines=[{"trait": "hang"}])
    waiting, pod_id = create(world), create(world, tags=["slipway-run=a"], launch_configuration=launch)
    assert info(world, waiting)["status"] in ("creating", "pending_provider", "pending")
    assert world.pod(waiting)["billed_micro_usd"] == 0
    row = active(world, pod_id)
    assert not DOCUMENT.violations("InstanceInfoResponse", row)
    until(lambda: world.ssh(row["ssh_user"], row["ip"], row["ssh_port"], "cat begun").stdout == "begun\n", "the script")
    done = world.ssh(row["ssh_user"], row["ip"], row["ssh_port"], "nvidia-smi -L | wc -l; pwd; echo ~; exit 7")
    count, folder, home = done.stdout.split()
    assert (count, folder, done.returncode) == ("8", home, 7) and "/state/pods/" in home
    # A process that leaves its session, its parent and its environment still belongs to the pod.
    away = "env -i setsid sh -c 'trap : TERM; echo $$; exec >/dev/null 2>&1; sleep 1000 & wait' &"
    runaway = process.identify(int(world.ssh(row["ssh_user"], row["ip"], row["ssh_port"], away).stdout))
    assert runaway is not None
    until(lambda: world.pod(pod_id)["processes"] >= 4, "the runaway's own child")  # started after the pid was printed
    assert world.pod(pod_id)["billed_micro_usd"] % (33_600_000 // 60) == 0 < world.pod(pod_id)["billed_micro_usd"]
    deleted = world.delete("shadeform", pod_id)
    assert (deleted.status_code, deleted.content) == (200, b"")
    until(lambda: pod_id not in ids(world), "absence")
    assert info(world, pod_id) == {"error": "not found"}
    true = world.pod(pod_id)
    assert (true["processes"], true["state"], true["ended_by"]) == (0, "gone", "client")
    assert not process.is_alive(runaway)


def test_spend_and_date_limits_end_an_instance_without_a_client(world):
    date = datetime.fromtimestamp(parse_iso(world.truth()["now"]) + 360_000, timezone.utc).isoformat()
    limits = {"spend_threshold": "9000.00", "date_threshold": date}
    by_date = create(world, auto_delete=limits)
    assert info(world, by_date)["auto_delete"] == limits
    by_money = create(world, auto_delete={**limits, "spend_threshold": "1.00"})
    until(lambda: ids(world) == [by_date], "the dollar's end")
    true = world.pod(by_money)
    assert true["ended_by"] == "spend limit" and 1_000_000 <= true["billed_micro_usd"] <= 1_000_000 + 2 * 560_000
    world.move(360_000)
    until(lambda: ids(world) == [], "the date's end")
    assert world.pod(by_date)["ended_by"] == "time limit"


def test_an_update_changes_named_fields_and_null_removes_a_field(world):
    pod_id = create(world, tags=["a"], auto_delete={"spend_threshold": "5000.00"})
    path = f"/instances/{pod_id}/update"
    assert world.call("shadeform", "POST", path, {"tags": ["b"]}).status_code == 200
    assert (info(world, pod_id)["tags"], info(world, pod_id)["auto_delete"]) == (["b"], {"spend_threshold": "5000.00"})
    assert world.call("shadeform", "POST", path, {"auto_delete": None}).status_code == 200
    assert "auto_delete" not in info(world, pod_id)


def test_refusals_have_the_vendors_text(world):
    refused = world.call("shadeform", "GET", "/instances", headers={"X-API-KEY": "wrong"})
    assert (refused.status_code, refused.json()) == (401, {"message": "Invalid API key"})
    world.fault(machines=[{"trait": "ghost", "offer": "hyperstack"}])
    taken = world.call("shadeform", "POST", "/instances/create", BODY)
    assert (taken.status_code, taken.json()["error_code"]) == (409, "OUT_OF_STOCK")
    world.shadeform_key()
    body = {"name": "mine", "public_key": world.public_key}
    assert not DOCUMENT.violations("AddSshKeyRequest", body)
    twice = world.call("shadeform", "POST", "/sshkeys/add", body)
    assert twice.status_code == 400 and "name must be unique" in twice.json()["error"]
    assert [world.call("shadeform", *ask).status_code for ask in (("GET", "/x"), ("DELETE", "/instances"))] == [
        404,
        405,
    ]


@pytest.mark.parametrize("trait", ["fail", "preempted"])
def test_a_lost_instance_is_an_error_and_no_longer_bills(world, trait):
    world.fault(machines=[{"trait": trait, "after_s": 60}])
    pod_id = create(world)
    row = until(lambda: (row := info(world, pod_id))["status"] == "error" and row, "an error")
    assert (
        row["status_details"] == {"fail": "failed"}.get(trait, trait) and world.pod(pod_id)["micro_usd_per_hour"] == 0
    )


def test_requests_against_the_document_and_unknown_fields_are_refused(world):
    bodies = [
        {**BODY, name: value}
        for name in DOCUMENT.document["components"]["schemas"]["CreateRequest"]["properties"]
        for value in (7, [7], {"x": 7})
    ]
    bodies += [{name: value for name, value in BODY.items() if name != left} for left in BODY]
    for body in bodies:
        if DOCUMENT.violations("CreateRequest", body):
            assert world.call("shadeform", "POST", "/instances/create", body).status_code == 400, body
    deep = copy.deepcopy(BODY) | {"auto_delete": {"delete_at": "2030-01-01T00:00:00Z"}}
    for body in ({**BODY, "spot": True}, deep):
        answer = world.call("shadeform", "POST", "/instances/create", body)
        assert answer.status_code == 400 and "unknown field" in answer.json()["error"]
    assert ids(world) == []
