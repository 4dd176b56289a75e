"""Docstrings begin with what they are about, and those of functions with a verb."""

import ast

import pytest

from tests.floors import (
    ROOT,
    sources,
)

# Floors whose functions' docstrings begin with a verb. pyproject.toml keeps the tests from ruff's D rules as well.
IMPERATIVE = ("infra", "data", "serve", "store", "sdk", "bench", "scripts", "flows", "trainer", "packs")
# First words that ruff's D401, which knows verbs by a list, lets through.
NO_VERBS = set(
    "A After All Also An And Another Around As At Back Because Before Behind Between Beyond Bits Both But By Bytes "
    "Dollars During Each Either Equal Every Everything Figures First For From Half Here How Ids If In Inside Into "
    "It Its Kind Like Many Meanwhile Most Much Names Never No Nobody None Not Nothing Of Often Oldest On Once One "
    "Only Or Others Our Ours Out Outside Per Perhaps Rows Seconds Several Since So Some Something Stable Such "
    "Tensors That The Their Then There These They This Those Through To Together Tokens Two UTC Under Until Up Upon "
    "We What Whatever When Whenever Where Whether Which While Who Whoever Whole Whose Why With Within Without".split()
)
# First words of docstrings that leave out what they are about: "Of each answer.", "How it ended."
RIDDLES = set(
    "As At By For From How If In Its Of On Once So That Those To Until What Whatever When Where Whether Which Who "
    "Whoever Whose Why With".split()
)
CLEAR = (["How", "long"], ["How", "many"], ["How", "often"])


def without_verb(text: str) -> list[str]:
    """Return the functions of a file whose docstring does not begin with a verb, by name."""
    found = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and (said := ast.get_docstring(node)):
            first = said.split()[0].rstrip(".,:;")
            if not first.isalpha() or not first[0].isupper() or first in NO_VERBS:
                found.append(f"{node.name}: {first}")
    return found


def test_docstrings_of_functions_begin_with_a_verb():
    files = [path for path in sources() if path.relative_to(ROOT).parts[0] in IMPERATIVE]
    wrong = {str(path.relative_to(ROOT)): said for path in files if (said := without_verb(path.read_text()))}
    assert not wrong
    assert len(files) > 500


@pytest.mark.parametrize("said", ["Of a row.", "Whether it lives.", "`text` as bytes.", "(ids, mask) of a row."])
def test_a_docstring_without_a_verb_is_seen(said):
    assert without_verb(f'def f():\n    """{said}"""\n')


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
