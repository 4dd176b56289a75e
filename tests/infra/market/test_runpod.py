"""RunPod's client against documented answers; REST requests are checked against the vendor's OpenAPI document."""

import json
import re
import time
from dataclasses import replace
from datetime import datetime, timezone

import pytest

from infra.agent.job import Limits
from infra.agent.lifecycle.start_timer import MARGIN_S
from infra.agent.process import TOKEN
from infra.errors import Ambiguous, AuthError, NoOffer, OutOfMoney, RateLimited, SlipwayError
from infra.machines.image_start import START_SSHD
from infra.providers.json_api import JsonApi, VendorRefused
from infra.providers.runpod import RunPod
from infra.records import Address, Request
from tests.infra.market.runpod_stand import (
    CAPACITY,
    DIRECT,
    DISK_RATE,
    GPU,
    H100,
    KEY,
    LIMITS,
    REQUEST,
    graph,
    problem,
    row,
    started,
)
from tests.infra.market.runpod_stand import offer as offer
from tests.infra.market.runpod_stand import runpod as runpod
from tests.infra.market.runpod_stand import stand as stand
from tests.infra.market.stand import Answer, Stand

pytestmark = pytest.mark.process


def test_gpu_prices_become_pod_prices_in_each_data_center_with_stock(stand, runpod):
    offers = runpod.offers(REQUEST)
    assert [(one.region, one.country) for one in offers] == [("EU-RO-1", "RO"), ("US-KS-2", "US")]
    assert {(one.micro_usd_per_hour, one.num_gpus, one.gpu, one.cloud) for one in offers} == {
        (21_520_000 + DISK_RATE, 8, "H100-SXM", "SECURE")
    }
    assert offers[0].gpu_memory_bytes == 80 * 10**9 and offers[0].upload_mbps is None and offers[0].nvlink is None
    assert stand.asked[0].params == {
        "include": "AVAILABILITY",
        "product": "POD",
        "count": "8",
        "cloud": "SECURE",
        "minCudaVersion": "13.0",
    }


@pytest.mark.parametrize(
    ("asked", "gb", "rate"),
    [
        ({}, 20, 2_740),
        ({"disk_bytes": 10 * 10**9}, 20, 2_740),
        ({"disk_bytes": 1000 * 10**9}, 1000, 136_987),
        ({"work_disk_bytes": 85 * 10**9}, 85, 11_644),
        ({"work_disk_bytes": 85 * 10**9, "disk_bytes": 200 * 10**9}, 200, 27_398),
        ({"work_disk_bytes": 85 * 10**9, "disk_bytes": 30 * 10**9}, 85, 11_644),
    ],
)
@pytest.mark.parametrize("spot", [False, True], ids=["rest", "graphql"])
def test_the_price_includes_the_rented_disk(stand, runpod, token, asked, gb, rate, spot):
    wish = replace(REQUEST, spot=spot, **asked)
    lowest = {"minimumBidPrice": 2.69, "stockStatus": "Low"}
    stand.on("POST /graphql", graph(gpuTypes=[{"id": H100, "lowestPrice": lowest}]))
    offer = runpod.offers(wish)[0]
    assert (offer.disk_bytes, offer.disk_micro_usd_per_hour) == (gb * 10**9, rate)
    assert offer.micro_usd_per_hour == 21_520_000 + rate
    assert len(runpod.offers(replace(wish, max_micro_usd_per_hour=21_520_000 + rate))) >= 1
    assert runpod.offers(replace(wish, max_micro_usd_per_hour=21_520_000 + rate - 1)) == []
    stand.on("POST /graphql", graph(podRentInterruptable={"id": "7h9k"}))
    stand.on("POST /v2/pods", Answer(201, row(token)))
    runpod.create(replace(wish, disk_bytes=0), offer, token, LIMITS)
    if spot:
        made = stand.bodies("POST /graphql")[-1]["variables"]["input"]
        assert (made["containerDiskInGb"], made["bidPerGpu"]) == (gb, 2.69)
    else:
        assert stand.bodies("POST /v2/pods")[-1]["disk"] == gb


