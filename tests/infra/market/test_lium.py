"""Lium's client against documented answers; requests are compared with the requests of the vendor's own client."""

import json
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path

import pytest

from infra.agent.job import Limits
from infra.agent.limits import hard_limit_s
from infra.errors import Ambiguous, AuthError, NoOffer, OutOfMoney, RateLimited, SlipwayError, UsageError
from infra.providers.json_api import JsonApi, VendorRefused, epoch
from infra.providers.lium import Lium
from infra.records import Address, Request
from tests.infra.market.stand import Answer, Stand

pytestmark = pytest.mark.process

DOCUMENT = Path(__file__).parent / "lium.openapi.json"
KEY = ("X-API-KEY", "li-secret")
RENT = "POST /executors/{id}/rent"
REMOVAL = "POST /pods/{id}/schedule-removal"
H100 = "NVIDIA H100 80GB HBM3"
REQUEST = Request(run="brave-otter-3", provider="lium", gpu="H100", num_gpus=8)
LIMITS = Limits(time_s=7 * 3600.0 + 1, spend_micro_usd=500_000_000, micro_usd_per_hour=14_000_000)
HOST = {
    "id": "9d3f5c1e-6a0b-4b7e-9a3e-0d3b1c2f4a55", "machine_name": H100, "executor_ip_address": "203.0.113.9",
    "gpu_count": "8", "available_gpu_count": 8, "min_gpu_count_for_rental": None, "price_per_gpu": 1.75,
    "status": "AVAILABLE", "tier": "secure",
    "location": {"country": "United States", "country_code": "US", "region_name": "Texas", "city": "Dallas"},
    "effective_upload_speed_mbps": 910.4, "effective_download_speed_mbps": 2350.0, "max_cuda_version": 13.0,
    "nvlink": True, "interconnect": {"gpu_count": 8, "nvlink": True}, "gpu_power_limited": False,
    "frequent_rent_failures": False, "reliability_score": 97.2, "last_verified_at": "2026-11-20T10:12:00Z",
    "specs": {
        "gpu": {"count": 8, "driver": "580.1", "details": [{"name": H100, "capacity": 81559}]},
        "cpu": {"count": 192, "model": "..."}, "ram": {"total": 1056964608, "pod_reserve": 10485760},
        "hard_disk": {"total": 3900000000, "free": 3100000000}, "network": {"upload_speed": 900},
        "available_port_count": 40, "sysbox_runtime": False,
    },
}  # fmt: skip
IMAGE = {"docker_image": "daturaai/pytorch", "docker_image_tag": "2.9"}
IMAGES = [{"docker_image": "ubuntu", "docker_image_tag": "24.04"}, IMAGE]
TEMPLATES = [{"id": "bad", **IMAGE, "status": "VERIFY_FAILED"},
             {"id": "other", "docker_image": "org/img", "docker_image_tag": "2.9", "status": "CREATED"},
             {"id": "old", **IMAGE, "docker_image_tag": "2.1", "status": "VERIFY_SUCCESS"},
             {"id": "theirs", **IMAGE, "status": "VERIFY_SUCCESS", "user_id": "u2"},
             {"id": "commands", **IMAGE, "status": "VERIFY_SUCCESS", "startup_commands": "curl x | sh"},
             {"id": "environment", **IMAGE, "status": "VERIFY_SUCCESS", "environment": {"LD_PRELOAD": "x"}},
             {"id": "b2c1", **IMAGE, "status": "VERIFY_SUCCESS", "user_id": None}]  # fmt: skip


def error(status, code, message, hint=None):
    body = {"error": {"code": code, "message": message, "hint": hint, "request_id": "r-1"}}
    return Answer(status, body, {"X-Request-Id": "r-1"})


def row(token, **changes):
    return {
        "id": "5c2f",
        "pod_name": token,
        "status": "PENDING",
        "ssh_connect_cmd": None,
        "ports_mapping": {},
        "gpu_name": H100,
        "gpu_count": "8",
        "ram_total": 1056964608,
        "price": 14.0,
        "created_at": "2026-11-20T12:00:01.123456",
        "updated_at": "2026-11-20T12:00:40",
        "removal_scheduled_at": "2026-11-20T20:00:00Z",
        "local_volume_path": "/root",
        "phase": "pulling image",
        "workspace_id": None,
        "executor": {"id": HOST["id"], "specs": {}},
        "template": {"id": "b2c1"},
        **changes,
    }


