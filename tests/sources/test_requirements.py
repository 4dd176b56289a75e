"""Each behavior promised by the source documents has existing tests, or a reason."""

import ast
import functools
import re
from dataclasses import replace

import pytest

from scripts.project import requirements
from scripts.project.requirements import Requirement
from tests.world import ROOT

FOUND = requirements.read()
ROWS = [row for rows in FOUND.values() for row in rows]
LAST = {"SkyPilot jobs and SkyServe": "SKY-70", "Lium pods and sweeps": "LIUM-54", "SkyPilot training guide": "TRN-38",
        "RunPod setup": "RPD-50", "Shadeform guide": "SHD-40"}  # fmt: skip
MOST_TESTS = 2
NOT_RUN = ("skip", "xfail")  # Marks of a test without assertions on any machine.


@functools.cache
def defined(path: str) -> dict[str, list[str]]:
    """Return the names of a file's tests, each with decorators."""
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    return {
        node.name: [ast.unparse(one) for one in node.decorator_list]
        for node in tree.body
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    }


@pytest.mark.parametrize("source", LAST)
def test_every_behavior_of_a_source_has_exactly_one_row(source):
    prefix, _, last = LAST[source].partition("-")
    assert [row.id for row in FOUND[source]] == [f"{prefix}-{number:02}" for number in range(1, int(last) + 1)]


def test_the_sources_are_these_five():
    assert list(FOUND) == list(LAST)


def complaints(row: Requirement) -> list[str]:
    """Return the errors of a row."""
    bad = [] if row.tests or row.reason else ["it has neither tests nor a reason"]
    bad += [f"{len(row.tests)} tests"] if len(row.tests) > MOST_TESTS or len(set(row.tests)) < len(row.tests) else []
    bad += [f"no sentence: {one}" for one in (row.behavior, row.reason) if one and not one.endswith(".")]
    for test in row.tests:
        path, _, name = test.partition("::")
        marks = defined(path).get(name) if path.startswith("tests/") and (ROOT / path).is_file() else None
        bad += [f"there is no test {test}"] if marks is None else []
        bad += [f"{test} is never run" for mark in marks or () if mark.rpartition(".")[2] in NOT_RUN]
    decisions = ROOT / "dev" / "decisions"
    numbers = re.findall(r"decision (\d+)", row.reason)
    return bad + [f"there is no decision {one}" for one in numbers if not list(decisions.glob(f"{one}-*.md"))]


@pytest.mark.slow
def test_each_behavior_has_existing_tests_or_a_reason():
    assert {row.id: bad for row in ROWS if (bad := complaints(row))} == {}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"tests": ()}, "it has neither tests nor a reason"),
        ({"tests": ("tests/sources/test_requirements.py::test_gone",)}, "there is no test "),
        ({"tests": ("tests/gone.py::test_gone",)}, "there is no test "),
        ({"reason": "It is (decision 9999)."}, "there is no decision 9999"),
    ],
)
def test_error_in_a_row_is_detected(changes, said):
    row = Requirement(id="X-1", behavior="It works.", tests=ROWS[0].tests)
    assert complaints(row) == []
    (bad,) = complaints(replace(row, **changes))
    assert bad.startswith(said)


def test_the_page_has_a_row_for_each_behavior_with_a_link_to_each_test():
    page = requirements.page()
    for row in ROWS:
        (line,) = (one for one in page.splitlines() if one.startswith(f"| {row.id} |"))
        assert all(f"(../../{test.partition('::')[0]})" in line for test in row.tests)
        assert row.reason.replace("|", "\\|") in line