def test_a_slice_is_a_separate_offer_with_its_own_name_and_memory(stand, runpod):
    server = "NVIDIA RTX PRO 6000 Blackwell Server Edition"
    whole, part = {**GPU, "id": server, "memory": 96}, {**GPU, "id": f"{server} MIG 1g.24gb", "memory": 24}
    part["price"] = {"secure": 0.59, "community": 0}
    stand.on("GET /v2/catalog/gpus", Answer(200, {"gpus": [part, whole]}))
    found = runpod.offers(Request(run="x", gpu="RTXPRO6000", num_gpus=1, cloud="SECURE"))
    assert {(one.gpu, one.instance_type) for one in found} == {("RTXPRO6000", server)}
    found = runpod.offers(Request(run="x", gpu="RTXPRO6000-MIG-1G.24GB", num_gpus=1))
    assert {(one.gpu, one.gpu_memory_bytes) for one in found} == {("RTXPRO6000-MIG-1G.24GB", 24 * 10**9)}


def test_a_community_offer_has_no_data_center_and_at_most_the_gpus_of_a_machine(runpod):
    one, two = runpod.offers(Request(run="x", gpu="H100:1,A100:1", cloud="COMMUNITY")), REQUEST
    assert [(offer.region, offer.micro_usd_per_hour) for offer in one] == [("", 1_990_000 + DISK_RATE)]
    assert all(offer.cloud == "SECURE" for offer in runpod.offers(two))


def test_a_request_without_count_asks_for_all_usual_counts(stand, runpod):
    counts = {offer.num_gpus for offer in runpod.offers(Request(run="x", gpu="H100"))}
    assert counts == {1, 2, 4, 8}
    assert stand.times("GET /v2/catalog/gpus") == 8


def test_a_gpu_out_of_stock_is_no_offer(stand, runpod):
    stand.on("GET /v2/catalog/gpus", Answer(200, {"gpus": [{**GPU, "availability": "NONE"}]}))
    assert runpod.offers(REQUEST) == []


def test_a_pod_without_a_limit_is_created_by_rest(stand, runpod, offer, token):
    stand.on("POST /v2/pods", Answer(201, row(token)))
    pod = runpod.create(REQUEST, offer, token, Limits())
    assert (pod.pod_id, pod.token, pod.micro_usd_per_hour, pod.address) == ("7h9k2m4n6p", token, 21_520_000, "")
    (body,) = stand.bodies("POST /v2/pods")
    assert body["gpu"] == {"id": H100, "count": 8, "minCudaVersion": "13.0"}
    assert (body["name"], body["ports"], body["dataCenterIds"], body["disk"]) == (token, ["22/tcp"], ["EU-RO-1"], 20)
    assert (body["env"]["SLIPWAY_POD"], body["env"]["SLIPWAY_RUN"]) == (token, "brave-otter-3")
    assert body["env"]["PUBLIC_KEY"].startswith("ssh-ed25519 ")
    assert "rp-secret" not in json.dumps(body) and "args" not in body


@pytest.mark.parametrize("spot", [False, True], ids=["rest", "graphql"])
def test_a_rest_request_has_cpus_and_memory_per_gpu(stand, runpod, token, spot):
    wish = replace(REQUEST, cpus=100, memory_bytes=1001 * 10**9, spot=spot)
    lowest = {"minimumBidPrice": 1.195, "stockStatus": "Low"}
    stand.on("POST /graphql", graph(gpuTypes=[{"id": H100, "lowestPrice": lowest}]))
    offer = runpod.offers(wish)[0]
    assert (offer.cpus, offer.memory_bytes) == (100, 1001 * 10**9)
    stand.on("POST /graphql", graph(podRentInterruptable={"id": "7h9k"}))
    stand.on("POST /v2/pods", Answer(201, row(token)))
    runpod.create(wish, offer, token, LIMITS)
    if spot:
        made = stand.bodies("POST /graphql")[-1]["variables"]["input"]
        assert (made["minVcpuCount"], made["minMemoryInGb"]) == (100, 1001)
    else:
        (body,) = stand.bodies("POST /v2/pods")
        assert body["gpu"] == {
            "id": H100,
            "count": 8,
            "minCudaVersion": "13.0",
            "minVcpuCountPerGpu": 13,
            "minRamPerGpu": 126,
        }


@pytest.mark.parametrize(
    ("limits", "limit_s"),
    [
        (Limits(time_s=7200.0), 7200),
        (LIMITS, 150 / 21.52 * 3600),
        (Limits(time_s=600.0, spend_micro_usd=150_000_000, micro_usd_per_hour=21_520_000), 600),
    ],
)
def test_a_pod_with_a_limit_is_created_by_rest_with_a_dead_man_timer(stand, runpod, offer, token, limits, limit_s):
    stand.on("POST /v2/pods", Answer(201, row(token)))
    before = time.time()
    runpod.create(REQUEST, offer, token, limits)
    after = time.time()
    (body,) = stand.bodies("POST /v2/pods")
    assert stand.times("POST /graphql") == 0
    timer = started(body["args"])
    assert timer.endswith("exec /start.sh\n")  # starts sshd
    ends_at = int(re.search(r"at=([0-9]+)", timer)[1])
    # A vendor reports time in whole seconds.
    assert before - 2 <= ends_at - limit_s - MARGIN_S <= after + 2
    for words in ("${RUNPOD_POD_ID}", "${RUNPOD_API_KEY}", "/v2/pods/", "podTerminate"):
        assert words in timer
    assert KEY[1].removeprefix("Bearer ") not in timer