RUNNING = {"status": "RUNNING", "phase": None, "ssh_connect_cmd": "ssh root@203.0.113.9 -p 20022"}


@pytest.fixture
def stand():
    with Stand(KEY, document=DOCUMENT) as stand:
        stand.on("GET /executors", Answer(200, [HOST]))
        stand.on("GET /templates", Answer(200, TEMPLATES))
        stand.on("GET /executors/default-docker-image", Answer(200, IMAGES))
        stand.on("GET /users/me", Answer(200, {"id": "u1", "email": "me@example.com", "balance": 12.345678}))
        stand.on(REMOVAL, Answer(200, row("x")))
        stand.on(RENT, Answer(200, {"success": True, "pod_id": "5c2f"}))
        yield stand
    assert stand.wrong == []


@pytest.fixture
def lium(stand, keys):
    return Lium(JsonApi("lium", stand.url, dict([KEY]), read_s=30.0, sleep=lambda _: None), keys, "13.0")


@pytest.fixture
def offer(lium):
    return lium.offers(REQUEST)[0]


def test_an_offer_is_a_host_with_the_price_of_all_its_gpus(offer):
    assert (offer.micro_usd_per_hour, offer.num_gpus, offer.gpu, offer.spot) == (14_000_000, 8, "H100-SXM", False)
    assert (offer.country, offer.city, offer.region, offer.cloud) == ("US", "Dallas", "Texas", "secure")
    assert (offer.upload_mbps, offer.download_mbps, offer.nvlink, offer.cpus) == (910.4, 2350.0, True, 192)
    assert offer.gpu_memory_bytes == 80 * 10**9
    assert offer.disk_bytes == 3_100_000_000 * 1024
    assert 1.06e12 < offer.memory_bytes < 1.08e12
    told = json.loads(offer.raw)  # all reported facts of the machine, including unused facts
    assert told["id"] == offer.offer_id.partition("/")[0] and told["specs"]["gpu"]["details"]
    assert offer.seen_at == datetime(2026, 11, 20, 10, 12, tzinfo=timezone.utc).timestamp()


def test_a_host_is_split_only_if_its_owner_allows(stand, lium):
    one = Request(run="x", gpu="H100", num_gpus=2)
    assert lium.offers(one) == []
    stand.on("GET /executors", Answer(200, [{**HOST, "min_gpu_count_for_rental": 2, "available_gpu_count": 6}]))
    (part,) = lium.offers(one)
    assert (part.num_gpus, part.micro_usd_per_hour, part.cpus) == (2, 3_500_000, 48)
    assert lium.offers(REQUEST) == []
    assert [each.num_gpus for each in lium.offers(Request(run="x"))] == [2, 4, 6]
    stand.on("GET /executors", Answer(200, [{**HOST, "available_gpu_count": 6}]))
    assert lium.catalog(Request(run="x")) == []


@pytest.mark.parametrize(
    "changes",
    [
        {"frequent_rent_failures": True}, {"gpu_power_limited": True}, {"max_cuda_version": 12.8}, {"status": "RENTED"},
        {"available_gpu_count": 0}, {"price_per_gpu": "ask me"}, {"price_per_gpu": -1}, {"machine_name": None},
        {"gpu_count": 0, "min_gpu_count_for_rental": 1},
    ],
    ids=str,
)  # fmt: skip
def test_an_unusable_host_is_no_offer_and_affects_no_other_host(stand, lium, changes):
    stand.on("GET /executors", Answer(200, [{**HOST, **changes}, {**HOST, "id": "good"}]))
    assert [offer.offer_id for offer in lium.offers(REQUEST)] == ["good/8"]


def test_a_host_with_slow_or_unknown_bandwidth_is_no_offer_for_a_requested_speed(stand, lium):
    hosts = [
        {**HOST, "id": name, "effective_upload_speed_mbps": speed, "price_per_gpu": price}
        for name, speed, price in (("unknown", None, 1.0), ("slow", 400, 1.1), ("fast", 600, 2.0))
    ]
    stand.on("GET /executors", Answer(200, hosts))
    assert [one.offer_id for one in lium.offers(Request(run="x", upload_mbps=500))] == ["fast/8"]
    assert [one.offer_id for one in lium.offers(Request(run="x"))] == ["unknown/8", "slow/8", "fast/8"]


def test_reclaimable_nodes_are_spot(stand, lium):
    stand.on("GET /executors", Answer(200, [{**HOST, "tier": "spot"}]))
    assert lium.offers(REQUEST) == []
    assert lium.offers(Request(run="x", gpu="H100", num_gpus=8, spot=True))[0].spot


