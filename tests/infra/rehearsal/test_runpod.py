"""RunPod's rehearsed servers, REST v2 and GraphQL, with the requests of a client."""

import json
import time
from datetime import datetime, timezone
from pathlib import Path

import httpx
import pytest

from infra.agent import process
from infra.agent.job import Call
from infra.machines import dead_man
from infra.providers import runpod
from infra.rehearsal.clock import parse_iso
from tests.hosts import first_process
from tests.infra.rehearsal.worlds import Running, until
from tests.vendors import contract

pytestmark = pytest.mark.process

DOCUMENT = contract.load("runpod")
H100 = "NVIDIA H100 80GB HBM3"
BODY = {
    "name": "sw1-a", "image": "runpod/pytorch:1.0.2-cu1281-torch280-ubuntu2404", "ports": ["22/tcp"], "disk": 50,
    "gpu": {"id": H100, "count": 2, "minCudaVersion": "12.8"}, "cloud": "SECURE", "env": {"SLIPWAY_RUN_ID": "a"},
}  # fmt: skip
GPU_FIELDS = ("id", "count", "minCudaVersion", "minRamPerGpu", "minVcpuCountPerGpu", "nonsense")
RENT = """mutation rent($input: %s!) { %s(input: $input) { id name desiredStatus costPerHr machineId } }"""


def create(world: Running, **fields) -> str:
    body = {**BODY, "env": {**BODY["env"], "PUBLIC_KEY": world.public_key}, **fields}
    assert not DOCUMENT.violations("CreatePodRequest", body)
    answer = world.call("runpod", "POST", "/v2/pods", body)
    assert answer.status_code == 201, answer.text
    assert not problems("Pod", answer.json())
    return answer.json()["id"]


def problems(name: str, value: dict) -> list[str]:
    return DOCUMENT.violations(name, value)


def pod(world: Running, pod_id: str) -> dict:
    return world.call("runpod", "GET", f"/v2/pods/{pod_id}").json()


def up(world: Running, pod_id: str) -> dict:
    return until(lambda: (row := pod(world, pod_id))["ssh"]["direct"] and row, "a pod with an address")


def ids(world: Running) -> list[str]:
    return [row["id"] for row in world.call("runpod", "GET", "/v2/pods?name=ignored").json()["pods"]]


def graph(world: Running, query: str, status: int = 200, **variables) -> dict:
    answer = world.call("runpod", "POST", "/graphql", {"query": query, "variables": variables})
    assert answer.status_code == status, answer.text
    return answer.json()


