import json

from tests.loopback import loopback
from tests.world import World


def test_every_machine_of_the_inventory_is_told_reachable_or_why_not(tmp_path):
    world = World(tmp_path, {"SLIPWAY_POOLS": str(tmp_path / "pools.yaml")})
    with loopback(tmp_path / "one") as one, loopback(tmp_path / "two") as two:
        hosts = [
            {"ip": "127.0.0.1", "port": host.address.port, "identity_file": host.address.key} for host in (one, two)
        ]
        (tmp_path / "pools.yaml").write_text(json.dumps({"box": {"user": one.address.user, "hosts": hosts}}))
        two.stop()
        found = json.loads(world.inv("doctor", "--provider", "ssh", "--json", code=1))
        assert [(one["name"], one["state"]) for one in found] == [
            (f"ssh box/127.0.0.1:{one.address.port}", "ok"),
            (f"ssh box/127.0.0.1:{two.address.port}", "bad"),
        ]
        assert "reachable: " in found[0]["detail"] and "CPUs" in found[0]["detail"]
        assert "cannot be reached" in found[1]["detail"]
    (tmp_path / "pools.yaml").unlink()
    assert "there is no inventory" in json.loads(world.inv("doctor", "--provider", "ssh", "--json", code=2))["error"]