@pytest.mark.parametrize("spot", [False, True], ids=["rest", "graphql"])
@pytest.mark.parametrize("limits", [Limits(), LIMITS], ids=["no limit", "limit"])
@pytest.mark.parametrize("image", ["ubuntu:22.04", "ghcr.io/lab/torch@sha256:ab12"])
def test_a_pod_boots_the_requested_image_with_sshd(stand, runpod, offer, token, image, limits, spot):
    stand.on("POST /v2/pods", Answer(201, row(token)))
    stand.on("POST /graphql", graph(podRentInterruptable={"id": "7h9k"}))
    runpod.create(replace(REQUEST, image=image, spot=spot), replace(offer, spot=spot), token, limits)
    if spot:
        body = stand.bodies("POST /graphql")[-1]["variables"]["input"]
        asked, args = body["imageName"], body["dockerArgs"]
    else:
        (body,) = stand.bodies("POST /v2/pods")
        asked, args = body["image"], body["args"]
    script = started(args)
    assert asked == image and START_SSHD in script and "exec /start.sh" not in script
    assert ("${RUNPOD_API_KEY}" in script) == (limits is LIMITS)


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (problem(400, CAPACITY), NoOffer),
        (problem(400, "There is not enough disk space"), NoOffer),
        (problem(403, "pool not permitted"), NoOffer),
        (problem(402, "balance too low"), OutOfMoney),
        (problem(401, "bad key"), AuthError),
        (problem(404, "no such template"), VendorRefused),
        (problem(422, "Request validation failed.", "$: missing property 'name'"), VendorRefused),
        (Answer(429, {"title": "?", "status": 429, "detail": "slow"}, {"Retry-After": "2"}), RateLimited),
        (problem(400, "Sorry, not enough credits for this GPU, or it is taken"), NoOffer),
        (problem(410, "REST v2 is retired"), VendorRefused),
    ],
)
@pytest.mark.parametrize("spot", [False, True], ids=["rest", "graphql"])
def test_a_definite_refusal_differs_from_other_answers(stand, runpod, offer, token, answer, error, spot):
    stand.on("POST /v2/pods", answer)
    stand.on("POST /graphql", answer)
    with pytest.raises(error) as caught:
        runpod.create(REQUEST, replace(offer, spot=spot), token, LIMITS)
    assert not isinstance(caught.value, Ambiguous)
    assert stand.times("POST /v2/pods") + stand.times("POST /graphql") == 1


MESSAGES = [CAPACITY, "not enough free GPUs on the host machine",
            "This machine does not have the resources to deploy your pod. Please try a different machine",
            "You have reached your spend limit"]  # fmt: skip


@pytest.mark.parametrize("message", MESSAGES)
def test_a_200_with_the_no_capacity_message_is_no_offer(stand, runpod, offer, token, message):
    stand.on(
        "POST /graphql", Answer(200, {"errors": [{"message": message, "extensions": {"code": "X"}}], "data": None})
    )
    with pytest.raises(NoOffer, match=message[:20]):
        runpod.create(REQUEST, replace(offer, spot=True), token, LIMITS)


@pytest.mark.parametrize(
    "answer",
    [
        problem(500, "upstream"),
        problem(409, "?"),
        Answer(200, {"errors": [{"message": "Something went wrong"}], "data": None}),
        Answer(200, {"data": {"podRentInterruptable": {"name": "no id"}}}),
        Answer(201, {"name": "no id"}),
        Answer(201, b"", how="short"),
        Answer(how="drop"),
    ],
    ids=lambda answer: f"{answer.status}-{answer.how}-{len(answer.content)}",
)
@pytest.mark.parametrize("spot", [False, True], ids=["rest", "graphql"])
def test_an_inconclusive_answer_is_ambiguous_and_sent_once(stand, runpod, offer, token, answer, spot):
    stand.on("POST /v2/pods", answer)
    stand.on("POST /graphql", answer)
    with pytest.raises(Ambiguous):
        runpod.create(REQUEST, replace(offer, spot=spot), token, LIMITS)
    assert stand.times("POST /v2/pods") + stand.times("POST /graphql") == 1


