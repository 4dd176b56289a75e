"""FineWeb from the hub: the real client code with a hub on loopback."""

import json
import os

import httpx2
import pyarrow
import pyarrow.parquet
import pytest
from huggingface_hub import constants

from data.__main__ import main
from data.errors import DataError
from data.manifest import read_manifest
from data.shards.shards import read, shard_paths
from data.text import fineweb, remote
from tests.hub import COMMIT, Fault, FolderRepo, serving

pytestmark = pytest.mark.process

CONFIGS = [
    {"config_name": "default", "data_files": [{"split": "train", "path": "data/*/*"}]},
    {"config_name": "sample-10BT", "data_files": [{"split": "train", "path": "sample/10BT/*"}]},
]


@pytest.fixture
def repo(tmp_path):
    """Write two files of five row groups; most of their bytes are in an unused column."""
    folder = tmp_path / "repo" / "sample" / "10BT"
    folder.mkdir(parents=True)
    for number in range(2):
        rows = range(number * 500, number * 500 + 500)
        ballast = [os.urandom(4000) for _ in rows]
        scores = [row % 10 / 10 for row in rows]
        texts = [f"document {row}\nits second line" for row in rows]
        columns = {"ballast": ballast, "text": texts, "id": [f"<{row}>" for row in rows], "language_score": scores}
        pyarrow.parquet.write_table(pyarrow.table(columns), folder / f"{number:03d}.parquet", row_group_size=100)
    (tmp_path / "repo" / "README.md").write_text("a card")
    return FolderRepo(tmp_path / "repo", CONFIGS)


@pytest.fixture
def hub(repo):
    with serving({"HuggingFaceFW/fineweb": repo, "us/plain": FolderRepo(repo.folder)}) as hub:
        yield hub


@pytest.fixture
def shard(hub, tmp_path, monkeypatch, capsys):
    """Return a function that shards the hub's data in this process: (exit code, messages)."""
    (tmp_path / "home").mkdir()
    for name, value in {"HF_ENDPOINT": hub.url, "no_proxy": "*", "HOME": str(tmp_path / "home")}.items():
        monkeypatch.setenv(name, value)
    for name in ("HF_TOKEN", "HUGGINGFACEHUB_API_TOKEN", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)

    def shard(**spec):
        config = {"out": str(tmp_path / "out"), "spec": {"source": "fineweb", "workers": 1, **spec}}
        (tmp_path / "config.json").write_text(json.dumps(config))
        return main(["text", "--config", str(tmp_path / "config.json")]), capsys.readouterr().err

    return shard


def numbers(tmp_path):
    return [int(text.split()[1]) for text in read(shard_paths(tmp_path / "out"))]


@pytest.mark.parametrize("workers", [1, 2])
def test_documents_of_a_configuration_are_in_order_and_only_their_column_is_fetched(hub, shard, tmp_path, workers):
    assert shard(workers=workers) == (0, "")
    assert numbers(tmp_path) == list(range(1000))
    manifest = read_manifest(tmp_path / "out")
    assert manifest["input"]["revision"] == COMMIT and manifest["input"]["files"] == 2
    whole = sum(path.stat().st_size for path in hub.repos["us/plain"].folder.rglob("*.parquet"))
    assert hub.served_bytes < whole / 3
    assert list((tmp_path / "home").rglob("*")) == []


def test_data_set_without_a_card_is_read_completely(hub, shard, tmp_path):
    assert shard(dataset="us/plain", take=7) == (0, "")
    assert numbers(tmp_path) == list(range(7))


def test_score_selects_documents(hub, shard, tmp_path):
    assert shard(min_score=0.8) == (0, "")
    assert numbers(tmp_path) == [row for row in range(1000) if row % 10 >= 8]


def test_token_is_sent_to_the_hub_but_not_to_a_redirect(hub, shard, tmp_path, monkeypatch):
    hub.repos["HuggingFaceFW/fineweb"].token = "right-one"
    monkeypatch.setenv("HUGGINGFACEHUB_API_TOKEN", "right-one")
    monkeypatch.setenv("HF_TOKEN", "other")
    assert shard(take=10) == (0, "")
    # The hub's client itself sends such requests, too.
    asked = [one for one in hub.asked if "/HuggingFaceFW/" in one.path]
    to_store = [one for one in asked if one.path.startswith("/store/")]
    assert to_store and {one.authorization for one in to_store} == {""}
    assert {one.authorization for one in asked if one not in to_store} == {"Bearer right-one"}
    assert "right-one" not in (tmp_path / "out" / "manifest.json").read_text()


