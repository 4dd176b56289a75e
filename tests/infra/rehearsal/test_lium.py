"""Lium's rehearsed server, with the requests of a client."""

import httpx
import pytest

from tests.infra.rehearsal.worlds import Running, until

pytestmark = pytest.mark.process


def executors(world: Running, **query) -> list[dict]:
    return world.call("lium", "GET", "/executors", params=query).json()


def h100(world: Running) -> dict:
    return executors(world, machine_names="NVIDIA H100 80GB HBM3", gpu_count_gte=8, gpu_count_lte=8)[0]


def rent(world: Running, executor: str, key: str = "", **fields) -> httpx.Response:
    template = world.call("lium", "GET", "/templates").json()[0]["id"]
    body = {"pod_name": "sw1-a", "template_id": template, "user_public_key": [world.public_key], "termination_hours": 8}
    headers = {"Idempotency-Key": key} if key else {}
    return world.call("lium", "POST", f"/executors/{executor}/rent", {**body, **fields}, headers=headers)


def pod(world: Running, pod_id: str) -> dict:
    return world.call("lium", "GET", f"/pods/{pod_id}").json()


def up(world: Running, pod_id: str) -> tuple[str, str, int]:
    row = until(lambda: (row := pod(world, pod_id))["ssh_connect_cmd"] and row, "a pod with an address")
    assert (row["status"], row["phase"]) == ("RUNNING", None)
    _, way, _, port = row["ssh_connect_cmd"].split()
    user, _, host = way.partition("@")
    return user, host, int(port)


def ids(world: Running) -> list[str]:
    return [row["id"] for row in world.call("lium", "GET", "/pods").json()]


def test_a_pod_runs_from_its_offer_to_its_proven_end(world):
    assert "rent_idempotency" in world.call("lium", "GET", "/version").json()["features"]
    offer = h100(world)
    assert (offer["price_per_gpu"], offer["gpu_count"], offer["nvlink"]) == (1.75, 8, True)
    assert offer["specs"]["ram"]["total"] == 1007 << 20
    made = rent(world, offer["id"]).json()
    assert made["success"] is True
    pod_id = made["pod_id"]
    assert (pod(world, pod_id)["price"], pod(world, pod_id)["gpu_count"]) == (14.0, "8")
    world.fault(machines=[{"trait": "hang"}])
    row = pod(world, rent(world, executors(world)[0]["id"]).json()["pod_id"])
    assert (
        row["status"] == "PENDING"
        and row["phase"]
        and row["estimated_ready_seconds"] >= 0
        and row["created_at"][-1].isdigit()
    )
    assert offer["id"] not in [one["id"] for one in executors(world)]
    taken = rent(world, offer["id"])
    assert (taken.status_code, taken.json()["error"]["code"]) == (409, "conflict")
    assert world.ssh(*up(world, pod_id), "echo in").stdout == "in\n"
    assert world.delete("lium", pod_id).status_code == 200
    until(lambda: pod_id not in ids(world), "absence")
    assert world.delete("lium", pod_id).status_code == 404
    events = world.call("lium", "GET", f"/pods/{pod_id}/events").json()
    assert [one["event"] for one in events] == ["booting", "running", "deleting"]
    true = world.pod(pod_id)
    record = world.call("lium", "GET", f"/pods/{pod_id}/record").json()
    assert record["total"] == true["billed_micro_usd"] / 1e6 > 0
    assert (true["processes"], true["ended_by"]) == (0, "client")
    assert offer["id"] in [one["id"] for one in executors(world)]


@pytest.mark.parametrize("tier", ["spot", "secure"])
def test_a_pod_costs_the_price_of_its_offer_on_hosts_of_both_tiers(world, tier):
    offer = next(one for one in executors(world) if one["tier"] == tier)
    price = pod(world, rent(world, offer["id"]).json()["pod_id"])["price"]
    assert price == pytest.approx(offer["price_per_gpu"] * offer["gpu_count"]) and price > 0


def test_a_repeated_rent_with_the_same_key_rents_once(world):
    offer = h100(world)["id"]
    first, again = (rent(world, offer, "key-1") for _ in range(2))
    assert first.json() == again.json() and len(ids(world)) == 1
    assert (first.headers.get("Idempotent-Replayed"), again.headers["Idempotent-Replayed"]) == (None, "true")
    world.fault(requests=[{"call": "create", "kind": "lost"}])
    other = next(one["id"] for one in executors(world))
    with pytest.raises(httpx.TransportError):
        rent(world, other, "key-2")
    assert rent(world, other, "key-2").headers["Idempotent-Replayed"] == "true" and len(ids(world)) == 2


def test_a_timer_in_hours_ends_a_pod_and_can_be_moved(world):
    pod_id = rent(world, h100(world)["id"], termination_hours=100).json()["pod_id"]
    path = f"/pods/{pod_id}/schedule-removal"
    past = world.call("lium", "POST", path, {"removal_scheduled_at": "2020-01-01T00:00:00Z"})
    assert past.status_code == 400
    assert world.call("lium", "DELETE", path).json()["removal_scheduled_at"] is None
    world.move(200 * 3600)
    assert ids(world) == [pod_id]
    far = {"removal_scheduled_at": "2100-01-01T00:00:00Z"}
    assert world.call("lium", "POST", path, far).json()["removal_scheduled_at"].startswith("2100-01-01T00:00:00")
    world.delete("lium", pod_id)
    armed = rent(world, h100(world)["id"], termination_hours=100).json()["pod_id"]
    world.move(101 * 3600)
    until(lambda: armed not in ids(world), "the hour's end")
    assert world.pod(armed)["ended_by"] == "time limit"


def test_a_failed_creation_is_listed_for_three_minutes_and_remembered(world):
    world.fault(machines=[{"trait": "fail"}])
    pod_id = rent(world, h100(world)["id"]).json()["pod_id"]
    until(lambda: world.pod(pod_id)["state"] in ("failed", "gone"), "a failure")
    world.move(200)
    until(lambda: ids(world) == [], "its row's end")
    last = world.call("lium", "GET", f"/pods/{pod_id}/events").json()[-1]
    assert (last["event"], last["reason"]) == ("failed", "failed") and world.pod(pod_id)["micro_usd_per_hour"] == 0


def test_refusals_have_the_vendors_text(world):
    offer = h100(world)["id"]
    wrong = world.call("lium", "GET", "/pods", headers={"X-API-KEY": "wrong"})
    assert (wrong.status_code, wrong.json()["error"]["code"]) == (401, "unauthorized")
    reader = {"X-API-KEY": world.about["read_keys"]["lium"]}
    refused = world.call("lium", "POST", f"/executors/{offer}/rent", {}, headers=reader)
    assert refused.status_code == 403 and "scope" in refused.json()["error"]["message"]
    nodes = world.call("lium", "GET", "/public/v1/nodes", headers={"X-API-KEY": ""}).json()["nodes"]
    assert {"id", "rent_url", "price_per_gpu_hour"} <= nodes[0].keys()
    assert rent(world, "nobody").status_code == 404
    for fields in ({"nonsense": 1}, {"termination_hours": 721}, {"user_public_key": []}, {"pod_name": 7}):
        assert rent(world, offer, **fields).status_code == 422, fields
    assert rent(world, offer, template_id="none").status_code == 404
    assert rent(world, offer, dockerfile_content="FROM x").status_code == 400
    assert world.call("lium", "GET", "/users/me").json()["balance"] <= 1000
