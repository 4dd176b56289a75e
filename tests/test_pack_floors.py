"""Packs keep their rooms: no file of the core knows a pack, and a pack imports only permitted modules."""

import ast
import dataclasses
import re

import pytest

from store import packs
from tests.floors import (
    ROOMS,
    ROOT,
    circle,
    complaints,
    imports,
    lies_in,
    loaded_by,
    sources,
)


def test_a_pack_is_one_literal_record():
    for path in sorted(packs.FOLDER.glob("*/pack.py")):
        about, imported, record = ast.parse(path.read_text(encoding="utf-8")).body
        assert isinstance(about, ast.Expr) and isinstance(imported, ast.ImportFrom) and isinstance(record, ast.Assign)
        calls = [node.func for node in ast.walk(record) if isinstance(node, ast.Call)]
        assert {ast.unparse(one) for one in calls} <= {"Pack", "CommandEntry", "PackProvider", "PackWork"}, path
        assert not [node for node in ast.walk(record.value) if isinstance(node, (ast.Lambda, ast.BinOp, ast.ListComp))]


def test_the_core_imports_no_pack_by_statement_or_by_text():
    named = re.compile(rf"packs\.({'|'.join(packs.known())})\b")
    core = [path for path in sources() if path.relative_to(ROOT).parts[0] not in ("packs", "tests", "bench")]
    assert not [str(path.relative_to(ROOT)) for path in core if named.search(path.read_text(encoding="utf-8"))]


def test_a_pack_has_only_rooms_of_the_table():
    inside = {path.relative_to(packs.FOLDER).parts[1] for path in packs.FOLDER.glob("*/*/*.py")}
    assert inside <= ROOMS.keys() - {"pack"}


def test_requirements_between_packs_have_no_circle():
    assert circle({name: set(pack.needs) for name, pack in packs.installed().items()}) == []


@pytest.mark.process
@pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.pack(name)) for name in packs.known()])
def test_the_record_and_the_use_cases_of_a_pack_need_no_training_library(name):
    rooms = ("pack.py", "records/**/*.py", "control/**/*.py")
    files = [path.relative_to(ROOT) for one in rooms for path in (packs.FOLDER / name).glob(one)]
    loaded = loaded_by(*(".".join(path.with_suffix("").parts) for path in files))
    assert {"torch", "pyarrow", "tokenizers"}.isdisjoint(loaded)


@pytest.mark.process
def test_listing_the_commands_loads_only_the_record_of_each_pack():
    of_packs = {name for name in loaded_by("tasks") if lies_in(name, "packs")}
    there = [path.parent.name for path in packs.FOLDER.glob("*/pack.py")]
    assert of_packs - {"packs"} == {one for name in there for one in (f"packs.{name}", f"packs.{name}.pack")}


@pytest.mark.parametrize(
    ("module", "text"),
    [
        ("flows.runs.launch", "from packs.drill.control import drill"),
        ("packs.drill.pack", "import httpx"),
        ("packs.drill.pack", "from packs.drill.control import drill"),
        ("packs.drill.control.drill", "from packs.drill.commands import drill"),
        ("packs.drill.control.drill", "from packs.pipeline.control import workspace"),
        ("packs.drill.control.drill", "from scripts.cli import render"),
        ("packs.drill.trainer.loss", "from trainer.plan import resolve"),
        ("packs.drill.agent.step", "import msgspec"),
        ("packs.drill.records.row", "from infra import settings"),
        ("packs.drill.elsewhere", "from infra import records"),
    ],
)
def test_a_forbidden_import_of_a_pack_is_found(module, text):
    assert complaints(module, imports(module, text))


@pytest.mark.parametrize(
    ("module", "text"),
    [
        ("packs.drill.commands.drill", "from scripts.cli import render\nfrom packs.drill.control import drill"),
        ("packs.drill.control.drill", "from flows import planning\nfrom data.manifest import read_manifest"),
        ("packs.drill.trainer.loss", "from trainer import loop\nimport torch"),
        ("packs.drill.agent.step", "import os\nfrom infra.agent.job import Job"),
    ],
)
def test_a_permitted_import_of_a_pack_is_accepted(module, text):
    assert not complaints(module, imports(module, text))


def test_each_kind_of_entry_is_described():
    page = (ROOT / "docs" / "contributing" / "packs.md").read_text("utf-8")
    kinds = {one.name for one in dataclasses.fields(packs.Pack)} - {"name", "about", "needs"}
    assert not [name for name in kinds if f"`{name}`" not in page]


def test_the_tests_of_a_pack_import_only_required_packs():
    bad = []
    for path in sorted((ROOT / "tests" / "packs").glob("*/*.py")):
        own = path.parent.name
        reachable = {own, *packs.known()[own]["needs"]}
        found = re.findall(r"^(?:from|import) (?:tests\.)?packs\.(\w+)", path.read_text("utf-8"), re.MULTILINE)
        bad += [f"{path.relative_to(ROOT)}: {name}" for name in found if name not in reachable]
    assert not bad