def test_a_volume_works_with_any_pod_and_an_unknown_volume_with_no_pod(stand, lium, token):
    stand.on("GET /volumes/{id}", Answer(200, {"id": "vol-1", "name": "mine"}))
    wish = replace(REQUEST, volume="vol-1")
    (offer,) = lium.offers(wish)
    lium.create(wish, offer, token, LIMITS)
    lium.create(REQUEST, offer, token, LIMITS)
    assert [body.get("volume_id") for body in stand.bodies(RENT)] == ["vol-1", None]
    stand.on("GET /volumes/{id}", Answer(404, {"error": {"code": "not_found", "message": "Volume not found"}}))
    with pytest.raises(NoOffer, match="no volume vol-1"):
        lium.offers(wish)


@pytest.mark.parametrize("reply", [{"success": True, "pod_id": "5c2f"}, {"id": "5c2f", "pod_name": "x"}])
def test_a_pod_is_rented_with_a_token_a_key_and_an_end(stand, lium, offer, token, reply):
    stand.on(RENT, Answer(200, reply))
    pod = lium.create(REQUEST, offer, token, LIMITS)
    assert (pod.pod_id, pod.token, pod.micro_usd_per_hour, pod.address) == ("5c2f", token, 14_000_000, "")
    (asked,) = [one for one in stand.asked if one.operation == RENT]
    assert asked.path == f"/executors/{HOST['id']}/rent" and len(asked.headers["idempotency-key"]) == 36
    assert asked.body["user_public_key"][0].startswith("ssh-ed25519 ")
    assert (asked.body["pod_name"], asked.body["template_id"], asked.body["gpu_count"]) == (token, "b2c1", 8)
    assert (asked.body["termination_hours"], asked.body["enable_backups"]) == (8, False)
    assert "li-secret" not in json.dumps(asked.body)


@pytest.mark.parametrize(
    ("limits", "hours"),
    [
        (Limits(), 720),
        (Limits(time_s=60.0), 1),
        (Limits(time_s=7200.0), 2),
        (Limits(spend_micro_usd=28_000_000, micro_usd_per_hour=14_000_000), 2),
        (Limits(spend_micro_usd=28_000_001, micro_usd_per_hour=14_000_000), 3),
    ],
)
def test_the_vendor_timer_is_armed_in_whole_hours_and_then_exactly(stand, lium, offer, token, limits, hours):
    before = int(lium.now())
    lium.create(REQUEST, offer, token, limits)
    after = lium.now()
    assert stand.bodies(RENT)[0]["termination_hours"] == hours
    limit_s = hard_limit_s(limits)
    ends = [epoch(body["removal_scheduled_at"]) for body in stand.bodies(REMOVAL)]
    assert len(ends) == (limit_s is not None)
    assert all(before - 2 <= end - limit_s <= after + 2 for end in ends)


def test_an_unanswered_timer_request_is_repeated_and_a_rented_pod_keeps_its_id(stand, lium, offer, token):
    stand.on(REMOVAL, Answer(500), Answer(how="drop"), Answer(200, row(token)))
    assert lium.create(REQUEST, offer, token, LIMITS).pod_id == "5c2f" and stand.times(REMOVAL) == 3
    stand.on(REMOVAL, error(400, "bad_request", "in the past"))
    assert lium.create(REQUEST, offer, token, LIMITS).pod_id == "5c2f"
    with pytest.raises(VendorRefused, match="in the past"):
        lium.arm_timer("5c2f", 1_790_000_000.0)


def test_an_account_without_a_plain_template_gets_a_private_template(stand, lium, offer, token):
    stand.on("GET /templates", Answer(200, TEMPLATES[:-1]))
    stand.on("POST /templates", Answer(200, {"id": "mine", **IMAGE, "status": "CREATED"}))
    lium.create(REQUEST, offer, token, LIMITS)
    (made,) = stand.bodies("POST /templates")
    assert (made["docker_image"], made["docker_image_tag"], made["startup_commands"]) == ("daturaai/pytorch", "2.9", "")
    assert made["is_private"] and made["one_time_template"] and stand.bodies(RENT)[0]["template_id"] == "mine"
    (asked,) = [one for one in stand.asked if one.operation == "GET /executors/default-docker-image"]
    assert asked.params == {"gpu_model": H100, "driver_version": "580.1"}