def test_busy_and_broken_answers_are_retried_without_loss(hub, shard, tmp_path):
    hub.faults = [Fault("/api/", 503, 0), Fault("/store/", 429, 0), Fault("/resolve/", 500)]
    hub.faults += [Fault("/store/", "cut", 1), Fault("/store/", "cut", 300), Fault("/store/", 429, 1)]
    assert shard() == (0, "")
    assert all(not fault.times for fault in hub.faults)
    assert numbers(tmp_path) == list(range(1000))


def test_interrupted_body_continues_at_the_last_byte(hub, shard, tmp_path):
    hub.faults = [Fault("/store/", "cut", amount) for amount in (0, 1, 100)]
    assert shard(take=1) == (0, "")
    starts = [one.start for one in hub.asked if one.start]
    assert any(after == before + 100 for before, after in zip(starts, starts[1:], strict=False))


@pytest.mark.parametrize(
    ("spec", "seen"),
    [
        ({"dataset": "not a name"}, "no such data set"),
        ({"config": "sample-10TB"}, "did you mean 'sample-10BT'?"),
        ({"split": "test"}, "has no split 'test'; known: train"),
        ({"language": "en"}, "no column language; available: ballast, text, id, language_score"),
    ],
)
def test_missing_data_set_gives_one_line_and_exit_2(shard, spec, seen):
    code, said = shard(**spec)
    assert (code, said.count("\n")) == (2, 1)
    assert seen in said


@pytest.mark.parametrize(
    ("spec", "seen"),
    [
        ({"dataset": "HuggingFaceFW/finweb"}, "no such data set"),
        ({"revision": "v9"}, "has no revision 'v9'"),
    ],
)
def test_refusal_of_the_hub_gives_one_line_and_exit_1(shard, spec, seen):
    code, said = shard(**spec)
    assert (code, said.count("\n")) == (1, 1)
    assert seen in said


@pytest.mark.parametrize("offline", ["", "1"])
def test_silent_hub_is_distinguished_from_a_refusing_hub(shard, monkeypatch, offline):
    monkeypatch.setattr(fineweb, "PATIENCE_S", 0.1)
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", bool(offline))
    code, said = shard()
    assert (code, said.count("\n")) == (69, 1)
    assert "http://127.0.0.1:9 cannot be reached" in said and "type --source pydocs" in said


def test_repeated_error_is_final(hub, shard, monkeypatch):
    monkeypatch.setattr(fineweb, "PATIENCE_S", 0.1)
    hub.faults = [Fault("/api/", 429, 9)]
    code, said = shard()
    assert code == 1 and "it answers 429" in said and "cannot be reached" not in said


def test_grown_data_set_is_read_again(hub, shard, tmp_path):
    (hub.repos["HuggingFaceFW/fineweb"].folder / "sample" / "10BT" / "001.parquet").rename(tmp_path / "away")
    assert shard() == (0, "")
    whole = numbers(tmp_path)
    (tmp_path / "away").rename(hub.repos["HuggingFaceFW/fineweb"].folder / "sample" / "10BT" / "001.parquet")
    assert whole == list(range(500))
    assert shard() == (0, "")
    assert numbers(tmp_path) == list(range(1000))


def test_address_of_a_file_is_a_source_like_its_path(hub, shard, tmp_path):
    address = f"{hub.url}/datasets/us/plain/resolve/main/sample/10BT/001.parquet"
    assert shard(source=address, take=3) == (0, "")
    assert numbers(tmp_path) == [500, 501, 502]
    code, said = shard(source=address.removesuffix("001.parquet") + "009.parquet")
    assert (code, said.count("\n")) == (2, 1) and "the server answers 404" in said


@pytest.mark.parametrize(("known", "told"), [((), "given up after 0 s"), (("127.0.0.1:1",), "given up after 1 s")])
def test_address_that_never_answered_is_abandoned_before_a_silent_one(monkeypatch, known, told):
    monkeypatch.setattr(remote, "STRANGER_S", 0.1)
    monkeypatch.setattr(remote, "_answered", set(known))

    def ask():
        raise httpx2.ConnectError("refused")

    with pytest.raises(DataError, match=f"127.0.0.1:1/x: refused; {told}"):
        remote.ReadPatience("http://127.0.0.1:1/x", 1.0).retry(ask)
