"""Shadeform's client against documented answers; every request is checked against the vendor's OpenAPI document."""

import re
import stat
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path

import pytest

from infra.agent.job import Limits
from infra.errors import Ambiguous, AuthError, NoOffer, OutOfMoney, RateLimited, SlipwayError
from infra.providers.json_api import JsonApi, VendorRefused
from infra.providers.shadeform import Shadeform
from infra.records import Address, Request
from tests.infra.market.stand import Answer, Stand

pytestmark = pytest.mark.process

DOCUMENT = Path(__file__).parent / "shadeform.openapi.json"
KEY = ("X-API-KEY", "sf-secret")
REQUEST = Request(run="brave-otter-3", provider="shadeform", gpu="A6000", num_gpus=1)
LIMITS = Limits(time_s=3600.0, spend_micro_usd=150_000_000, micro_usd_per_hour=570_000)
TYPE = {
    "cloud": "massedcompute", "shade_instance_type": "A6000", "cloud_instance_type": "gpu_1x_a6000",
    "configuration": {
        "memory_in_gb": 48, "storage_in_gb": 256, "vcpus": 6, "num_gpus": 1, "gpu_type": "A6000",
        "interconnect": "pcie", "nvlink": False, "vram_per_gpu_in_gb": 48, "gpu_manufacturer": "nvidia",
        "os_options": ["ubuntu22.04"],
    },
    "hourly_price": 57, "deployment_type": "vm",
    "availability": [
        {"region": "kansascity-usa-1", "available": True, "display_name": "US, Kansas City, KS"},
        {"region": "desmoines-usa-1", "available": False, "display_name": "US, Des Moines, IA"},
    ],
    "boot_time": {"min_boot_in_sec": 300, "max_boot_in_sec": 600},
}  # fmt: skip
SSH_KEYS = {"ssh_keys": [{"id": "managed", "name": "Shadeform Managed Key", "public_key": "x", "is_default": True}]}


def instance(token, **changes):
    return {
        "id": "1dc915dd-8899-4b4f-862a-f63fb2b3dc3d",
        "cloud": "massedcompute",
        "region": "kansascity-usa-1",
        "shade_instance_type": "A6000",
        "cloud_instance_type": "gpu_1x_a6000",
        "cloud_assigned_id": "2865d9f3",
        "shade_cloud": True,
        "name": token,
        "configuration": {"num_gpus": 1, "gpu_type": "A6000", "os": "ubuntu"},
        "ip": None,
        "ssh_user": "shadeform",
        "ssh_port": None,
        "status": "pending_provider",
        "status_details": "Instance created, waiting on provider to spin up instance",
        "cost_estimate": "0",
        "hourly_price": 57,
        "active_at": None,
        "created_at": "2026-01-28T20:53:39.459529Z",
        "deleted_at": None,
        "ssh_key_id": "key-1",
        "tags": [f"slipway-token={token}", "slipway-run=brave-otter-3"],
        "port_mappings": [],
        "auto_delete": {"spend_threshold": "150.00", "date_threshold": "2026-01-28T22:00:00+00:00"},
        **changes,
    }


@pytest.fixture
def stand():
    with Stand(KEY, document=DOCUMENT) as stand:
        stand.on("GET /instances/types", Answer(200, {"instance_types": [TYPE]}))
        stand.on("GET /sshkeys", Answer(200, SSH_KEYS))
        stand.on("POST /sshkeys/add", Answer(200, {"id": "key-1"}))
        stand.on("POST /sshkeys/{id}/delete", Answer(200))
        stand.on("POST /instances/create", Answer(200, {"id": "1dc915dd"}))
        stand.on("POST /instances/{id}/delete", Answer(200))
        yield stand
    assert stand.wrong == []


@pytest.fixture
def shadeform(stand, keys):
    return client(stand, keys)


def client(stand, keys, key=KEY, attempt_s=20.0, **more):
    api = JsonApi("shadeform", stand.url, dict([key]), attempt_s=attempt_s, read_s=30.0, sleep=lambda _: None, **more)
    return Shadeform(api, keys)


