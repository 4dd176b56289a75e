"""The inventory of clusters: content, and refusals with the place."""

import json
import math

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


SBATCH_TIMES = {
    "90": 5400, "90:30": 5430, "12:30:15": 45_015, "2-12": 216_000, "1-12:30": 131_400, "1-12:00:00": 129_600,
    "0-00:10": 600, "36:00:00": 129_600,
}  # fmt: skip
NO_TIMES = dict.fromkeys(("UNLIMITED", "infinite", "0", "-1", "0:00"), math.inf)
OUR_TIMES = {"24h": 86_400, "1.5d": 129_600, "90s": 90, " 60 ": 3600}


@pytest.mark.parametrize(("text", "seconds"), {**SBATCH_TIMES, **NO_TIMES, **OUR_TIMES}.items())
@pytest.mark.parametrize("quote", ["", '"'])
def test_times_are_those_of_sbatch_or_have_a_unit(tmp_path, text, seconds, quote):
    """YAML reads 12:30:15 and 90:30 as numbers, and 0042 as 34."""
    path, key = tmp_path / "clusters.yaml", tmp_path / "key"
    key.touch(mode=0o600)
    path.write_text(
        f"fx:\n  host: login\n  identity_file: {key}\n  time: {quote}{text}{quote}\n  account: 0042\n  qos:\n"
    )
    (one,) = load(path, tmp_path).usable
    assert (one.common.time_s, one.common.account, one.common.qos) == (seconds, "0042", "")


@pytest.mark.parametrize("text", ["1.5", "-2", "1:2:3:4", "forever"])
def test_time_that_sbatch_refuses_is_refused(tmp_path, text):
    path, key = tmp_path / "clusters.yaml", tmp_path / "key"
    key.touch(mode=0o600)
    path.write_text(f"fx:\n  host: login\n  identity_file: {key}\n  time: '{text}'\n")
    (one,) = load(path, tmp_path).unusable
    assert "time: " in one.why and repr(text) in one.why


def test_a_number_as_the_name_of_a_partition_is_refused_in_words(tmp_path):
    path, key = tmp_path / "clusters.yaml", tmp_path / "key"
    key.touch(mode=0o600)
    path.write_text(f"fx:\n  host: login\n  identity_file: {key}\n  partitions:\n    4090:\n")
    (one,) = load(path, tmp_path).unusable
    assert "partition 4090: the name must be text; put the name in quotes" in one.why
    path.write_text(path.read_text().replace("4090", "'4090'"))
    assert list(load(path, tmp_path).usable[0].partitions) == ["4090"]


def test_merge_keys_and_numbers_as_names_are_read_or_refused_in_words(tmp_path):
    path, key = tmp_path / "clusters.yaml", tmp_path / "key"
    key.touch(mode=0o600)
    base = f"{{host: login, identity_file: {key}, time: 1:30:00}}"
    path.write_text(f"fx: &base {base}\ngy:\n  <<: *base\n  account: 0042\n7: {base}\nhz: [{{time: 1:30}}]\n")
    found = load(path, tmp_path)
    assert [(one.name, one.common.time_s, one.common.account) for one in found.usable] == [
        ("fx", 5400.0, ""),
        ("gy", 5400.0, "0042"),
    ]
    assert "the name must be text" in found.unusable[0].why and len(found.unusable) == 2


@pytest.mark.parametrize("wrong", ["", "hz: {host: login, host: other}\n"])
def test_a_merge_key_beside_the_clusters_brings_clusters(tmp_path, wrong):
    path, key = tmp_path / "clusters.yaml", tmp_path / "key"
    key.touch(mode=0o600)
    base = f"{{host: login, identity_file: {key}}}"
    path.write_text(f"<<: [{{fx: {base}, gy: {base}}}]\ngy: {{host: own, identity_file: {key}}}\n{wrong}")
    found = load(path, tmp_path)
    assert [(one.name, one.address.host) for one in found.usable] == [("fx", "login"), ("gy", "own")]
    assert [one.pool for one in found.unusable] == ["hz"] * bool(wrong)


def test_a_merge_key_that_names_no_clusters_is_an_error(tmp_path):
    path, key = tmp_path / "clusters.yaml", tmp_path / "key"
    key.touch(mode=0o600)
    path.write_text(f"<<: login\nfx: {{host: login, identity_file: {key}}}\n")
    found = load(path, tmp_path)
    assert [one.name for one in found.usable] == ["fx"] and [one.pool for one in found.unusable] == ["<<"]


