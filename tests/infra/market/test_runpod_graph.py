"""RunPod's client against GraphQL: the balance, the owner, and spot pods."""

import json
import time
from dataclasses import replace

import pytest

from infra.agent.job import Limits
from infra.errors import AuthError, NoOffer
from infra.providers import SpotUnlisted, find_pod, list_pods
from infra.providers.json_api import VendorRefused
from infra.providers.key_owners import KeyOwners
from infra.providers.promises import DrillRecord
from infra.records import Address, Request
from tests.infra.market.runpod_stand import DISK_RATE, GPU, H100, KEY, LIMITS, REQUEST, graph, problem, row, started
from tests.infra.market.runpod_stand import offer as offer
from tests.infra.market.runpod_stand import runpod as runpod
from tests.infra.market.runpod_stand import stand as stand
from tests.infra.market.stand import Answer

pytestmark = pytest.mark.process


def test_a_spot_price_is_the_lowest_bid_and_needs_a_query_per_kind(stand, runpod):
    other = {**GPU, "id": "NVIDIA A40"}
    stand.on("GET /v2/catalog/gpus", Answer(200, {"gpus": [GPU, other]}))
    lowest = {"minimumBidPrice": 1.195, "stockStatus": "Low"}
    stand.on("POST /graphql", graph(gpuTypes=[{"id": H100, "lowestPrice": lowest}]))
    (spot,) = runpod.offers(Request(run="x", gpu="H100", num_gpus=8, spot=True))
    assert (spot.spot, spot.micro_usd_per_hour, spot.cloud) == (True, 9_560_000 + DISK_RATE, "SECURE")
    assert [body["variables"] for body in stand.bodies("POST /graphql")] == [{"id": H100, "count": 8, "secure": True}]


def test_a_spot_pod_bids_the_price_of_its_offer_per_gpu(stand, runpod, token):
    lowest = {"minimumBidPrice": 1.195, "stockStatus": "Low"}
    stand.on("POST /graphql", graph(gpuTypes=[{"id": H100, "lowestPrice": lowest}]))
    (spot,) = runpod.offers(Request(run="x", gpu="H100", num_gpus=8, spot=True))
    stand.on("POST /graphql", graph(podRentInterruptable={"id": "7h9k", "desiredStatus": "RUNNING", "machineId": "m"}))
    pod = runpod.create(REQUEST, spot, token, Limits(time_s=3600.0))
    assert (pod.pod_id, pod.micro_usd_per_hour) == ("7h9k", 9_560_000 + DISK_RATE)
    made = stand.bodies("POST /graphql")[-1]
    assert made["variables"]["input"]["bidPerGpu"] == 1.195
    assert "podRentInterruptable" in made["query"] and "podTerminate" in started(
        made["variables"]["input"]["dockerArgs"]
    )


def test_a_rejected_graphql_query_is_not_a_lack_of_machines(stand, runpod, offer, token):
    unknown = {"errors": [{"message": 'Field "ports" is not defined by type "PodRentInterruptableInput".'}]}
    for answer in (Answer(400, unknown), Answer(200, {**unknown, "data": None}), problem(400, "Bad Request")):
        stand.on("POST /graphql", answer)
        with pytest.raises(VendorRefused, match="other offers would get the same answer"):
            runpod.create(REQUEST, replace(offer, spot=True), token, LIMITS)


@pytest.mark.parametrize("data", [None, {"podRentInterruptable": None}])
def test_null_without_a_reason_is_no_offer(stand, runpod, offer, token, data):
    stand.on("POST /graphql", Answer(200, {"data": data}))
    with pytest.raises(NoOffer, match="null without a reason"):
        runpod.create(REQUEST, replace(offer, spot=True), token, LIMITS)


@pytest.mark.parametrize(
    "how", [Answer(410, {"message": "gone"}), Answer(500), Answer(200, {"errors": [{"message": "?"}]})]
)
def test_renting_works_without_graphql_but_balance_and_spot_do_not(stand, runpod, offer, token, how):
    stand.on("POST /graphql", how)
    stand.on("GET /v2/pods", Answer(200, {"pods": []}))
    stand.on("POST /v2/pods", Answer(201, row(token)))
    assert (runpod.account().owner, runpod.account().balance_micro_usd) == ("", None)
    with pytest.raises(NoOffer, match="spot is unavailable"):
        runpod.offers(Request(run="x", gpu="H100", num_gpus=8, spot=True))
    assert runpod.create(REQUEST, offer, token, LIMITS).pod_id


def test_the_account_has_an_owner_and_a_balance(stand, runpod):
    me = {
        "id": "user_x",
        "email": "me@example.com",
        "clientBalance": 435.85,
        "currentSpendPerHr": 0.001,
        "spendLimit": 80,
    }
    stand.on("POST /graphql", graph(myself=me))
    account = runpod.account()
    assert (account.owner, account.balance_micro_usd) == ("me@example.com", 435_850_000)
    stand.on("POST /graphql", Answer(401))
    with pytest.raises(AuthError):
        runpod.account()