def later(world: Running, seconds: float) -> str:
    at = parse_iso(world.truth()["now"]) + seconds
    return datetime.fromtimestamp(at, timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


def rent(world: Running, kind: str = "PodFindAndDeployOnDemandInput", **fields) -> dict:
    name = {"PodFindAndDeployOnDemandInput": "podFindAndDeployOnDemand"}.get(kind, "podRentInterruptable")
    words = {
        "cloudType": "SECURE",
        "gpuTypeId": H100,
        "gpuCount": 1,
        "name": "sw1-g",
        "imageName": "runpod/pytorch:1",
        "ports": "22/tcp",
        "env": [{"key": "PUBLIC_KEY", "value": world.public_key}],
        **fields,
    }
    return graph(world, RENT % (kind, name), input=words)


def test_a_pod_runs_from_its_offer_to_its_proven_end(world):
    query = {"include": "AVAILABILITY", "product": "POD", "count": "8"}
    catalog = world.call("runpod", "GET", "/v2/catalog/gpus", params=query)
    assert not problems("ListGpuTypesResponse", catalog.json())
    assert "RateLimit" in catalog.headers and "x-request-id" in catalog.headers
    row = next(row for row in catalog.json()["gpus"] if row["id"] == H100)
    assert (row["price"]["secure"], row["availability"], row["maxCount"]["secure"]) == (2.69, "HIGH", 8)
    one = world.call("runpod", "GET", "/v2/catalog/gpus/NVIDIA%20H100%2080GB%20HBM3")
    assert one.json()["id"] == H100 and "availability" not in one.json()
    world.fault(machines=[{"trait": "hang"}])
    waiting, pod_id = create(world), create(world)
    first = pod(world, waiting)
    assert first["status"] in ("PROVISIONING", "STARTING") and first["cost"] == 5.38 and first["runtime"] is None
    row = up(world, pod_id)
    assert row["status"] == "RUNNING" and not problems("Pod", row)
    assert not problems("ListPodsResponse", world.call("runpod", "GET", "/v2/pods").json())
    way = row["ssh"]["direct"]
    done = world.ssh(way["username"], way["host"], way["port"], "nvidia-smi --query-gpu=name,memory.total --format=csv")
    assert done.stdout.splitlines() == [f"{H100}, 76293"] * 2
    bill = world.call("runpod", "GET", "/v2/billing/pods", params={"podId": pod_id}).json()
    assert not problems("ListPodBillingResponse", bill)
    (record,) = bill["records"]
    assert record["totalAmount"] == pytest.approx(record["gpuAmount"] + record["diskAmount"])
    # 50 GB at 0.10 USD per GB and month of 730 hours, in addition to two GPUs.
    assert record["diskAmount"] / record["gpuAmount"] == pytest.approx(50 * 0.1 / 730 / 5.38, rel=0.01)
    assert world.pod(pod_id)["micro_usd_per_hour"] == 5_380_000 + 6_850
    deleted = world.delete("runpod", pod_id)
    assert (deleted.status_code, deleted.content) == (204, b"")
    until(lambda: pod_id not in ids(world), "absence")
    gone = world.call("runpod", "GET", f"/v2/pods/{pod_id}")
    assert gone.status_code == 404 and not problems("ErrorResponse", gone.json())
    assert gone.headers["content-type"] == "application/problem+json"
    true = world.pod(pod_id)
    assert (true["processes"], true["state"], true["ended_by"]) == (0, "gone", "client")


def test_a_stopped_pod_restarts_with_a_new_port_and_host_key(world):
    pod_id = create(world, mounts={"persistent": {"size": 100, "path": "/workspace"}})
    before = up(world, pod_id)["ssh"]["direct"]["port"]
    path = f"/v2/pods/{pod_id}/action"
    stopped = world.call("runpod", "POST", path, {"action": "stop"}).json()
    assert (stopped["status"], stopped["cost"], stopped["ssh"]["direct"]) == ("EXITED", 0.0, None)
    assert world.pod(pod_id)["micro_usd_per_hour"] == 100 * 200_000 // 730
    assert world.call("runpod", "POST", path, {"action": "stop"}).status_code == 409
    assert world.call("runpod", "POST", path, {"action": "start"}).status_code == 200
    assert up(world, pod_id)["ssh"]["direct"]["port"] != before
    assert world.call("runpod", "POST", path, {"action": "terminate"}).status_code == 204


def test_a_pod_without_an_ssh_port_or_with_a_changed_command_is_unreachable(world):
    closed, other = create(world, ports=[]), create(world, args="python train.py")
    until(lambda: [pod(world, one)["status"] for one in (closed, other)] == ["RUNNING"] * 2, "running")
    assert pod(world, closed)["ssh"]["direct"] is None
    way = up(world, other)["ssh"]["direct"]
    assert "refused" in world.ssh(way["username"], way["host"], way["port"], "true").stderr


def test_graphql_accepts_and_ignores_an_end_time_and_returns_the_balance(world):
    made = rent(world, terminateAfter=later(world, 360_000))["data"]["podFindAndDeployOnDemand"]
    assert (made["desiredStatus"], made["costPerHr"]) == ("RUNNING", 2.69)
    me = graph(world, "query { myself { id clientBalance currentSpendPerHr pods { id } } }")["data"]["myself"]
    assert me["currentSpendPerHr"] == 2.69274 and me["clientBalance"] <= 1000 and me["pods"] == [{"id": made["id"]}]
    up(world, made["id"])
    world.move(360_060)
    assert ids(world) == [made["id"]] and world.pod(made["id"])["state"] == "running"


@pytest.mark.parametrize("is_early", [True, False], ids=["at its deadline", "started after it"])
def test_the_timer_in_the_start_command_ends_the_pod(world, is_early):
    url = world.about["runpod"]["url"]
    headers = {"Authorization": "Bearer {RUNPOD_API_KEY}", "Content-Type": "application/json"}
    query = {"query": runpod.TERMINATE, "variables": {"id": "{RUNPOD_POD_ID}"}}
    calls = (
        Call("DELETE", f"{url}/v2/pods/{{RUNPOD_POD_ID}}", headers),
        Call("POST", f"{url}/graphql", headers, json.dumps(query)),
    )
    ends_at = int(time.time()) + (3 if is_early else -1000)
    pod_id = create(world, args=dead_man.start_command(ends_at, 60.0, calls))
    if is_early:
        assert up(world, pod_id)["ssh"]["direct"]  # the start script runs beside the timer
    until(lambda: pod_id not in ids(world), "the pod's own end")
    assert world.pod(pod_id)["ended_by"] == "pod"
    until(lambda: world.pod(pod_id)["processes"] == 0, "the end of its processes")


def test_a_preempted_spot_pod_stays_listed_as_exited(world):
    query = """query q($id: String) { gpuTypes(input: {id: $id}) { id
        lowestPrice(input: {gpuCount: 1, secureCloud: true})
        { minimumBidPrice uninterruptablePrice stockStatus } } }"""
    prices = graph(world, query, id=H100)["data"]["gpuTypes"][0]
    assert prices["lowestPrice"] == {"minimumBidPrice": 1.345, "uninterruptablePrice": 2.69, "stockStatus": "High"}
    low = rent(world, "PodRentInterruptableInput", bidPerGpu=1.0)
    assert low["data"] is None and "below the minimum" in low["errors"][0]["message"]
    made = rent(world, "PodRentInterruptableInput", bidPerGpu=1.4)["data"]["podRentInterruptable"]
    assert made["costPerHr"] == 1.345
    up(world, made["id"])
    assert world.send_command("/preempt", {"id": made["id"]}).status_code == 200
    assert pod(world, made["id"])["status"] == "EXITED"
    until(lambda: world.truth()["running"] == 0, "its processes' end")
    assert world.pod(made["id"])["ended_by"] == "preempted"
    resume = graph(world, "mutation r($id: String!) { podResume(input: {podId: $id}) { id } }", id=made["id"])
    assert "Cannot resume a spot pod" in resume["errors"][0]["message"]


def test_refusals_have_the_vendors_text(world):
    def status(method: str, path: str, body=None, **headers) -> int:
        answer = world.call("runpod", method, path, body, headers=headers)
        assert answer.status_code in (410,) or not problems("ErrorResponse", answer.json())
        return answer.status_code

    assert status("GET", "/v2/pods", Authorization="Bearer wrong") == 401
    reader = {"Authorization": f"Bearer {world.about['read_keys']['runpod']}"}
    assert status("POST", "/v2/pods", BODY, **reader) == 403
    assert world.call("runpod", "GET", "/v2/pods", headers=reader).status_code == 200
    assert status("GET", "/v1/pods") == 410
    assert status("GET", "/v2/catalog/gpus?include=AVAILABILITY") == 400
    without_count = world.call("runpod", "POST", "/v2/pods", {**BODY, "gpu": {"id": H100}})
    assert without_count.status_code == 400 and "no longer any instances available" in without_count.json()["detail"]
    assert status("POST", "/v2/pods", {**BODY, "cpu": {"id": "cpu3c"}}) == 400
    world.fault(machines=[{"trait": "ghost", "offer": "H100", "count": None}])
    assert status("POST", "/v2/pods", BODY) == 400


MUTATION = """mutation ($input: PodRentInterruptableInput!, $id: String!) {
  podRentInterruptable(input: $input) { %s }
  %s
}"""
SPOT = {"cloudType": "SECURE", "gpuTypeId": H100, "gpuCount": 1, "name": "sw1-g", "imageName": "runpod/pytorch:1",
        "bidPerGpu": 2.0}  # fmt: skip


@pytest.mark.parametrize(("fields", "second", "changed", "code", "words"), [
    ("id nonsense", "", {}, "GRAPHQL_VALIDATION_FAILED", 'Cannot query field "nonsense" on type "Pod".'),
    ("id machine { podHostId nonsense }", "", {}, "GRAPHQL_VALIDATION_FAILED", 'on type "PodMachineInfo".'),
    ("id machine", "", {}, "GRAPHQL_VALIDATION_FAILED", "must have a selection of subfields"),
    ("id { name }", "", {}, "GRAPHQL_VALIDATION_FAILED", "must not have a selection"),
    ("id name(upper: true)", "", {}, "GRAPHQL_VALIDATION_FAILED", 'Unknown argument "upper" on field "Pod.name".'),
    ("id", "podNonsense { id }", {}, "GRAPHQL_VALIDATION_FAILED", 'field "podNonsense" on type "Mutation"'),
    ("id", "myself { id }", {}, "GRAPHQL_VALIDATION_FAILED", 'field "myself" on type "Mutation"'),
    ("id", "podTerminate(input: {id: $id})", {}, "BAD_USER_INPUT", "invalid value"),
    ("id", "", {"gpuCounts": 1}, "BAD_USER_INPUT", "invalid value"),
    ("id", "", {"gpuCount": "one"}, "BAD_USER_INPUT", "invalid value"),
    ("", "", {}, "GRAPHQL_PARSE_FAILED", "Syntax Error"),
    ("id } {", "", {}, "GRAPHQL_PARSE_FAILED", "Syntax Error"),
])  # fmt: skip
def test_an_invalid_graphql_query_is_refused_before_any_effect(world, fields, second, changed, code, words):
    before = len(world.truth()["pods"])
    said = graph(world, MUTATION % (fields, second), 400, input={**SPOT, **changed}, id="x")
    assert "data" not in said and words in said["errors"][0]["message"]
    assert said["errors"][0]["extensions"]["code"] == code
    assert len(world.truth()["pods"]) == before


def test_a_known_field_without_value_is_null_and_types_have_names(world):
    query = MUTATION % ("__typename id apiKey gpuPowerLimitPercent runtime { ports { ip } } machine { note }", "")
    made = graph(world, query, input=SPOT, id="x")["data"]["podRentInterruptable"]
    assert (made["__typename"], made["apiKey"], made["runtime"]) == ("Pod", None, None)
    assert made["machine"] == {"note": None} and made["gpuPowerLimitPercent"] is None


@pytest.mark.parametrize(
    ("rest", "of_all", "is_had"),
    [
        ({"minRamPerGpu": 188, "minVcpuCountPerGpu": 16}, {"minMemoryInGb": 376, "minVcpuCount": 32}, True),
        ({"minRamPerGpu": 189}, {"minMemoryInGb": 377}, False),
        ({"minVcpuCountPerGpu": 17}, {"minVcpuCount": 33}, False),
    ],
)
def test_a_pod_is_placed_only_on_a_host_with_enough_resources_per_gpu(world, rest, of_all, is_had):
    body = {**BODY, "gpu": {**BODY["gpu"], **rest}}
    assert not DOCUMENT.violations("CreatePodRequest", body)
    made = world.call("runpod", "POST", "/v2/pods", body)
    assert made.status_code == (201 if is_had else 400)
    assert is_had or "no longer any instances available" in made.json()["detail"]
    spot = rent(world, "PodRentInterruptableInput", bidPerGpu=1.4, gpuCount=2, **of_all)
    assert bool(spot["data"] and spot["data"]["podRentInterruptable"]) == is_had


def test_a_pods_own_key_controls_its_pod_over_graphql_and_is_in_no_session(world):
    def environ(pod_id: str) -> dict[str, str]:
        """Return the variables of the pod's first process."""
        token = next(Path(world.about["state"]).glob(f"pods/{pod_id}-*/token")).read_text()
        return process.environ_of(first_process(token))

    def by(key: str, method: str, path: str, body=None) -> httpx.Response:
        return world.call("runpod", method, path, body, headers={"Authorization": f"Bearer {key}"})

    def end(key: str, pod_id: str) -> dict:
        query = "mutation ($id: String!) { podTerminate(input: {podId: $id}) }"
        return by(key, "POST", "/graphql", {"query": query, "variables": {"id": pod_id}}).json()

    world.fault(machines=[{"trait": "v2 pod key", "skip": 1}])
    old, new = create(world), create(world)
    way = up(world, old)["ssh"]["direct"]
    up(world, new)
    mine = environ(old)
    assert (mine["RUNPOD_POD_ID"], mine["PUBLIC_KEY"], mine["SLIPWAY_RUN_ID"]) == (old, world.public_key, "a")
    assert {"RUNPOD_DC_ID", "RUNPOD_API_KEY"} <= mine.keys()
    session = world.ssh(way["username"], way["host"], way["port"], "env").stdout
    assert "HOME=" in session and "RUNPOD" not in session and mine["RUNPOD_API_KEY"] not in session
    key, others = mine["RUNPOD_API_KEY"], environ(new)["RUNPOD_API_KEY"]
    assert [by(key, "DELETE", f"/v2/pods/{one}").status_code for one in (old, new)] == [403, 403]
    assert by(key, "GET", "/v2/pods").status_code == 403
    for refused in (
        end(key, new),
        end(others, old),
        by(key, "POST", "/graphql", {"query": "{ myself { id } }"}).json(),
    ):
        assert refused["data"] is None and "Unauthorized" in refused["errors"][0]["message"]
    assert {pod(world, one)["status"] for one in (old, new)} == {"RUNNING"}
    assert end(key, old) == {"data": {"podTerminate": None}}
    assert by(others, "DELETE", f"/v2/pods/{new}").status_code == 204
    assert by(key, "POST", "/graphql", {"query": "{ myself { id } }"}).status_code == 401
    assert {world.pod(one)["ended_by"] for one in (old, new)} == {"pod"}


def test_the_keys_of_the_account_are_used_only_for_a_pod_without_key(world):
    keys = {"keys": [world.public_key]}
    assert not problems("UpdateSshKeysRequest", keys)
    assert world.call("runpod", "PUT", "/v2/account/ssh-keys", keys).json() == keys
    way = up(world, create(world, env={}, startSsh=True))["ssh"]["direct"]
    assert world.ssh(way["username"], way["host"], way["port"], "echo in").stdout == "in\n"


@pytest.mark.parametrize("wrong", [7, [7], {"x": 7}, None, ""])
def test_a_body_is_refused_exactly_if_the_document_refuses_it(world, wrong):
    world.fault(machines=[{"trait": "ghost", "count": None}])  # makes no machine: only the validation matters
    properties = "name image gpu cloud dataCenterIds disk mounts ports env args registry startSsh nonsense".split()
    bodies = [{**BODY, name: wrong} for name in properties]
    bodies += [{**BODY, "gpu": {**BODY["gpu"], name: wrong}} for name in GPU_FIELDS]
    bodies += [{name: value for name, value in BODY.items() if name != left} for left in ("name", "image", "disk")]
    for body in bodies:
        is_bad = bool(DOCUMENT.violations("CreatePodRequest", body))
        answer = world.call("runpod", "POST", "/v2/pods", body)
        assert (answer.status_code == 422) == is_bad, (body, answer.text)
        assert answer.status_code != 422 or answer.json()["errors"]