def test_a_cluster_that_is_no_yaml_value_is_an_error_of_this_cluster_only(tmp_path):
    path, key = tmp_path / "clusters.yaml", tmp_path / "key"
    key.touch(mode=0o600)
    base = f"{{host: login, identity_file: {key}, time: 2h}}"
    twice = f"{{host: login, host: other, identity_file: {key}}}"
    path.write_text(
        f"fx: {base}\ngy: {base}\ngy: {base}\nhz: {twice}\nix: {base.replace('2h', '1:30:00')}\njy: {base}\n"
    )
    found = load(path, tmp_path)
    assert [(one.name, one.common.time_s) for one in found.usable] == [("fx", 7200.0), ("ix", 5400.0), ("jy", 7200.0)]
    assert [one.why.removeprefix(f"{path}: cluster ") for one in found.unusable] == [
        "gy: 'gy' is given twice",
        "hz: line 4: 'host' is given twice",
    ]


BAD = {
    "": "",
    "gy: {BASE}\ngy: {BASE}\n": "gy: 'gy' is given twice",
    "gy: {host: login, host: other}\n": "gy: line 1: 'host' is given twice",
    "gy: !!python/object/apply:os.system [id]\n": "gy: line 1: could not determine a constructor for the tag "
    "'tag:yaml.org,2002:python/object/apply:os.system'",
    "gy: {host: login, port: !!int ''}\n": "gy: line 1: this value cannot be read: IndexError('string index out of "
    "range')",
}


@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize(
    ("own", "of_part", "wanted"),
    [
        ("time: 90, account: 0042, user: 0123", "", (5400.0, "0042", "0123")),
        ("time: 1:30:00, qos: 7, account: 1_000, user: 1e3", "", (5400.0, "1_000", "1e3")),
        ("account: 2026-11-30, user: yes", "time: 1:30:00", (5400.0, "2026-11-30", "yes")),
        ("time: 2-12, account: on, user: 'ann'", "time: 90", (5400.0, "on", "ann")),
    ],
)
def test_words_are_kept_as_written_beside_a_cluster_with_an_error(tmp_path, bad, own, of_part, wanted):
    path, key = tmp_path / "clusters.yaml", tmp_path / "key"
    key.touch(mode=0o600)
    base = f"host: login, identity_file: {key}"
    path.write_text(bad.replace("BASE", base) + f"fx: {{{base}, {own}, partitions: {{gpu: {{{of_part}}}}}}}\n")
    found = load(path, tmp_path)
    (one,) = found.usable
    gpu = one.queue("gpu")
    assert (gpu.time_s, gpu.account, one.address.user) == wanted
    assert [one.why.removeprefix(f"{path}: cluster ") for one in found.unusable] == list(filter(None, [BAD[bad]]))


@pytest.mark.parametrize("account", ["abc@v100", "physics+gpu", "0042"])
def test_accounts_have_the_names_that_sites_give(written, tmp_path, account):
    (one,) = written_all(written, {"fx": body(tmp_path, account=account)})
    assert one.common.account == account


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"time": "1-"}, "time: '1-' is not a duration; write 90s, 30m, 2h or 1d, or as for sbatch --time"),
        ({"account": "--uid=0"}, "account is '--uid=0'; expected a name"),
        ({"acount": "x"}, "unknown key 'acount'; did you mean account?"),
        ({"host": None}, "`host` must be the address of the login node"),
        ({"host": "a.example:2222"}, "alias of the ssh config, as text; write: host: a.example, port: 2222"),
        ({"host": "ann@login"}, "as text; write: host: login, user: ann"),
        ({"host": "ann@[2001:db8::7]:22"}, "as text; write: host: 2001:db8::7, user: ann, port: 22"),
        ({"account": "a b"}, "account is 'a b'; expected a name"),
        ({"time": "soon"}, "'soon' is not a duration"),
        ({"sbatch": "--x"}, "sbatch must be a list of options"),
        ({"sbatch": ["x; rm"]}, "write each option as --name or --name=value"),
        ({"sbatch": ["--time=7-0"]}, "Slipway sets --time; leave the option out"),
        ({"sbatch": ["--nodes=4"]}, "Slipway sets --nodes; leave the option out"),
        ({"partitions": {}}, "`partitions` must have at least one entry"),
        ({"partitions": {"gpu": {"user": "x"}}}, "partition gpu: unknown key 'user'"),
        ({"partitions": {"a b": {}}}, "partition a b: the name of a partition consists of letters, digits and ._-"),
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