def test_a_volume_works_only_in_its_cloud_and_region(stand, shadeform, token):
    volume = {"id": "vol-1", "cloud": "massedcompute", "region": "kansascity-usa-1", "name": "mine", "size_in_gb": 300}
    stand.on("GET /volumes/{id}/info", Answer(200, volume))
    wish = replace(REQUEST, volume="vol-1")
    (offer,) = shadeform.offers(wish)
    assert offer.volume_bytes == 300 * 10**9
    shadeform.create(wish, offer, token, LIMITS)
    (body,) = stand.bodies("POST /instances/create")
    assert (body["volume_ids"], body["volume_mount"]) == (["vol-1"], {"auto": True})
    stand.on("GET /volumes/{id}/info", Answer(200, {**volume, "region": "elsewhere"}))
    assert shadeform.offers(wish) == [] and [one.volume for one in shadeform.catalog(wish)] == [""]
    stand.on("GET /volumes/{id}/info", Answer(404, {"error": "not found"}))
    with pytest.raises(NoOffer, match="no volume vol-1"):
        shadeform.offers(wish)


def test_an_offer_is_a_type_in_an_available_region_with_a_price_in_micro_usd(shadeform):
    (offer,) = shadeform.offers(REQUEST)
    assert (offer.micro_usd_per_hour, offer.num_gpus, offer.gpu, offer.spot) == (570_000, 1, "A6000", False)
    assert (offer.cloud, offer.region, offer.instance_type) == ("massedcompute", "kansascity-usa-1", "A6000")
    assert (offer.country, offer.city, offer.cpus) == ("US", "Kansas City", 6)
    assert (offer.memory_bytes, offer.disk_bytes, offer.gpu_memory_bytes) == (48 * 10**9, 256 * 10**9, 48 * 10**9)
    assert offer.nvlink is False and offer.upload_mbps is None and offer.seen_at


def test_part_of_an_sxm_board_is_recognized_by_the_type_name(stand, shadeform):
    sxm = {
        **TYPE,
        "shade_instance_type": "A100_sxm4_80G",
        "configuration": {**TYPE["configuration"], "gpu_type": "A100_80G", "vram_per_gpu_in_gb": 80},
    }
    pcie = {**sxm, "shade_instance_type": "A100_80G"}
    stand.on("GET /instances/types", Answer(200, {"instance_types": [sxm, pcie]}))
    names = [one.gpu for one in shadeform.offers(replace(REQUEST, gpu="A100"))]
    assert sorted(names) == ["A100-80GB-PCIe", "A100-80GB-SXM"]


def test_a_vm_boots_no_requested_image(stand, shadeform):
    for image in ("ubuntu:22.04", "lab/torch@sha256:ab12"):
        with pytest.raises(NoOffer, match="boots no container image; use runpod or lium"):
            shadeform.catalog(replace(REQUEST, image=image))
    assert not stand.times("GET /instances/types")


def test_an_unsatisfiable_request_gets_no_offers(shadeform):
    assert shadeform.offers(Request(run="x", gpu="H100")) == []
    assert shadeform.offers(Request(run="x", gpu="A6000", spot=True)) == []
    assert len(shadeform.catalog(Request(run="x", gpu="H100"))) == 1


