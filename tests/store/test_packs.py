"""Packs are found by folder, loaded by name, and reported missing by name."""

import importlib
import json
import sys

import pytest

from store import packs
from store.packs import Pack


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Return a folder of packs that do not import each other: `load` is replaced, `index` has their words."""
    made: dict[str, Pack] = {}

    def add(name, *, is_there=True, **about):
        made[name] = Pack(name=about.pop("called", name), about="A feature", **about)
        if is_there:
            (tmp_path / name).mkdir()
            (tmp_path / name / "pack.py").touch()
        index = {
            name: {"needs": list(pack.needs), "commands": {name: {}}, "settings": {}} for name, pack in made.items()
        }
        (tmp_path / "index.json").write_text(json.dumps(index))
        packs.known.cache_clear()
        packs.installed.cache_clear()

    monkeypatch.setattr(packs, "FOLDER", tmp_path)
    monkeypatch.setattr(packs, "INDEX", tmp_path / "index.json")
    monkeypatch.setattr(packs, "load", lambda where: made[where.split(".")[1]])
    yield add
    packs.known.cache_clear()
    packs.installed.cache_clear()


def test_a_pack_is_on_if_its_folder_exists(folder):
    folder("one")
    folder("two", is_there=False)
    assert list(packs.installed()) == ["one"]
    assert packs.missing_pack_message("commands", "one") == ""
    assert packs.missing_pack_message("commands", "two") == (
        "two belongs to the pack two, and packs/two is missing; to restore the pack: git checkout HEAD -- packs/two"
    )
    assert packs.missing_pack_message("commands", "three") == ""


def test_a_pack_is_off_without_its_required_packs_recursively(folder):
    folder("low", is_there=False)
    folder("middle", needs=("low",))
    folder("top", needs=("middle",))
    folder("other")
    assert list(packs.installed()) == ["other"]
    assert packs.missing_pack_message("commands", "middle").endswith(
        "packs/low is missing; to restore the pack: git checkout HEAD -- packs/low"
    )
    assert "packs/low is missing" in packs.missing_pack_message("commands", "top")


def test_a_pack_with_a_different_name_than_its_folder_is_refused(folder):
    folder("one", called="other")
    with pytest.raises(SystemExit):
        packs.installed()


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("\nx = = 1\n", ":2: SyntaxError"),
        ("def f():\n    return absent\nPACK = f()\n", ":2: NameError: name 'absent' is not defined"),
        ("\nimport absent_module\n", ":2: ModuleNotFoundError"),
        ("\nraise SystemExit(3)\n", ":2: SystemExit: 3"),
        ("PACK = 3\n", ":1: TypeError: PACK must be a Pack with the name of its folder, one"),
    ],
)
def test_pack_file_that_fails_is_named_with_its_line(tmp_path, monkeypatch, capsys, text, told):
    (tmp_path / "one").mkdir()
    path = tmp_path / "one" / "pack.py"
    path.write_text(text)
    monkeypatch.setattr(packs, "FOLDER", tmp_path)
    monkeypatch.setattr(importlib.import_module("packs"), "__path__", [str(tmp_path)])
    packs.installed.cache_clear()
    with pytest.raises(SystemExit) as ended:
        packs.installed()
    for name in ("packs.one", "packs.one.pack"):
        sys.modules.pop(name, None)
    said = capsys.readouterr().err
    assert ended.value.code == 2 and f"{path}{told}" in said and said.count("\n") == 1


def test_a_suggested_command_names_the_missing_pack(folder):
    folder("one")
    folder("two", is_there=False)
    assert packs.typed("inv one --yes") == "inv one --yes"
    assert packs.typed("inv two --yes").startswith("inv two --yes (two belongs to the pack two")


def test_load_returns_the_object_at_a_place():
    assert packs.load("json:dumps") is json.dumps
