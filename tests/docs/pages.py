"""The pages of documentation, and the commands on them."""

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]
PAGES += sorted((ROOT / "packs").glob("*/*.md"))
BY_HAND = [page for page in PAGES if page.parent.name != "reference" and page.name != "reference.md"]
ACCOUNT, INTERRUPT = "account", "interrupt"  # Valid words after the language of a block.
_FENCE = re.compile(r"^```(?:sh|console)(?: +(\w+))?\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Block:
    """Commands in one fence.

    mark: "account" for commands that need an account, a GPU or a second machine, or must not run: these are only
    parsed. "interrupt" for commands that run until Ctrl-C.
    """

    page: Path
    mark: str
    lines: tuple[str, ...]


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


def blocks(page: Path) -> list[Block]:
    """Return the blocks of a page, in order. In a console block only lines after `$ ` are commands."""
    found = []
    for mark, body in _FENCE.findall(page.read_text(encoding="utf-8")):
        lines = [line.removeprefix("$ ") for line in body.splitlines()]
        if any(line.startswith("$ ") for line in body.splitlines()):
            lines = [line[2:] for line in body.splitlines() if line.startswith("$ ")]
        found.append(Block(page, mark, tuple(line for line in lines if words(line))))
    return found


def words(line: str) -> list[str]:
    """Return the words of a command, without the comment."""
    return shlex.split(line, comments=True)