def test_a_pod_is_created_with_token_key_and_both_limits(stand, shadeform, token, keys):
    (offer,) = shadeform.offers(REQUEST)
    before = datetime.now(timezone.utc).timestamp()
    pod = shadeform.create(REQUEST, offer, token, LIMITS)
    assert (pod.pod_id, pod.token, pod.run, pod.address) == ("1dc915dd", token, "brave-otter-3", "")
    assert (pod.micro_usd_per_hour, pod.state) == (570_000, "booting")
    (added,) = stand.bodies("POST /sshkeys/add")
    assert added["name"] == token and re.match(r"ssh-ed25519 \S+ sw1-", added["public_key"])
    (body,) = stand.bodies("POST /instances/create")
    assert (body["name"], body["ssh_key_id"], body["shade_cloud"]) == (token, "key-1", True)
    assert body["tags"] == [f"slipway-token={token}", "slipway-run=brave-otter-3"]
    assert body["auto_delete"]["spend_threshold"] == "150.00"
    ends_at = datetime.fromisoformat(body["auto_delete"]["date_threshold"].replace("Z", "+00:00")).timestamp()
    assert -2 <= ends_at - before - 3600 <= 1
    assert stat.S_IMODE(keys.private_key_path(token).stat().st_mode) == 0o600
    assert "sf-secret" not in str(stand.bodies("POST /instances/create"))


def test_a_request_without_limits_sends_no_limits(stand, shadeform, token):
    shadeform.create(REQUEST, shadeform.offers(REQUEST)[0], token, Limits())
    assert "auto_delete" not in stand.bodies("POST /instances/create")[0]


def test_an_existing_key_of_the_account_is_reused(stand, shadeform, token):
    stand.on("POST /sshkeys/add", Answer(400, {"error": "ssh key name must be unique"}))
    mine = {"id": "key-7", "name": token, "public_key": "x", "is_default": False}
    stand.on("GET /sshkeys", Answer(200, {"ssh_keys": [*SSH_KEYS["ssh_keys"], mine]}))
    shadeform.create(REQUEST, shadeform.offers(REQUEST)[0], token, LIMITS)
    assert stand.bodies("POST /instances/create")[0]["ssh_key_id"] == "key-7"


def test_an_unconfirmed_key_does_not_make_a_pod_ambiguous(stand, shadeform, token):
    stand.on("POST /sshkeys/add", Answer(500, {"error": "?"}))
    with pytest.raises(SlipwayError, match="no machine was asked for") as caught:
        shadeform.create(REQUEST, shadeform.offers(REQUEST)[0], token, LIMITS)
    assert not isinstance(caught.value, Ambiguous)
    assert stand.times("POST /instances/create") == 0


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (Answer(409, {"error_code": "OUT_OF_STOCK", "error": "no capacity"}), NoOffer),
        (Answer(402, {"error": "pay"}), OutOfMoney),
        (Answer(400, {"error": "insufficient wallet balance"}), OutOfMoney),
        (Answer(401, {"message": "Invalid API key"}), AuthError),
        (Answer(403, {"message": "wrong account"}), AuthError),
        (Answer(409, {"error_code": "QUOTA_EXCEEDED", "error": "?"}), NoOffer),
        (Answer(409, {"error_code": "INSUFFICIENT_FUNDS", "error": "?"}), OutOfMoney),
        (Answer(404, {"error": "unknown region"}), NoOffer),
        (Answer(422, {"error": "os"}), VendorRefused),
        (Answer(429, {"error": "slow down"}, {"Retry-After": "7"}), RateLimited),
    ],
)
def test_a_definite_refusal_differs_from_other_answers_and_removes_the_key(stand, shadeform, token, answer, error):
    stand.on("POST /instances/create", answer)
    offer = shadeform.offers(REQUEST)[0]
    mine = {"id": "key-1", "name": token, "public_key": "x", "is_default": False}
    stand.on("GET /sshkeys", Answer(200, {"ssh_keys": [mine]}))
    with pytest.raises(error) as caught:
        shadeform.create(REQUEST, offer, token, LIMITS)
    assert not isinstance(caught.value, Ambiguous)
    assert stand.times("POST /instances/create") == 1
    assert stand.times("POST /sshkeys/{id}/delete") == 1