@pytest.mark.parametrize(
    ("image", "name", "tag", "digest"),
    [
        ("ubuntu:22.04", "ubuntu", "22.04", ""),
        ("ghcr.io/lab/torch", "ghcr.io/lab/torch", "latest", ""),
        ("registry.lab:5000/torch", "registry.lab:5000/torch", "latest", ""),
        ("lab/torch:2@sha256:ab12", "lab/torch", "2", "sha256:ab12"),
    ],
)
def test_a_requested_image_gets_a_private_template(stand, lium, offer, token, image, name, tag, digest):
    stand.on("POST /templates", Answer(200, {"id": "mine", "docker_image": name, "status": "CREATED"}))
    lium.create(replace(REQUEST, image=image), offer, token, LIMITS)
    (made,) = stand.bodies("POST /templates")
    assert (made["docker_image"], made["docker_image_tag"], made["docker_image_digest"]) == (name, tag, digest)
    assert stand.bodies(RENT)[0]["template_id"] == "mine"
    assert stand.times("GET /executors/default-docker-image") == 0


@pytest.mark.parametrize("image", ["daturaai/pytorch:2.9", "org/img:2.9"])
def test_a_plain_template_of_the_requested_image_is_taken(stand, lium, offer, token, image):
    lium.create(replace(REQUEST, image=image), offer, token, LIMITS)
    assert stand.bodies(RENT)[0]["template_id"] == ("b2c1" if "datura" in image else "other")


def test_a_pod_without_a_working_timer_is_not_rented(stand, lium, offer, token):
    with pytest.raises(UsageError, match="720"):
        lium.create(REQUEST, offer, token, Limits(time_s=721 * 3600.0))
    stand.on("GET /templates", Answer(200, TEMPLATES[:2]))
    stand.on("POST /templates", error(403, "forbidden", "no scope"))
    with pytest.raises(SlipwayError, match="nothing was rented"):
        lium.create(REQUEST, offer, token, LIMITS)
    assert stand.times(RENT) == 0


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (error(400, "price_changed", "The price has changed"), NoOffer),
        (error(404, "not_found", "Invalid executor id"), NoOffer),
        (error(409, "conflict", "Node is rented"), NoOffer),
        (error(403, "forbidden", "Insufficient balance: requires at least $7 ... Your balance is $2"), OutOfMoney),
        (error(402, "API_KEY_BUDGET_EXCEEDED", "over budget"), OutOfMoney),
        (error(401, "unauthorized", "bad key"), AuthError),
        (error(403, "forbidden", "API key 'x' does not have the 'rent' scope"), AuthError),
        (error(403, "provider_banned", "This provider is banned"), NoOffer),
        (error(422, "gpu_count_invalid", "gpu_count"), NoOffer),
        (error(422, "invalid", "gpu_count"), VendorRefused),
        (error(429, "rate_limited", "slow down"), RateLimited),
    ],
    ids=lambda one: str(getattr(one, "status", one)),
)
def test_a_definite_refusal_differs_from_other_answers(stand, lium, offer, token, answer, kind):
    stand.on(RENT, answer)
    with pytest.raises(kind) as caught:
        lium.create(REQUEST, offer, token, LIMITS)
    assert not isinstance(caught.value, Ambiguous)
    assert stand.times(RENT) == 1


@pytest.mark.parametrize(
    "answer",
    [
        error(409, "idempotency_in_progress", "?"),
        error(409, "idempotency_outcome_unknown", "?"),
        Answer(409, b"conflict"),
        error(500, "internal", "?"),
        Answer(200, {"success": False, "pod_id": None}),
        Answer(200, {"success": True}),
        Answer(200, b""),
        Answer(200, {"success": True, "pod_id": "5c2f"}, how="short"),
        Answer(how="drop"),
    ],
    ids=lambda answer: f"{answer.status}-{answer.how}-{len(answer.content)}",
)
def test_an_inconclusive_answer_is_ambiguous_and_sent_once(stand, lium, offer, token, answer):
    stand.on(RENT, answer)
    with pytest.raises(Ambiguous):
        lium.create(REQUEST, offer, token, LIMITS)
    assert stand.times(RENT) == 1


@pytest.mark.parametrize(
    ("changes", "state", "reachable"),
    [
        ({}, "booting", False),
        ({"status": "RUNNING", "phase": None}, "running", False),
        (RUNNING, "running", True),
        ({**RUNNING, "status": "REBOOT_PENDING"}, "booting", False),
        ({"status": "CREATION_FAILED"}, "failed", False),
        ({"status": "BROKEN"}, "failed", False),
        ({"status": "STOPPED"}, "stopped", False),
        ({"status": "DELETING"}, "ending", False),
    ],
    ids=str,
)
def test_a_pod_is_read_in_each_of_its_states(stand, lium, token, changes, state, reachable):
    stand.on("GET /pods/{id}", Answer(200, row(token, **changes)))
    pod = lium.find("5c2f")
    assert (pod.state, bool(pod.address)) == (state, reachable)


