"""The words of all packs, and each pack's reference page, equal the generator's output."""

import ast
import re

import pytest

import tasks
from flows.runs.work_kinds import WorkKind
from flows.specs.work import phase_flags
from infra.flags import Typed, flags_of
from infra.settings import table
from scripts.cli.line_runner import LineFlags
from scripts.project import packs_index, reference
from store import packs
from trainer.records.model_formats import ModelFormat
from trainer.records.phase_registry import phases_sized


def test_index_holds_the_words_of_every_pack():
    written = packs.INDEX.read_text(encoding="utf-8")
    assert written == packs_index.index_text(tasks.namespace), "run: python -m scripts.project.reference write"


def test_every_pack_has_a_reference_page_and_a_readme():
    for path, text in reference.pack_pages().items():
        assert path.read_text(encoding="utf-8") == text, "run: python -m scripts.project.reference write"
        assert 5 < len((path.parent / "README.md").read_text(encoding="utf-8").splitlines()) < 120


@pytest.mark.parametrize("name", packs.installed())
def test_every_attribute_named_in_a_record_exists(name):
    path = packs.FOLDER / name / "pack.py"
    texts = {node.value for node in ast.walk(ast.parse(path.read_text("utf-8"))) if isinstance(node, ast.Constant)}
    places = [one for one in texts if isinstance(one, str) and re.fullmatch(r"packs(\.\w+)+:\w+", one)]
    assert places and all(packs.load(where) is not None for where in places)


def test_every_entry_of_a_pack_can_be_imported():
    for name, pack in packs.installed().items():
        for kind in ("account_notes", "config_paths"):
            assert all(callable(packs.load(where)) for where in getattr(pack, kind).values()), name
        assert all(issubclass(packs.load(where), packs.NamedTracker) for where in pack.trackers.values()), name
        assert all(issubclass(packs.load(where), packs.AlwaysOn) for where in pack.always_on.values()), name
        assert {f"--{one.spelling}" for one in packs_index.line_flags(pack)} == pack.line_flags.keys(), name
        assert all(issubclass(packs.load(where), LineFlags) for where in pack.line_flags.values()), name
        for where in pack.model_formats.values():
            found = packs.load(where)
            assert isinstance(found, ModelFormat), name
            assert callable(packs.load(found.convert)) and callable(packs.load(found.convert_tokenizer)), name


def test_sizes_of_a_phase_are_flags_of_a_launch_and_settings_of_its_pack():
    flags = {one.name for record in phase_flags() if not record.change for one in flags_of(record)}
    assert flags == {*phases_sized()} == {*packs.words("sizes")}
    for name, pack in packs.installed().items():
        sizes = {size for where in pack.phases.values() for size in packs.load(where).sizes}
        assert sizes <= {one.name for one in (table(packs.load(pack.settings)) if pack.settings else ())}, name


def test_flags_that_a_pack_adds_have_unique_names_and_a_place_in_the_record():
    for name, pack in packs.installed().items():
        for command, where in pack.command_flags.items():
            task, added = tasks.namespace[command], {one.name for one in flags_of(packs.load(where))}
            assert issubclass(task.record, Typed), f"{name}: the record of {command} keeps no records of packs"
            assert sorted(one.name for one in task.flags if one.name in added) == sorted(added), name
        assert all(issubclass(packs.load(entry.where), WorkKind) for entry in pack.works.values()), name
