import json
from pathlib import Path

import pytest

from flows.installation import checklist, doctor
from infra.ledger.journal import Journal
from infra.names import new_token
from infra.settings import Settings
from store.backends.backend import open_place
from tests.loopback import loopback
from tests.store import conftest as stores
from tests.world import ROOT, World

no_keys, hub = stores.no_keys, stores.hub


@pytest.mark.process
def test_every_machine_of_the_inventory_is_reachable_or_has_a_reason(tmp_path):
    world = World(tmp_path, {"SLIPWAY_POOLS": str(tmp_path / "pools.yaml")})
    with loopback(tmp_path / "one") as one, loopback(tmp_path / "two") as two:
        hosts = [
            {"ip": "127.0.0.1", "port": host.address.port, "identity_file": host.address.key} for host in (one, two)
        ]
        bad = {"identity_file": "/no/such/key", "hosts": ["192.0.2.1"]}
        pools = {"keyless": bad, "box": {"user": one.address.user, "hosts": hosts}}
        (tmp_path / "pools.yaml").write_text(json.dumps(pools))
        two.stop()
        found = json.loads(world.inv("doctor", "--provider", "ssh", "--json", code=1))
        assert [(one["name"], one["state"]) for one in found] == [
            (f"ssh box/127.0.0.1:{one.address.port}", "ok"),
            (f"ssh box/127.0.0.1:{two.address.port}", "bad"),
            ("ssh keyless/192.0.2.1", "bad"),
        ]
        assert "private key not found: /no/such/key" in found[2]["detail"]
        assert (
            "reachable: " in found[0]["detail"]
            and "CPUs" in found[0]["detail"]
            and "large files by rsync (" in found[0]["detail"]
        )
        assert "cannot be reached" in found[1]["detail"]
    (tmp_path / "pools.yaml").unlink()
    assert (
        "pools.yaml does not exist" in json.loads(world.inv("doctor", "--provider", "ssh", "--json", code=2))["error"]
    )


@pytest.mark.process
def test_the_store_is_checked_for_write_access_and_the_effective_token_is_named(hub, tmp_path):
    """A set token is not enough: a read-only token fails, and so does a missing repository."""
    open_place("hf://us/things").create()

    def report(code: int, uri: str, **environ: str) -> dict:
        keys = {"HF_ENDPOINT": hub.url, "HF_TOKEN": "", "HUGGINGFACEHUB_API_TOKEN": "", "SLIPWAY_STORE": uri, **environ}
        found = json.loads(World(tmp_path, keys).inv("doctor", "--json", code=code))
        return {one["name"]: (one["state"], one["detail"]) for one in found}

    both = {"HUGGINGFACEHUB_API_TOKEN": stores.TOKEN, "HF_TOKEN": "hf_canary-read-94"}
    good = report(0, "hf://us/things", **both)
    assert good["store"] == ("ok", "hf://us/things can be written, 0 artifacts")
    assert good["hub token"][0] == "ok" and good["hub token"][1].startswith("HUGGINGFACEHUB_API_TOKEN from ")
    assert "HF_TOKEN is also set, but not used" in good["hub token"][1]
    assert len(hub.repos["us/things"].commits) == 1  # no file was left in the store
    for uri, token, words in (
        ("hf://us/things", "hf_canary-read-94", "may only read"),
        ("hf://us/nothing", stores.TOKEN, "inv ckpt.init --to hf://us/nothing"),
    ):
        bad = report(1, uri, HF_TOKEN=token)
        assert bad["store"][0] == "bad" and words in bad["store"][1] and "canary" not in str(bad)
    local = report(0, str(tmp_path / "artifacts"))
    assert local["store"][0] == "ok" and "hub token" not in local


def _tools(artifacts: Path) -> dict[str, tuple[str, str]]:
    found = doctor.findings(ROOT, Settings.load(ROOT, environ={"SLIPWAY_STORE": str(artifacts)}))
    return {one.name: (one.state, one.detail) for one in found if one.name in ("git", "ssh", "rsync", "sshd")}


