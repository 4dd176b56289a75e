"""The agent runs on every Python from 3.9: standard library only, in a grammar that 3.9 reads."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from tests.infra.agent.world import AGENT

FILES = sorted(AGENT.rglob("*.py"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(AGENT)))
def test_the_agent_uses_the_grammar_of_3_9_and_standard_or_own_imports(path: Path) -> None:
    tree = ast.parse(path.read_text(), feature_version=(3, 9))
    imports = [node for node in ast.walk(tree) if isinstance(node, (ast.Import, ast.ImportFrom))]
    assert not [node for node in imports if isinstance(node, ast.ImportFrom) and node.level]
    modules = [node.module or "" for node in imports if isinstance(node, ast.ImportFrom)]
    modules += [name.name for node in imports if isinstance(node, ast.Import) for name in node.names]
    foreign = [name for name in modules if name.split(".")[0] not in sys.stdlib_module_names]
    assert all(name.startswith("infra.agent") for name in foreign), foreign


@pytest.mark.process
def test_the_agent_uses_no_api_newer_than_3_9() -> None:
    words = [
        sys.executable,
        "-c",
        "from vermin import main; main()",
        "-t=3.9-",
        "--no-tips",
        "--violations",
        *map(str, FILES),
    ]
    checked = subprocess.run(words, capture_output=True, text=True)
    assert checked.returncode == 0, checked.stdout
