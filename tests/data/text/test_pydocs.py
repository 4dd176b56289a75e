import json

import pytest

from data.shards.shards import read, read_manifest, shard_paths
from tests.data.conftest import run_step

pytestmark = pytest.mark.process


def everything(text):
    return list(read([path for part in ("train", "val") for path in shard_paths(text, part)]))


def test_pydocs_has_enough_text_without_duplicates(text):
    found = everything(text)
    assert 1_500_000 < sum(len(one.encode()) for one in found) < 4_000_000
    assert len(found) == len(set(found)) > 4000


def test_document_reads_like_documentation(text):
    found = everything(text)
    join = next(one for one in found if one.startswith("os.path.join("))
    assert join.startswith("os.path.join(a, *p)\n\nJoin two or more pathname components")
    heads = {one.split("\n")[0] for one in found}
    assert {"math.sqrt(x, /)", "module json", "len(obj, /)", "random.randint(a, b)", "os.getcwd()"} <= heads
    assert any(one.startswith("class collections.Counter(") for one in found)
    assert any('The "assert" statement' in one for one in found)


def test_text_contains_no_data_of_the_machine_or_its_environment(text):
    for one in everything(text):
        assert "canary-in-environ" not in one
        assert " at 0x" not in one.split("\n")[0]


def test_second_process_with_a_different_environment_gathers_the_same(text, tmp_path):
    config = {"out": str(tmp_path / "out"), "spec": {"val_ratio": 0.05}}
    done = run_step("text", config, tmp_path, PYTHONHASHSEED="7", COLUMNS="40", LANG="C", HOME=str(tmp_path))
    assert done.returncode == 0
    for part in ("train", "val"):
        assert read_manifest(tmp_path / "out" / part)["shards"] == read_manifest(text / part)["shards"]


def test_first_documents_are_a_fair_sample(text):
    first = everything(text)[:500]
    modules = {one.split("(")[0].removeprefix("class ").split(".")[0] for one in first if "(" in one.split("\n")[0]}
    assert len(modules) > 60


def test_an_installed_package_can_be_added(tmp_path):
    config = {"out": str(tmp_path / "out"), "spec": {"packages": ["pytest"]}}
    assert run_step("text", config, tmp_path).returncode == 0
    lines = (tmp_path / "out" / "shard-00000.txt").read_text()
    assert "\npytest.approx(" in lines
    assert json.loads((tmp_path / "out" / "manifest.json").read_text())["options"]["packages"] == ["pytest"]


def test_held_out_text_is_no_copy_of_training_text(text):
    train, val = (list(read(shard_paths(text, part))) for part in ("train", "val"))
    seen = {line.strip() for one in train for line in one.split("\n")}
    lines = [line for one in val for line in one.split("\n")]
    copied = sum(len(line) for line in lines if len(line.strip()) > 30 and line.strip() in seen)
    assert copied < 0.06 * sum(map(len, lines))