PORTS = [{"ip": "195.26.233.3", "isIpPublic": True, "privatePort": 22, "publicPort": 34446}]
SPOT = {"podType": "INTERRUPTABLE", "desiredStatus": "RUNNING", "costPerHr": 1.345, "runtime": {"ports": PORTS}}


def spot_row(token, **changes):
    return {"id": "spot1", "name": token, "env": [f"SLIPWAY_POD={token}", "SLIPWAY_RUN=otter"], **SPOT, **changes}


def test_a_spot_pod_hidden_from_v2_is_listed_found_and_ended_by_graphql(stand, runpod, token):
    others = {**spot_row("theirs"), "id": "theirs", "podType": "RESERVED"}
    stand.on("GET /v2/pods", Answer(200, {"pods": []}))
    stand.on("GET /v2/pods/{id}", problem(404, "pod not found"))
    stand.on("DELETE /v2/pods/{id}", problem(404, "pod not found"))
    stand.on("POST /graphql", graph(myself={"id": "u", "pods": [spot_row(token), others]}))
    (pod,) = runpod.list()
    assert pod == runpod.find("spot1") == runpod.find(token)
    assert (pod.token, pod.run, pod.state, pod.micro_usd_per_hour) == (token, "otter", "running", 1_345_000)
    assert Address.parse(pod.address).place == "root@195.26.233.3:34446"
    runpod.delete("spot1")
    assert stand.bodies("POST /graphql")[-1]["variables"] == {"id": "spot1"}
    stand.on("POST /graphql", graph(myself={"id": "u", "pods": [spot_row(token, desiredStatus="TERMINATED")]}))
    assert runpod.find("spot1") is None and runpod.list() == []


def test_spot_pods_are_not_denied_without_graphql_but_other_pods_are(stand, runpod, token):
    stand.on("POST /graphql", Answer(410, {"message": "gone"}))
    stand.on("GET /v2/pods", Answer(200, {"pods": [row(token)]}))
    stand.on("GET /v2/pods/{id}", problem(404, "pod not found"))
    assert runpod.find(token).pod_id == "7h9k2m4n6p"
    assert [pod.token for pod in list_pods(runpod, spot=False)] == [token]
    assert find_pod(runpod, "another", spot=False) is None
    for ask in (lambda: list_pods(runpod, spot=True), lambda: find_pod(runpod, "another", spot=True)):
        with pytest.raises(SpotUnlisted, match="listed only by the GraphQL API, which does not answer"):
            ask()


def test_the_owner_of_a_key_is_remembered_while_graphql_is_silent(stand, runpod, tmp_path):
    path = tmp_path / "journal-owners.json"
    runpod = replace(runpod, owners=KeyOwners(path))
    stand.on("GET /v2/pods", Answer(200, {"pods": []}))
    stand.on("POST /graphql", Answer(410, {"message": "gone"}))
    first = runpod.account()
    assert first.owner == "" and first.display_owner.startswith(
        "key "
    )  # no owner known yet: rows are marked by the key
    stand.on("POST /graphql", graph(myself={"id": "u", "email": "me@example.com"}))
    assert runpod.account().owner == "me@example.com"
    assert path.stat().st_mode & 0o777 == 0o600 and KEY[1] not in path.read_text()
    stand.on("POST /graphql", Answer(410, {"message": "gone"}))
    assert (runpod.account().owner, runpod.account().key) == ("me@example.com", first.key)
    path.write_text("[")  # a damaged file has no information
    assert runpod.account().owner == ""


def test_spot_pods_are_denied_without_graphql_after_drills_saw_them_in_each_cloud(stand, runpod, tmp_path):
    stand.on("POST /graphql", Answer(410, {"message": "gone"}))
    stand.on("GET /v2/pods", Answer(200, {"pods": []}))
    stand.on("GET /v2/pods/{id}", problem(404, "pod not found"))
    record = DrillRecord(tmp_path, "runpod", "mine")
    runpod = replace(runpod, drills=record)
    for day, cloud in enumerate(("SECURE", "COMMUNITY"), 10):
        with pytest.raises(SpotUnlisted):
            runpod.list()
        finding = {"clause": "spot in v2", "state": "kept", "api": f"{cloud} spot"}
        report = {"account": "mine", "at": int(time.time()), "findings": [finding]}
        (tmp_path / f"runpod-202609{day}T000000Z.json").write_text(json.dumps(report))
    assert runpod.list() == [] and runpod.find("spot1") is None


def test_a_drill_about_spot_uses_only_the_v2_listing(stand, runpod, token):
    stand.on("GET /v2/pods", Answer(200, {"pods": [row(token)]}))
    stand.on("POST /graphql", graph(myself={"id": "u", "pods": [spot_row(token)]}))
    assert runpod.lists_spot_pod("7h9k2m4n6p") and not runpod.lists_spot_pod("spot1")