@pytest.mark.parametrize(
    ("changes", "state", "reachable"),
    [
        ({}, "booting", False),
        ({"status": "STARTING", "runtime": None}, "booting", False),
        ({"status": "RUNNING"}, "running", False),
        ({"status": "RUNNING", "ssh": DIRECT}, "running", True),
        ({"status": "EXITED", "ssh": DIRECT, "cost": 0.0}, "stopped", False),
        ({"status": "ERROR"}, "failed", False),
    ],
)
def test_a_pod_is_read_in_each_of_its_states(stand, runpod, token, changes, state, reachable):
    stand.on("GET /v2/pods/{id}", Answer(200, row(token, **changes)))
    pod = runpod.find("7h9k2m4n6p")
    assert (pod.state, bool(pod.address)) == (state, reachable)


def test_the_direct_address_takes_precedence(stand, runpod, token, keys):
    stand.on("GET /v2/pods", Answer(200, {"pods": [row(token, status="RUNNING", ssh=DIRECT)]}))
    pod = runpod.find(token)
    assert Address.parse(pod.address) == Address(
        "root", "195.26.233.3", 34446, str(keys.private_key_path(token)), f"/root/.slipway/pods/{token}"
    )
    assert pod.created_at == datetime(2026, 11, 20, 12, tzinfo=timezone.utc).timestamp()
    assert (pod.run, pod.micro_usd_per_hour) == ("brave-otter-3", 21_520_000)
    assert stand.asked[0].params == {"includeClusterPods": "true"}


def test_the_oldest_pod_with_a_token_is_found_and_foreign_pods_have_no_token(stand, runpod, token):
    late = row(token, id="late", createdAt="2026-11-20T13:00:00Z")
    theirs = row("jupyter", id="theirs", env={}, status="RUNNING", ssh=DIRECT)
    stand.on("GET /v2/pods", Answer(200, {"pods": [late, row(token), theirs, row(token, id="x", status="TERMINATED")]}))
    assert runpod.find(token).pod_id == "7h9k2m4n6p"
    foreign = next(pod for pod in runpod.list() if pod.name == "jupyter")
    assert (foreign.token, foreign.address) == ("", "")
    assert len(runpod.list()) == 3


def test_only_the_vendors_own_error_proves_absence(stand, runpod, token):
    stand.on("GET /v2/pods/{id}", problem(404, "pod not found"))
    assert runpod.find("7h9k2m4n6p") is None
    stand.on("GET /v2/pods/{id}", Answer(200, row(token, status="TERMINATED")))
    assert runpod.find("7h9k2m4n6p") is None
    for answer in (problem(500, "?"), problem(429, "?"), Answer(200, b"[]"), Answer(how="drop"), problem(410, "gone")):
        stand.on("GET /v2/pods/{id}", answer)
        with pytest.raises(SlipwayError):
            runpod.find("7h9k2m4n6p")


def test_a_listing_is_complete_or_an_error(stand, runpod, token):
    stand.on("GET /v2/pods", Answer(200, {"pods": [row(token), row(token)]}))
    with pytest.raises(SlipwayError, match="twice"):
        runpod.list()
    stand.on("GET /v2/pods", problem(500, "?"))
    with pytest.raises(SlipwayError):
        runpod.list()


def test_pages_are_followed_and_a_repeated_page_is_an_error(keys, token):
    with Stand(KEY, paths=["/v2/pods", "/graphql"]) as stand:  # the document has no pages
        stand.on("POST /graphql", graph(myself={"id": "u"}))
        runpod = RunPod(JsonApi("runpod", stand.url, dict([KEY])), keys)
        first = Answer(200, {"pods": [row(token)], "nextCursor": "c2"})
        stand.on("GET /v2/pods", first, Answer(200, {"pods": [row(token, id="b")]}))
        assert [pod.pod_id for pod in runpod.list()] == ["7h9k2m4n6p", "b"]
        assert [one.params.get("cursor") for one in stand.asked if one.path == "/v2/pods"] == [None, "c2"]
        stand.on("GET /v2/pods", first)
        with pytest.raises(SlipwayError, match="twice"):
            runpod.list()