@pytest.mark.process
@pytest.mark.needs("ssh", "rsync")
def test_each_tool_is_shown_with_its_use(tmp_path):
    tools = _tools(tmp_path / "artifacts")
    assert tools["ssh"][0] == "ok" and "OpenSSH" in tools["ssh"][1]
    assert "rsync sends files above 32 MB if the other machine has rsync" in tools["rsync"][1]


@pytest.mark.process
def test_each_missing_tool_is_shown_with_the_lost_feature_or_the_replacement(tmp_path, monkeypatch):
    monkeypatch.setattr(doctor.shutil, "which", lambda name, **_: None)
    tools = _tools(tmp_path / "artifacts")
    off = dict.fromkeys(("ssh", "rsync", "sshd"), "off")
    assert {name: state for name, (state, _) in tools.items()} == off | {"git": "bad"}
    assert "inv ssh" in tools["ssh"][1] and "openssh-client" in tools["ssh"][1]
    assert "sent without rsync" in tools["rsync"][1] and "in pieces of 32 MB" in tools["rsync"][1]


def test_pending_uploads_of_the_last_run_are_reported(tmp_path):
    settings = Settings.load(ROOT, environ={"SLIPWAY_PODS": str(tmp_path / "pods")})
    assert doctor._uploads(settings) == []
    log = tmp_path / "runs" / "calm-wren-1" / "pod" / "logs" / "carry.log"
    log.parent.mkdir(parents=True)
    log.write_text(
        "2026-11-22T03:04:02Z step-000000012 is in the store\n2026-11-22T03:04:10Z all files are in the store\n"
    )
    (well,) = doctor._uploads(settings)
    assert (well.name, well.state) == ("uploads", "ok") and well.detail.startswith("calm-wren-1: 2026")
    with log.open("a") as file:
        file.write("2026-11-22T03:05:02Z not carried, retrying until the upload succeeds: StoreError: 403\x1b[31m\n")
    (ill,) = doctor._uploads(settings)
    assert ill.state == "off" and ill.detail.endswith(
        "not carried, retrying until the upload succeeds: StoreError: 403[31m"
    )


@pytest.mark.process
def test_the_requirements_of_a_service_are_reported_before_its_start(hub, tmp_path):
    open_place("hf://us/things").create()
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "fake.json").write_text("{}")
    keys = {
        "HF_ENDPOINT": hub.url,
        "HF_TOKEN": stores.TOKEN,
        "SLIPWAY_POOLS": str(tmp_path / "pools.yaml"),
        "RUNPOD_API_KEY": "",
    }
    world = World(tmp_path, keys)

    def report(code: int, model: str, **policy: float) -> dict[str, tuple[str, str]]:
        file = {
            "name": "demo",
            "service": {"replica_policy": {"min_replicas": 2, **policy}},
            "resources": {"zone": "us-east-1a"},
            "slipway": {"model": model},
        }
        (tmp_path / "service.yaml").write_text(json.dumps(file))
        line = ("doctor", "--for", "serve", "--config", str(tmp_path / "service.yaml"), "--json")
        return {one["name"]: (one["state"], one["detail"]) for one in json.loads(world.inv(*line, code=code))}

    with loopback(tmp_path / "one") as one:
        host = {"ip": "127.0.0.1", "port": one.address.port, "identity_file": one.address.key}
        (tmp_path / "pools.yaml").write_text(json.dumps({"box": {"user": one.address.user, "hosts": [host]}}))
        good = report(0, str(tmp_path / "model"), max_replicas=3, target_qps_per_replica=7.5)
        bad = report(1, "hf://us/things")
    place = f"ssh box/127.0.0.1:{one.address.port}"
    assert good[place][0] == "ok" and good["runpod"][0] == "off" and good["model"][0] == "ok"
    assert good["min_replicas"] == ("off", "2 for 1 own machines: 1 rented permanently")
    assert good["target_qps_per_replica"] == ("ok", "7.5") and bad["target_qps_per_replica"][0] == "off"
    assert bad["model"][0] == "bad" and "us/things" in bad["model"][1]
    assert good["resources.zone"][0] == "off" and "only `region`" in good["resources.zone"][1]
    assert good["access"][0] == "off" and "serve.key demo" in good["access"][1]
    world.inv("serve.key", "demo", "--for", "ann")
    assert report(1, "hf://us/nowhere")["access"][0] == "ok"
    assert "--for serve" in json.loads(world.inv("doctor", "--for", "money", "--json", code=2))["error"]


