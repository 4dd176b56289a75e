"""The inventory of clusters: content, and refusals with the place."""

import json

import pytest

from infra.errors import UsageError
from packs.slurm.control.inventory import Clusters, load


@pytest.fixture
def written(tmp_path):
    """Return a function: `written({...})` gives the clusters of such a file; the key named in the file exists."""
    (tmp_path / "key").touch(mode=0o600)

    def write(document):
        path = tmp_path / "slurm_clusters.yaml"
        path.write_text(json.dumps(document))
        return load(path, tmp_path)

    return write


def written_all(written, document):
    found = written(document)
    assert not found.unusable
    return found.usable


def body(folder, **more):
    return {"host": "login.example.org", "user": "ada", "identity_file": str(folder / "key"), **more}


def test_partition_inherits_from_its_cluster_unless_set(written, tmp_path):
    parts = {"gpu": {"qos": "long", "sbatch": ["--constraint=ib"]}, "cpu": None}
    (one,) = written_all(
        written, {"fx": body(tmp_path, account="physics", qos="short", time="2h", port=2222, partitions=parts)}
    )
    gpu, cpu = one.queue("gpu"), one.queue("cpu")
    assert (gpu.account, gpu.qos, gpu.time_s, gpu.options) == ("physics", "long", 7200.0, ("--constraint=ib",))
    assert (cpu.account, cpu.qos, cpu.options) == ("physics", "short", ())
    assert one.queue("debug") is None
    assert (one.address.user, one.address.port, one.python) == ("ada", 2222, "python3")
    (bare,) = written_all(written, {"fx": body(tmp_path)})
    assert bare.queue("anything") is bare.common


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"acount": "x"}, "unknown key 'acount'; did you mean account?"),
        ({"host": None}, "`host` must be the address of the login node"),
        ({"account": "a b"}, "account is 'a b'; expected a name"),
        ({"time": "soon"}, "'soon' is not a duration"),
        ({"sbatch": "--x"}, "sbatch must be a list of options"),
        ({"sbatch": ["x; rm"]}, "write each option as --name or --name=value"),
        ({"sbatch": ["--nodes=4"]}, "Slipway sets --nodes; leave the option out"),
        ({"partitions": {}}, "`partitions` must have at least one entry"),
        ({"partitions": {"gpu": {"user": "x"}}}, "partition gpu: unknown key 'user'"),
        ({"identity_file": "/none"}, "private key not found: /none"),
    ],
)
def test_invalid_entry_is_refused_with_its_place(written, tmp_path, more, said):
    found = written({"fx": body(tmp_path, **more), "gy": body(tmp_path)})
    (one,) = found.unusable
    assert said in one.why and "cluster fx" in one.why and one.place == "fx"
    assert [one.name for one in found.usable] == ["gy"] == [one.name for one, _ in found.select("")]
    for word in ("fx", "fx/gpu"):
        with pytest.raises(UsageError, match="cluster fx"):
            found.select(word)
    with pytest.raises(UsageError, match="cluster fx"):
        found.find("fx")
    assert found.find("gy") == found.usable[0]


def test_name_matches_a_cluster_a_partition_or_both(written, tmp_path):
    both = written({"fx": body(tmp_path, partitions={"gpu": {}, "cpu": {}}), "gy": body(tmp_path)})
    assert [(one.name, part) for one, part in both.select("")] == [("fx", ""), ("gy", "")]
    assert [(one.name, part) for one, part in both.select("fx/gpu")] == [("fx", "gpu")]
    assert [(one.name, part) for one, part in both.select("gpu")] == [("fx", "gpu"), ("gy", "gpu")]
    with pytest.raises(UsageError, match="partition 'debug' is not in the inventory of fx; available: gpu, cpu"):
        both.select("fx/debug")
    with pytest.raises(UsageError, match="no cluster or partition has the name 'zz'"):
        Clusters(both.usable[:1]).select("zz")


def test_missing_inventory_is_empty(tmp_path):
    with pytest.raises(UsageError, match="copy slurm_clusters.yaml.example to this path"):
        load(tmp_path / "none.yaml")
