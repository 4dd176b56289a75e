"""docs/reference/requirements.md: the promises of each source document, and the tests that assert them.

The input is tests/sources/requirements.yaml; the output is the rows by source, and the page. The module runs no test.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from infra import strict_yaml
from infra.checkout import ROOT

FILE = ROOT / "tests" / "sources" / "requirements.yaml"
HEAD = """# Requirements

Slipway grew from {number} documents: {sources}. Each behavior in these documents has a row: the tests of the
behavior, the reason for a deviation, or both. Of {rows} behaviors {tested} have tests. `./inv test NODE` runs a test.
The rows are in [requirements.yaml](../../tests/sources/requirements.yaml); `tests/sources/` checks that each test
exists.
"""


@dataclass(frozen=True)
class Requirement:
    """A required behavior, with tests, a reason for a deviation, or both."""

    id: str
    behavior: str
    tests: tuple[str, ...] = ()
    """Test ids `tests/FILE.py::NAME`, without parameters."""
    reason: str = ""


def read(path: Path = FILE) -> dict[str, list[Requirement]]:
    """Return the requirements by source in file order. Raises TypeError for an unknown key."""
    said: dict[str, list[dict[str, Any]]] = strict_yaml.read(path)
    return {
        source: [Requirement(**{**row, "tests": tuple(row.get("tests", ()))}) for row in rows]
        for source, rows in said.items()
    }


def page() -> str:
    """Return the Markdown page."""
    found = read()
    every = [row for rows in found.values() for row in rows]
    tested = sum(bool(row.tests) for row in every)
    lines = [HEAD.format(number=len(found), sources=", ".join(found), rows=len(every), tested=tested)]
    for source, rows in found.items():
        lines += [f"## {source}", "", "| id | behavior | tests, or the reason |", "| --- | --- | --- |"]
        lines += [f"| {row.id} | {_cell(row.behavior)} | {_shown(row)} |" for row in rows]
        lines.append("")
    return "\n".join(lines)


def _shown(row: Requirement) -> str:
    links = [f"[{test}](../../{test.partition('::')[0]})" for test in row.tests]
    return "<br>".join([*links, *([_cell(row.reason)] if row.reason else [])])


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