def test_the_vendors_facts_about_a_pod_are_read(stand, lium, token, keys):
    stand.on("GET /pods", Answer(200, [row(token, **RUNNING, ports_mapping='{"22": 20022}')]))
    pod = lium.find(token)
    assert Address.parse(pod.address) == Address(
        "root", "203.0.113.9", 20022, str(keys.private_key_path(token)), f"/root/.slipway/pods/{token}"
    )
    assert pod.micro_usd_per_hour == 14_000_000
    assert pod.created_at == datetime(2026, 11, 20, 12, 0, 1, 0, timezone.utc).timestamp()
    assert pod.ends_at == datetime(2026, 11, 20, 20, tzinfo=timezone.utc).timestamp()


@pytest.mark.parametrize(
    "words", ["ssh -oProxyCommand=x root@h", "ssh root@h -p 22; rm", "ssh root@h -p 99999", "ssh ro$t@h", "root@h"]
)
def test_an_ssh_command_of_unknown_form_is_no_address(stand, lium, token, words):
    stand.on("GET /pods", Answer(200, [row(token, **{**RUNNING, "ssh_connect_cmd": words})]))
    (pod,) = lium.list()
    assert pod.address == "" and "valid" in pod.odd


def test_the_oldest_pod_with_a_token_is_found_and_foreign_pods_have_no_token(stand, lium, token):
    late = row(token, id="late", created_at="2026-11-20T13:00:00")
    stand.on("GET /pods", Answer(200, [late, row(token), row("notebook", id="theirs", **RUNNING)]))
    assert lium.find(token).pod_id == "5c2f"
    foreign = next(pod for pod in lium.list() if pod.name == "notebook")
    assert (foreign.token, foreign.address, foreign.micro_usd_per_hour) == ("", "", 14_000_000)
    stand.on("GET /pods", Answer(200, [row(token), row(token)]))
    with pytest.raises(SlipwayError, match="twice"):
        lium.list()


def test_only_the_vendors_own_error_proves_absence(stand, lium, token):
    stand.on("GET /pods/{id}", error(404, "not_found", "pod not found"))
    assert lium.find("5c2f") is None
    stand.on("GET /pods/{id}", Answer(200, row(token, status="DELETED")))
    assert lium.find("5c2f") is None
    for answer in (error(500, "?", "?"), error(429, "?", "?"), Answer(200, b"null"), Answer(how="drop")):
        stand.on("GET /pods/{id}", answer)
        with pytest.raises(SlipwayError):
            lium.find("5c2f")


def test_a_gone_pod_counts_as_ended_and_a_failed_delete_is_reported(stand, lium):
    for answer in (Answer(200, {"success": True}), Answer(204), error(404, "not_found", "pod not found")):
        stand.on("DELETE /pods/{id}", answer)
        lium.delete("5c2f")
    for answer in (error(400, "bad", "Invalid executor id"), error(500, "?", "?"), Answer(how="drop")):
        stand.on("DELETE /pods/{id}", answer)
        with pytest.raises(SlipwayError):
            lium.delete("5c2f")
    assert stand.times("DELETE /pods/{id}") == 6


def test_the_account_has_an_owner_and_a_balance(stand, lium):
    stand.on("GET /users/me", Answer(200, {"id": "u1", "email": "me@example.com", "balance": 12.345678}))
    account = lium.account()
    assert (account.owner, account.balance_micro_usd) == ("me@example.com", 12_345_678)
    stand.on("GET /users/me", error(403, "forbidden", "no scope 'read'"))
    with pytest.raises(AuthError, match="scope"):
        lium.account()


def test_a_bill_includes_gone_pods_and_excludes_foreign_pods(stand, lium):
    stand.on(
        "GET /pods/{id}/record",
        Answer(200, {"pod_id": "5c2f", "billed_seconds": 3600, "total": 14.5, "removed_at": "2026-11-20"}),
    )
    assert lium.billed("5c2f") == 14_500_000
    stand.on("GET /pods/{id}/record", error(404, "not_found", "Pod not found"))
    assert lium.billed("5c2f") is None
