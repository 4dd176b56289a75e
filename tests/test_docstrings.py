"""Docstrings begin with their subject."""

import ast

import pytest

from tests.floors import (
    ROOT,
    sources,
)

# First words of docstrings that leave out what they are about: "Of each answer.", "How it ended."
RIDDLES = set(
    "As At By For From How If In Its Of On Once So That Those To Until What Whatever When Where Whether Which Who "
    "Whoever Whose Why With".split()
)
CLEAR = (["How", "long"], ["How", "many"], ["How", "often"])


def riddles(text: str) -> list[str]:
    """Return the docstrings of a file that do not begin with what they are about, of fields and modules too."""
    found = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            said = node.value.value.split()
            is_riddle = said and said[0].rstrip(".,:;") in RIDDLES and said[:2] not in CLEAR
            found += [f"{node.lineno}: {' '.join(said[:5])}"] if is_riddle else []
    return found


def test_docstrings_begin_with_what_they_are_about():
    files = [*sources(), *sorted((ROOT / "tests").rglob("*.py"))]
    assert not {str(path.relative_to(ROOT)): found for path in files if (found := riddles(path.read_text()))}


@pytest.mark.parametrize("said", ["Of each answer.", "Whether it lives.", "Where: in which file."])
def test_a_riddle_is_seen_in_a_module_a_function_and_a_field(said):
    for text in ('"""{}"""', 'def f():\n    """{}"""', 'class A:\n    x: int = 0\n    """{}"""'):
        assert riddles(text.format(said))
    assert not riddles('"""The state of a pod, by its id."""') and not riddles('"""How long one probe may take."""')
