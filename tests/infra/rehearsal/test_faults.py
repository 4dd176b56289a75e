"""The faults of a rehearsal, as seen by a client and in the true state."""

import time

import httpx
import pytest

from infra.errors import UsageError
from infra.rehearsal.faults import Faults, plan_of, read_plan
from tests.infra.rehearsal.worlds import Running, until

pytestmark = pytest.mark.process

L40 = {"cloud": "hyperstack", "region": "montreal-canada-2", "shade_instance_type": "L40"}
BODY = {**L40, "shade_cloud": True, "name": "sw1-a"}


def create(world: Running, **fields) -> httpx.Response:
    return world.call("shadeform", "POST", "/instances/create", {**BODY, **fields})


def listed(world: Running) -> list[dict]:
    return world.call("shadeform", "GET", "/instances").json()["instances"]


def machines(world: Running) -> int:
    """Return the number of machines ever made."""
    return len(world.truth()["pods"])


@pytest.mark.parametrize(("kind", "made"), [("dropped", 0), ("lost", 1), ("torn", 1)])
def test_a_create_with_a_lost_answer_may_have_rented(world, kind, made):
    before = machines(world)
    world.fault(requests=[{"call": "create", "kind": kind}])
    with pytest.raises(httpx.TransportError):
        create(world)
    assert machines(world) - before == made
    assert [row["name"] for row in listed(world)] == ["sw1-a"] * made


@pytest.mark.parametrize(("kind", "made"), [("error", 0), ("error but done", 1)])
def test_a_500_may_or_may_not_have_acted(world, kind, made):
    before = machines(world)
    world.fault(requests=[{"call": "create", "kind": kind, "status": 502}])
    assert create(world).status_code == 502 and machines(world) - before == made


def test_a_late_answer_comes_after_the_client_has_left(world):
    before = machines(world)
    world.fault(requests=[{"call": "create", "kind": "late", "delay_s": 1}])
    with pytest.raises(httpx.ReadTimeout):
        world.call("shadeform", "POST", "/instances/create", BODY, timeout=0.2)
    until(lambda: machines(world) - before == 1, "what was asked for")


def test_a_body_may_drip_longer_than_the_read_timeout(world):
    world.fault(requests=[{"call": "list", "kind": "drip", "delay_s": 0.5}])
    began = time.monotonic()
    answer = world.call("shadeform", "GET", "/instances", timeout=0.4)
    assert answer.json() == {"instances": []} and time.monotonic() - began > 0.45


def test_a_storm_of_429_names_a_wait_and_has_no_effect(world):
    before = machines(world)
    world.fault(requests=[{"kind": "throttle", "count": 3, "retry_after_s": 2}])
    answers = [create(world) for _ in range(3)]
    assert [(one.status_code, one.headers["Retry-After"]) for one in answers] == [(429, "2")] * 3
    assert machines(world) == before and create(world).status_code == 200


def test_a_list_may_lack_rows_and_look_whole(world):
    for _ in range(2):
        create(world)
    world.fault(requests=[{"call": "list", "kind": "short list"}, {"call": "list", "kind": "empty list", "skip": 1}])
    assert [len(listed(world)) for _ in range(3)] == [1, 0, 2]


def test_a_list_may_come_in_pages(world):
    body = {"name": "sw1-a", "image": "i", "gpu": {"id": "NVIDIA L40S", "count": 1}}
    ids = {world.call("runpod", "POST", "/v2/pods", body).json()["id"] for _ in range(3)}
    world.fault(page_size=2)
    first = world.call("runpod", "GET", "/v2/pods").json()
    second = world.call("runpod", "GET", "/v2/pods", params={"cursor": first["nextCursor"]}).json()
    assert (len(first["pods"]), len(second["pods"]), second["nextCursor"]) == (2, 1, None)
    assert {row["id"] for row in first["pods"] + second["pods"]} == ids


def test_a_list_and_a_fresh_id_may_lag(world):
    world.fault(listing_lag_s={"shadeform": 60_000})
    pod_id = create(world).json()["id"]
    path = f"/instances/{pod_id}/info"
    assert listed(world) == [] and world.call("shadeform", "GET", path).status_code == 404
    world.move(60_000)
    assert [row["id"] for row in listed(world)] == [pod_id]


def test_some_machines_differ_from_their_offer(world):
    world.fault(machines=[{"trait": trait} for trait in ("old driver", "fewer gpus", "slow disk", "wrong bill")])
    pod_id = create(world, ssh_key_id=world.shadeform_key()).json()["id"]
    row = until(lambda: (row := info(world, pod_id))["status"] == "active" and row, "an active instance")
    way = (row["ssh_user"], row["ip"], row["ssh_port"])
    assert world.ssh(*way, "nvidia-smi -L").stdout == ""
    assert "CUDA Version: 11.4" in world.ssh(*way, "nvidia-smi").stdout
    script = (
        "import tempfile as f, time; t = time.time(); f.TemporaryFile().write(bytes(4 << 20)); print(time.time() - t)"
    )
    assert float(world.ssh(*way, f"python3 -c '{script}'").stdout) > 0.4
    true, row = world.pod(pod_id), info(world, pod_id)
    assert float(row["cost_estimate"]) > 1.5 * true["billed_micro_usd"] / 1e6 > 0