def test_an_empty_204_ends_a_pod_and_a_gone_pod_counts_as_ended(stand, runpod):
    for answer in (Answer(204), problem(404, "pod not found")):
        stand.on("DELETE /v2/pods/{id}", answer)
        runpod.delete("7h9k2m4n6p")
    for answer in (problem(500, "?"), problem(409, "in a cluster"), Answer(how="drop"), problem(403, "scope")):
        stand.on("DELETE /v2/pods/{id}", answer)
        with pytest.raises(SlipwayError):
            runpod.delete("7h9k2m4n6p")
    assert stand.times("DELETE /v2/pods/{id}") == 6


def test_a_bill_is_the_sum_of_the_vendors_records_of_the_pod(stand, keys):
    amounts = [{"podId": "7h9k", "totalAmount": 1.25}, {"podId": "7h9k", "totalAmount": 0.000001}]
    stand.on("GET /v2/billing/pods", Answer(200, {"records": amounts, "metadata": {}}))
    vendor = RunPod(JsonApi("runpod", stand.url, dict([KEY])), keys)
    assert vendor.billed("7h9k") == 1_250_001 and stand.asked[-1].params["podId"] == "7h9k"
    renamed = {"records": [{"podId": "7h9k", "amount": 1.25}], "metadata": {}}
    stand.on("GET /v2/billing/pods", Answer(200, renamed))
    assert vendor.billed("7h9k") is None  # and not 0
    stand.on("GET /v2/billing/pods", Answer(200, {"records": [], "metadata": {}}))
    assert vendor.billed("7h9k") is None


def test_a_pod_can_end_itself_with_the_key_of_its_first_process(stand, runpod):
    assert runpod.can.self_terminate == "pod_credential"
    rest, graph = runpod.self_terminate_calls
    assert (rest.method, rest.url) == ("DELETE", f"{stand.url}/v2/pods/{{RUNPOD_POD_ID}}")
    assert (graph.method, graph.url) == ("POST", f"{stand.url}/graphql")
    assert rest.headers["Authorization"] == graph.headers["Authorization"] == "Bearer {RUNPOD_API_KEY}"
    assert json.loads(graph.body)["variables"] == {"id": "{RUNPOD_POD_ID}"}
    assert KEY[1].removeprefix("Bearer ") not in repr(runpod.self_terminate_calls)


def test_a_pod_and_the_processes_of_its_job_have_different_marks(stand, runpod, offer, token):
    """A container's processes inherit the variables of its creation: ending a job's processes must not end sshd."""
    stand.on("POST /v2/pods", Answer(201, row(token)))
    stand.on("POST /graphql", graph(podRentInterruptable={"id": "7h9k2m4n6p", "costPerHr": 21.52}))
    runpod.create(REQUEST, offer, token, LIMITS)
    runpod.create(REQUEST, replace(offer, spot=True), token, LIMITS)
    names = [*stand.bodies("POST /v2/pods")[0]["env"]]
    names += [one["key"] for one in stand.bodies("POST /graphql")[0]["variables"]["input"]["env"]]
    assert TOKEN not in names and names


@pytest.mark.parametrize("spot", [True, False], ids=["by GraphQL", "by REST"])
def test_a_volume_works_only_in_its_data_center_on_the_vendors_own_machines(stand, runpod, token, spot):
    volume = {"id": "2q9m7x4c", "name": "ds", "size": 200, "dataCenter": "US-KS-2", "type": "STANDARD"}
    stand.on("GET /v2/network-volumes/{id}", Answer(200, volume))
    wish = replace(REQUEST, volume="2q9m7x4c")
    (offer,) = runpod.offers(wish)
    assert (offer.region, offer.cloud, offer.volume_bytes) == ("US-KS-2", "SECURE", 200 * 10**9)
    assert {one.region for one in runpod.offers(REQUEST)} == {"US-KS-2", "EU-RO-1"}
    stand.on("POST /graphql", graph(podRentInterruptable={"id": "7h9k", "costPerHr": 21.52}))
    stand.on("POST /v2/pods", Answer(201, row(token)))
    runpod.create(wish, replace(offer, spot=spot), token, LIMITS)
    if spot:
        body = stand.bodies("POST /graphql")[-1]["variables"]["input"]
        assert (body["networkVolumeId"], body["volumeMountPath"], body["dataCenterId"]) == (
            "2q9m7x4c",
            "/workspace",
            "US-KS-2",
        )
    else:
        (body,) = stand.bodies("POST /v2/pods")
        assert body["mounts"] == {"network": [{"volumeId": "2q9m7x4c", "path": "/workspace"}]}
    stand.on("GET /v2/network-volumes/{id}", problem(404, "network volume not found"))
    with pytest.raises(NoOffer, match="no volume 2q9m7x4c"):
        runpod.offers(wish)