@pytest.mark.parametrize(
    "answer",
    [
        Answer(500, {"error": "?"}),
        Answer(502, b"<html>"),
        Answer(408),
        Answer(409, {"error_code": "SOMETHING_ELSE", "error": "?"}),
        Answer(302, headers={"Location": "/instances"}),
        Answer(200, b""),
        Answer(200, {"name": "no id"}),
        Answer(200, b'{"id": "1dc'),
        Answer(200, {"id": "1dc915dd"}, how="short"),
        Answer(how="drop"),
        Answer(200, b" " * 1000, how="drip"),
        Answer(how="silent"),
    ],
    ids=lambda answer: f"{answer.status}-{answer.how}",
)
def test_an_inconclusive_answer_is_ambiguous_and_sent_once(stand, keys, token, answer):
    stand.on("POST /instances/create", answer)
    offer = client(stand, keys).offers(REQUEST)[0]
    vendor = client(stand, keys, attempt_s=1.5 if answer.how in ("drip", "silent") else 20.0)
    with pytest.raises(Ambiguous):
        vendor.create(REQUEST, offer, token, LIMITS)
    assert stand.times("POST /instances/create") == 1
    assert stand.times("POST /sshkeys/{id}/delete") == 0


@pytest.mark.parametrize(
    ("changes", "state", "reachable"),
    [
        ({"status": "creating"}, "booting", False),
        ({"status": "pending"}, "booting", False),
        ({"status": "active", "ip": None}, "running", False),
        ({"status": "active", "ip": "203.0.113.9"}, "running", True),
        ({"status": "error", "status_details": "no capacity"}, "failed", False),
        ({"status": "deleting", "ip": "203.0.113.9"}, "ending", False),
    ],
)
def test_a_pod_is_read_in_each_of_its_states(stand, shadeform, token, changes, state, reachable):
    stand.on("GET /instances/{id}/info", Answer(200, instance(token, **changes)))
    pod = shadeform.find("1dc915dd-8899-4b4f-862a-f63fb2b3dc3d")
    assert (pod.state, bool(pod.address)) == (state, reachable)


def test_the_vendors_facts_about_a_pod_are_read(stand, shadeform, token, keys):
    stand.on(
        "GET /instances",
        Answer(
            200,
            {
                "instances": [
                    instance(token, status="active", ip="node-7.example.net", cost_estimate="103.4"),
                ]
            },
        ),
    )
    pod = shadeform.find(token)
    assert Address.parse(pod.address) == Address(
        "shadeform",
        "node-7.example.net",
        22,
        str(keys.private_key_path(token)),
        f"/home/shadeform/.slipway/pods/{token}",
    )
    assert (pod.token, pod.run, pod.micro_usd_per_hour) == (token, "brave-otter-3", 570_000)
    assert (pod.spend_limit_micro_usd, pod.spent_micro_usd) == (150_000_000, 103_400_000)
    assert pod.ends_at == datetime(2026, 1, 28, 22, tzinfo=timezone.utc).timestamp()
    assert shadeform.reach(pod).address.host == "node-7.example.net"


def test_malformed_irrelevant_fields_do_not_break_a_listing(stand, shadeform, token):
    odd = {
        "cost_estimate": "",
        "created_at": "yesterday",
        "auto_delete": {"date_threshold": "", "spend_threshold": "x"},
    }
    stand.on("GET /instances", Answer(200, {"instances": [instance(token, **odd)]}))
    (pod,) = shadeform.list()
    assert (pod.created_at, pod.ends_at, pod.spend_limit_micro_usd, pod.spent_micro_usd) == (0, None, None, None)


def test_a_foreign_machine_is_listed_without_an_address(stand, shadeform, token):
    foreign = instance("their-box", id="2", status="active", ip="203.0.113.9", tags=None)
    stand.on("GET /instances", Answer(200, {"instances": [foreign, instance(token)]}))
    by_name = {pod.name: pod for pod in shadeform.list()}
    assert (by_name["their-box"].token, by_name["their-box"].address) == ("", "")
    assert by_name["their-box"].micro_usd_per_hour == 570_000
    with pytest.raises(SlipwayError, match="no address"):
        shadeform.reach(by_name["their-box"])