def info(world: Running, pod_id: str) -> dict:
    return world.call("shadeform", "GET", f"/instances/{pod_id}/info").json()


def test_a_boot_may_hang_and_a_machine_may_run_and_not_answer(world):
    world.fault(
        machines=[{"trait": "hang"}, {"trait": "no ssh", "skip": 1}, {"trait": "null port", "skip": 2, "after_s": 1e6}]
    )
    kinds = ("L40", "L40", "A6000")
    hung, silent, unsaid = (create(world, shade_instance_type=kind).json()["id"] for kind in kinds)
    row = until(lambda: (row := info(world, silent))["status"] == "active" and row, "an active instance")
    assert "refused" in world.ssh(row["ssh_user"], row["ip"], row["ssh_port"], "true").stderr
    world.move(1800)
    assert info(world, hung)["status"] == "pending" and world.pod(hung)["billed_micro_usd"] == 0
    row = until(lambda: (row := info(world, unsaid))["status"] == "active" and row, "an active instance")
    assert row["ip"] and row["ssh_port"] is None
    world.move(1e6)
    assert info(world, unsaid)["ssh_port"] > 0


def test_an_early_deleted_machine_was_not_deleted_by_the_client(world):
    world.fault(machines=[{"trait": "vanished", "after_s": 30}])
    pod_id = create(world).json()["id"]
    until(lambda: world.pod(pod_id)["state"] == "gone", "an early end")
    assert listed(world) == [] and world.pod(pod_id)["ended_by"] == "vanished"


def test_the_same_seed_faults_the_same_requests():
    plan = plan_of({"requests": [{"kind": "lost", "count": None, "chance": 0.3, "vendor": "lium"}]})

    def hits(seed: int) -> list[bool]:
        faults = Faults(plan, seed)
        return [faults.for_request("lium", "create") is not None for _ in range(200)]

    assert hits(1) == hits(1) != hits(2) and 30 < sum(hits(1)) < 90
    assert Faults(plan).for_request("runpod", "create") is None


@pytest.mark.parametrize(
    "text", ["requests: [{kind: nonsense}]", "request: []", "machines: [{trait: ghost, cont: 1}]", "a: [", "- 1"]
)
def test_an_invalid_fault_plan_is_refused_with_the_position(tmp_path, text):
    path = tmp_path / "faults.yaml"
    path.write_text(text)
    with pytest.raises(UsageError, match=r"faults\.yaml[: ].+"):
        read_plan(path)


def test_the_row_of_a_healthy_machine_may_be_malformed_with_foreign_rows_beside(world):
    odd, well = (create(world, name=name).json()["id"] for name in ("sw1-odd", "sw1-well"))
    rule = {"vendor": "shadeform", "machine": "sw1-odd", "says": {"ip": "::1", "hourly_price": None}, "lacks": ["tags"]}
    world.fault(rows=[rule], strangers={"shadeform": [{"id": "x"}, 5]})
    for _ in range(2):  # counted by machines
        first, second, *others = listed(world)
        assert (first["ip"], first["hourly_price"], "tags" in first) == ("::1", None, False)
        assert second["hourly_price"] and "tags" in second and others == [{"id": "x"}, 5]
    assert info(world, odd)["ip"] == "::1" and info(world, well)["ip"] != "::1"
    assert world.pod(odd)["micro_usd_per_hour"] >= 0 and world.delete("shadeform", odd).status_code == 200
    world.violations.clear()  # no vendor's document has such rows


def test_foreign_rows_are_on_the_first_page_only(world):
    body = {"name": "sw1-a", "image": "i", "gpu": {"id": "NVIDIA L40S", "count": 1}}
    for _ in range(3):
        world.call("runpod", "POST", "/v2/pods", body)
    world.fault(page_size=2, strangers={"runpod": [5]})
    first = world.call("runpod", "GET", "/v2/pods").json()
    second = world.call("runpod", "GET", "/v2/pods", params={"cursor": first["nextCursor"]}).json()
    assert 5 in first["pods"] and 5 not in second["pods"] and len(second["pods"]) == 1
    world.violations.clear()  # no vendor's document has such rows


def test_an_error_may_have_a_text_of_no_vendor(world):
    world.fault(requests=[{"call": "list", "kind": "error", "status": 500, "body": {"errors": True}}])
    answer = world.call("shadeform", "GET", "/instances")
    assert (answer.status_code, answer.json()) == (500, {"errors": True})
