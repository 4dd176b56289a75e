"""A command reaches no more of the project than before: loaded modules of the process, and all imports of the module.

The numbers are printed, and should only fall: a command that loads less starts faster and is easier to read. Folder and
record of each pack, which every command loads, do not count. Of the modules that are named, those with content
count: an empty package is nothing to read.
"""

import ast
import importlib.util
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import tasks
from tests.world import ROOT, World

pytestmark = pytest.mark.process
LAUNCH = ("launch", "--phase", "sft", "--provider", "local", "--dry-run")
OF_A_PACK = re.compile(r"packs\.\w+(\.pack)?")
# Loaded modules, and modules with content; their lines; modules of the static closure that have content.
MOST = {LAUNCH: (170, 133, 23_060, 200), ("status",): (116, 90, 13_520, 115)}


def modules_loaded_by(world: World, words: tuple[str, ...]) -> dict[str, Path]:
    """Return our modules loaded by the process of a command."""
    line = [sys.executable, "-m", "tests.programs.loaded_modules", *words]
    done = subprocess.run(line, cwd=ROOT, env=world.environ, capture_output=True, text=True, check=True)
    return {name: ROOT / path for name, path in json.loads(done.stdout.splitlines()[-1]).items()}


def named_modules(path: Path, module: str) -> Iterator[str]:
    """Yield the modules that a file imports anywhere, by statements and by `import_module` of a text."""
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            yield from (one.name for one in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = importlib.util.resolve_name("." * node.level + (node.module or ""), package or None)
            yield base
            yield from (f"{base}.{one.name}" for one in node.names)
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module"):
            yield from (str(one.value) for one in node.args[:1] if isinstance(one, ast.Constant))


def file_of(module: str) -> Path | None:
    """Return the file of a module of ours."""
    if not all(part.isidentifier() for part in module.split(".")):
        return None
    path = ROOT.joinpath(*module.split("."))
    return next((one for one in (path.with_suffix(".py"), path / "__init__.py") if one.is_file()), None)


def closure(start: str) -> set[str]:
    """Return a module, and all our modules that it imports, directly or indirectly; those that have content."""
    found, todo = {start}, [start]
    while todo:
        module = todo.pop()
        file = file_of(module)
        assert file is not None, module
        new = {name for name in named_modules(file, module) if file_of(name)} - found
        found |= new
        todo += new
    return {module for module in found if (file := file_of(module)) and file.read_text("utf-8").strip()}


@pytest.mark.parametrize("words", MOST, ids=" ".join)
def test_a_command_reaches_no_more_of_the_project_than_before(tmp_path, words):
    found = {
        name: path for name, path in modules_loaded_by(World(tmp_path), words).items() if not OF_A_PACK.fullmatch(name)
    }
    texts = [text for path in found.values() if (text := path.read_text("utf-8")).strip()]
    lines = sum(len(text.splitlines()) for text in texts)
    numbers = (len(found), len(texts), lines, len(closure(tasks.namespace[words[0]].where.partition(":")[0])))
    print(" ".join(words), "loads {} modules, {} with content, {} lines; its module names {} in all".format(*numbers))
    assert all(a <= b for a, b in zip(numbers, MOST[words], strict=True)), (numbers, MOST[words])
