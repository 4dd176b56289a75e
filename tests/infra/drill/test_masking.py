"""Private parts of a recording are masked: keys, addresses, ids and names of an account; the rest stays."""

import json

import pytest

from infra.drill.evidence import WORKER, Evidence, Trial, Vendor, VerbCall
from infra.drill.masking import HOST, RecordingMask
from infra.drill.recording import load, record, save
from infra.drill.watch import HeardExchange
from infra.errors import SlipwayError, UsageError
from infra.providers.json_api import Exchange, Reply
from infra.records import Offer, Pod

TOKEN, POD = "sw1-0a1b2c3d-abcdefghijklmnop", "7h9k2m4n6p1234"
OTHER = {"id": "somebody-elses", "name": "secret-project", "tags": ["owner=alice"]}
ROW = {
    "id": POD, "name": TOKEN, "status": "active", "hourly_price": 57, "ip": "198.51.100.7", "ssh_port": 2222,
    "ssh_user": "alice", "tags": [f"slipway-token={TOKEN}", "slipway-run=drill-shadeform-1", "owner=alice"],
    "api_key_id": "key-4711", "workspace_id": "ws-4711", "email": "alice@example.org", "balance": 1234.5,
    "auto_delete": {"date_threshold": "2026-11-23T12:00:00Z", "spend_threshold": "1.50"},
    "ssh_connect_cmd": "ssh alice@198.51.100.7 -p 2222", "env": {"SLIPWAY_POD": TOKEN, "HF_TOKEN": "hf_secret"},
    "error": f"pod {POD} of alice@example.org at 198.51.100.7: balance is $1234.50, see /home/alice/x",
}  # fmt: skip
PRIVATE = ("alice", "198.51.100.7", "4711", "1234", "hf_secret", "secret-project", TOKEN, POD, "2222")
OFFER = Offer(provider="shadeform", offer_id="a/b/A6000", instance_type="A6000", micro_usd_per_hour=570_000)
VENDOR = Vendor(name="shadeform", time_limit=True, time_grain_s=1.0, spend_limit=True, tells_limits=True,
                start_timer=False, resets_timer=False, spot=False, tells_bills=True, has_ssh=True, self_deletes=(),
                self_terminate="native", slack_s=300.0, late_s=5.0)  # fmt: skip


def evidence():
    pod = Pod(provider="shadeform", pod_id=POD, token=TOKEN, run="drill-shadeform-1", name=TOKEN,
              address="ssh://alice@198.51.100.7:2222/root?key=/home/alice/key")  # fmt: skip
    made = VerbCall(verb="create", word=TOKEN, began_at=1.0, ended_at=2.0, pods=(pod,))
    refused = VerbCall(verb="reach", word=POD, began_at=3.0, ended_at=4.0, error="AuthError: /home/alice/key")
    trial = Trial(name=WORKER, token=TOKEN, offer=OFFER, run="drill-shadeform-1", pod_id=POD, failure="at 198.51.100.7")
    return Evidence(vendor=VENDOR, asked=(made, refused), trials=(trial,))


def heard():
    answer = Reply(200, {"date": "Mon, 23 Nov 2026 08:00:00 GMT"}, json.dumps({"instances": [OTHER, ROW]}).encode())
    content = json.dumps({"name": TOKEN, "public_key": "ssh-ed25519 AAAAC3Nza alice"}).encode()
    return [HeardExchange(0, Exchange("POST", f"/instances/{POD}/info?cursor={POD}", content, answer))]


def test_nothing_private_is_in_a_recording_and_what_a_client_reads_is(tmp_path):
    made, mask = record(evidence(), heard(), 1_790_000_000)
    path = tmp_path / "a.recording.json"
    save(made, path, mask.secrets)
    text = path.read_text()
    assert not [one for one in PRIVATE if one in text]
    assert load(path) == made
    (one,) = made.exchanges
    (row,) = one.answer["instances"]  # the other machine is nobody's business
    token = row["name"]
    assert token.startswith("sw1-00000000-") and made.evidence.trials[0].token == token
    assert row["tags"][:2] == [f"slipway-token={token}", "slipway-run=drill-shadeform-1"]
    assert (row["status"], row["hourly_price"], row["ip"]) == ("active", 57, HOST)
    assert row["auto_delete"] == ROW["auto_delete"] and row["env"]["SLIPWAY_POD"] == token
    assert one.path == f"/instances/{row['id']}/info?cursor={row['id']}" and one.at == 1_795_420_800.0
    assert made.evidence.asked[1].error == "AuthError"


def test_what_could_not_be_masked_is_not_written(tmp_path):
    made, _ = record(evidence(), heard(), 1_790_000_000)
    with pytest.raises(SlipwayError, match="not everything in it could be masked"):
        save(made, tmp_path / "a.json", ["A6000"])
    assert not list(tmp_path.iterdir())
    with pytest.raises(UsageError, match="--replay"):
        load(tmp_path / "a.json")


def test_one_thing_has_one_stand_in_also_where_it_is_a_part_of_another():
    mask = RecordingMask([TOKEN], [POD])
    mask.learn({"id": POD, "cloud_assigned_id": f"c-{POD}", "gpu_id": "NVIDIA H100 PCIe", "dataCenterId": "US-KS-2"})
    assert mask.stand_in(f"{POD} c-{POD}") == "machine-1 id-2"
    assert mask.body({"id": "NVIDIA H100 PCIe"}) == {"id": "NVIDIA H100 PCIe"}
    assert mask.body({"id": "u1", "key": "rpa_secret"}) == {"id": "masked", "key": "masked"}


def test_of_a_machine_that_its_vendor_describes_the_gpu_and_the_driver_stay():
    mask = RecordingMask([], [])
    row = {"id": "9d3a52a8-0001", "owner": "alice", "specs": {"gpu": {"driver": "580.65", "name": "NVIDIA H100 PCIe"}}}
    assert mask.body(row)["specs"]["gpu"] == row["specs"]["gpu"] and mask.body(row)["owner"] == "masked"
    assert mask.body({"startup_commands": "", "name": "alice"}) == {"startup_commands": "", "name": "masked"}