def test_the_oldest_machine_with_a_token_is_found(stand, shadeform, token):
    late = instance(token, id="late", created_at="2026-01-28T21:00:00Z")
    stand.on("GET /instances", Answer(200, {"instances": [late, instance(token)]}))
    assert shadeform.find(token).pod_id == "1dc915dd-8899-4b4f-862a-f63fb2b3dc3d"


def test_only_the_vendors_own_error_proves_absence(stand, shadeform, token):
    stand.on("GET /instances/{id}/info", Answer(404, {"error": "not found"}))
    assert shadeform.find("1dc915dd") is None
    stand.on("GET /instances/{id}/info", Answer(200, instance(token, status="deleted")))
    assert shadeform.find("1dc915dd") is None
    for answer in (Answer(500), Answer(429), Answer(200, b""), Answer(403, {"message": "wrong account"})):
        stand.on("GET /instances/{id}/info", answer)
        with pytest.raises(SlipwayError):
            shadeform.find("1dc915dd")


def test_a_listing_with_a_duplicate_is_refused(stand, shadeform, token):
    stand.on("GET /instances", Answer(200, {"instances": [instance(token), instance(token)]}))
    with pytest.raises(SlipwayError, match="twice"):
        shadeform.list()


def test_an_address_that_looks_like_an_option_is_dropped(stand, shadeform, token):
    for changes in ({"ip": "-oProxyCommand=x"}, {"ip": "a b"}, {"ip": "203.0.113.9", "ssh_user": "-l"}):
        stand.on("GET /instances", Answer(200, {"instances": [instance(token, status="active", **changes)]}))
        (pod,) = shadeform.list()
        assert pod.address == "" and "valid" in pod.odd


def test_an_empty_200_ends_a_pod_and_removes_its_key(stand, shadeform, token):
    stand.on("GET /instances/{id}/info", Answer(200, instance(token)))
    mine = {"id": "key-1", "name": token, "public_key": "x", "is_default": False}
    stand.on("GET /sshkeys", Answer(200, {"ssh_keys": [*SSH_KEYS["ssh_keys"], mine]}))
    shadeform.delete("1dc915dd")
    deleted = [one.path for one in stand.asked if one.operation == "POST /sshkeys/{id}/delete"]
    assert deleted == ["/sshkeys/key-1/delete"]


def test_a_gone_pod_counts_as_ended(stand, shadeform, token):
    stand.on("GET /instances/{id}/info", Answer(404, {"error": "not found"}))
    shadeform.delete("1dc915dd")
    assert stand.times("POST /instances/{id}/delete") == 0
    stand.on("GET /instances/{id}/info", Answer(200, instance(token)))
    stand.on("POST /instances/{id}/delete", Answer(404, {"error": "not found"}))
    shadeform.delete("1dc915dd")


@pytest.mark.parametrize("answer", [Answer(500), Answer(409, {"error": "not yet"}), Answer(how="drop"), Answer(403)])
def test_a_failed_delete_is_reported(stand, shadeform, token, answer):
    stand.on("GET /instances/{id}/info", Answer(200, instance(token)))
    stand.on("POST /instances/{id}/delete", answer)
    with pytest.raises(SlipwayError):
        shadeform.delete("1dc915dd")
    assert stand.times("POST /instances/{id}/delete") == 1


def test_the_account_is_a_fingerprint_of_the_key_and_a_bad_key_is_refused(stand, shadeform, keys):
    account = shadeform.account()
    assert account.balance_micro_usd is None and re.fullmatch("key [0-9a-f]{8}", account.owner)
    with pytest.raises(AuthError, match="Invalid API key"):
        client(stand, keys, ("X-API-KEY", "other")).account()


def test_a_bill_is_available_while_the_machine_is_listed(stand, shadeform, token):
    stand.on("GET /instances/{id}/info", Answer(200, instance(token, cost_estimate="1.25")))
    assert shadeform.billed("1dc915dd") == 1_250_000
    stand.on("GET /instances/{id}/info", Answer(404))
    assert shadeform.billed("1dc915dd") is None