@pytest.mark.process
@pytest.mark.pack("slurm")
@pytest.mark.pack("skypilot")
def test_every_provider_has_a_line_enabled_or_disabled_with_the_reason(tmp_path):
    """No machine, cluster or API server gets a request: the inventories name addresses without a listener."""
    keys = dict.fromkeys(("RUNPOD_API_KEY", "SHADEFORM_API_KEY"), "") | {"LIUM_API_KEY": "lium-canary-0123456789"}
    files = {"SLIPWAY_POOLS": str(tmp_path / "pools.yaml"), "SLIPWAY_CLUSTERS": str(tmp_path / "clusters.yaml")}
    world = World(tmp_path, {**keys, **files, "SLIPWAY_ENVIRONMENTS": str(tmp_path / "environments")})

    def report() -> dict[str, tuple[str, str]]:
        return {one["name"]: (one["state"], one["detail"]) for one in world.json("doctor")}

    found = report()
    names = ["local", "ssh pools", "runpod", "lium", "shadeform", "skypilot", "slurm"]
    assert [name for name in found if name in names] == names
    for name, why in (
        ("ssh pools", f"inventory {tmp_path / 'pools.yaml'} does not exist"),
        ("slurm", f"the inventory {tmp_path / 'clusters.yaml'} does not exist"),
        ("runpod", "RUNPOD_API_KEY is not set"),
        ("skypilot", "the client is not installed"),
    ):
        assert found[name][0] == "off" and found[name][1].startswith(f"disabled: {why}"), found[name]
    assert found["lium"] == ("ok", "enabled: LIUM_API_KEY from shell")
    (tmp_path / "key").touch(mode=0o600)
    own = {"user": "nobody", "identity_file": str(tmp_path / "key")}
    (tmp_path / "pools.yaml").write_text(json.dumps({"box": {**own, "hosts": ["192.0.2.1", "192.0.2.2"]}}))
    (tmp_path / "clusters.yaml").write_text(json.dumps({"lab": {**own, "host": "192.0.2.3"}}))
    found = report()
    assert found["ssh pools"] == ("ok", "enabled: 2 machines; to check the machines: inv doctor --provider ssh")
    assert found["slurm"] == ("ok", "enabled: 1 cluster; to check the machines: inv doctor --provider slurm")


def test_the_requirements_of_a_training_are_reported_before_renting(tmp_path):
    settings = Settings.load(
        tmp_path,
        {"profile": "runpod_1b", "store": str(tmp_path / "here")},
        environ={"RUNPOD_API_KEY": "rpa-0123456789abcdef"},
    )
    with Journal.open(tmp_path / "journal.db") as journal:
        found = {one.name: one for one in checklist.training(settings, journal)}
        assert list(found) == ["credentials", "store", "tracking", "smoke test", "recipe"]
        assert found["credentials"].state == found["recipe"].state == "ok" and "992 million" in found["recipe"].detail
        assert found["store"].state == "bad" and "rented machines cannot reach the store" in found["store"].detail
        assert found["smoke test"].state == "bad" and "smoke_test.yaml" in found["smoke test"].detail
        op = journal.plan(token=new_token(journal.installation), run="smoke-test-1", vendor="runpod")
        journal.note(op, outcome="succeeded")
        assert checklist.training(settings, journal)[3].state == "ok"
