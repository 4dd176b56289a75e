"""Formats of checkpoint folders that a pack reads: without the pack a spec of the format is refused with the pack's
name.
"""

import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch

from flows.models import init_model
from infra.errors import UsageError
from infra.settings import Settings
from store import packs
from store.artifacts.artifacts import Store
from tests.trainer.conftest import TINY
from tests.trainer.model.test_init import configured
from tests.trainer.test_plan import ROOT
from trainer.__main__ import main
from trainer.config import ImportSpec
from trainer.fingerprints import digest
from trainer.records import model_formats
from trainer.records.fields import fingerprint_fields
from trainer.records.model_formats import ModelFormat

LACKING = "brick belongs to the pack masonry, and packs/masonry is missing"
FORMAT = ModelFormat(
    about="a folder of bricks (wall.brick)",
    find=lambda folder: "wall.brick" if (folder / "wall.brick").is_file() else "",
    shape=lambda folder, file: TINY,
    tokenizer=lambda folder: None,
    content=lambda folder, file: (folder / file).read_text(),
    convert="",
    tokenizer_file="words.brick",
    tokenizer_places="words.brick in the folder",
    convert_tokenizer="",
)


@pytest.fixture
def masonry(tmp_path_factory, monkeypatch):
    """Return the folder of an absent pack that reads bricks; the index has the pack's words."""
    home = tmp_path_factory.mktemp("packs")
    words = {"needs": [], "commands": {}, "settings": {}, "model_formats": ["brick"]}
    (home / "index.json").write_text(json.dumps({"masonry": words}))
    record = packs.Pack(name="masonry", about="Bricks", model_formats={"brick": "packs.masonry.records.brick:FORMAT"})
    monkeypatch.setattr(packs, "FOLDER", home)
    monkeypatch.setattr(packs, "INDEX", home / "index.json")
    monkeypatch.setattr(packs, "load", lambda where: record if where.endswith(":PACK") else FORMAT)
    packs.known.cache_clear()
    packs.installed.cache_clear()
    yield home / "masonry"
    packs.known.cache_clear()
    packs.installed.cache_clear()


def put_down(pack: Path) -> None:
    pack.mkdir()
    (pack / "pack.py").touch()
    packs.installed.cache_clear()


def bricks(folder: Path) -> Path:
    folder.mkdir()
    (folder / "wall.brick").write_text("red")
    return folder


def test_folder_in_a_pack_format_becomes_a_spec_that_names_format_and_pack(masonry, tmp_path):
    put_down(masonry)
    folder = bricks(tmp_path / "wall")
    spec = init_model.resolve_import(str(folder), Settings.load(ROOT))
    assert spec == ImportSpec(
        source=str(folder), model=TINY, has_tokenizer=False, content="red", format="brick", file="wall.brick"
    )
    assert model_formats.code_of("brick") == ("packs/masonry",)


def test_folder_of_a_missing_pack_is_refused_with_the_name_of_the_pack(masonry, tmp_path):
    folder = bricks(tmp_path / "wall")
    with pytest.raises(UsageError, match=f"no config.json in the folder; .*; {LACKING}"):
        init_model.resolve_import(str(folder), Settings.load(ROOT))


def test_imported_artifact_of_a_missing_pack_is_refused_in_a_plan(masonry, tmp_path):
    spec = ImportSpec(source="/wall", model=TINY, has_tokenizer=True, format="brick", file="wall.brick")
    draft = bricks(tmp_path / "draft")
    Store(str(tmp_path / "store")).publish(draft, "imported/wall", "f" * 64, {"import": asdict(spec)})
    settings = replace(Settings.load(ROOT), store=str(tmp_path / "store"))
    with pytest.raises(UsageError, match=LACKING):
        init_model.resolve_import("imported/wall", settings)
    put_down(masonry)
    assert init_model.resolve_import("imported/wall", settings) == spec


@pytest.mark.process
def test_step_without_the_pack_does_not_read_the_folder_as_a_different_model(masonry, world, monkeypatch, capfd):
    """The folder also holds a Hugging Face model, which the step could read."""
    monkeypatch.setenv("SLIPWAY_WORK", str(world.work()))
    folder = bricks(world.root / "wall")
    (folder / "config.json").write_text("{}")
    torch.save({}, folder / "model.safetensors")
    spec = ImportSpec(source=str(folder), model=TINY, has_tokenizer=False, format="brick", file="wall.brick")
    making = replace(world.making("imported"), name="imported/wall")
    assert main(["import", "--config", str(configured(world, "import", making, spec))]) == 2
    assert f"trainer import: {LACKING}" in capfd.readouterr().err
    assert "imported/wall" not in {one.name for one in Store(world.store).artifacts()}
    words = ["tokenizer", "--format", "brick", "--file", str(folder / "words.brick"), "--out", str(folder / "out")]
    assert main(words) == 2
    assert f"trainer tokenizer: {LACKING}" in capfd.readouterr().err
    assert not (folder / "out").exists()


def test_unknown_format_is_refused_by_name(masonry):
    with pytest.raises(ValueError, match="no pack has the model format 'adobe'"):
        model_formats.find_format("adobe")


def test_spec_of_a_hugging_face_folder_has_no_format_in_its_fingerprint():
    spec = ImportSpec(source="/models/theirs", model=TINY, has_tokenizer=True)
    assert {"format", "file"}.isdisjoint(fingerprint_fields(spec))
    brick = replace(spec, format="brick", file="wall.brick")
    assert digest(fingerprint_fields(brick)) != digest(fingerprint_fields(spec))
