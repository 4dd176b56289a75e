"""Docstrings begin with their subject."""

import ast

import pytest

from tests.floors import (
    ROOT,
    sources,
)

pytestmark = pytest.mark.slow
# First words of docstrings without a subject: "Of each answer.", "How it ended."
RIDDLES = set(
    "As At By For From How If In Its Of On Once So That Those To Until What Whatever When Where Whether Which Who "
    "Whoever Whose Why With".split()
)
CLEAR = (["How", "long"], ["How", "many"], ["How", "often"])


def unclear_docstrings(text: str) -> list[str]:
    """Return the docstrings of a file that do not begin with their subject, of fields and modules too."""
    found = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            said = node.value.value.split()
            is_riddle = said and said[0].rstrip(".,:;") in RIDDLES and said[:2] not in CLEAR
            found += [f"{node.lineno}: {' '.join(said[:5])}"] if is_riddle else []
    return found


def test_docstrings_begin_with_their_subject():
    assert not {
        str(path.relative_to(ROOT)): found for path in sources() if (found := unclear_docstrings(path.read_text()))
    }


@pytest.mark.parametrize("said", ["Of each answer.", "Whether it lives.", "Where: in which file."])
def test_an_unclear_docstring_is_found_in_a_module_a_function_and_a_field(said):
    for text in ('"""{}"""', 'def f():\n    """{}"""', 'class A:\n    x: int = 0\n    """{}"""'):
        assert unclear_docstrings(text.format(said))
    assert not unclear_docstrings('"""The state of a pod, by its id."""') and not unclear_docstrings(
        '"""How long one probe may take."""'
    )
