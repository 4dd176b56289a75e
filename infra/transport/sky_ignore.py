"""SkyPilot's `.skyignore`: the patterns of a project, which replace the patterns of git.

A pattern with a leading `/` holds at the top of the project, and other patterns hold in every folder. A pattern of
a folder holds for all files below the folder.
"""

import re
from collections.abc import Iterable
from pathlib import Path

NAME = ".skyignore"


def kept(root: Path, paths: Iterable[str]) -> list[str]:
    """Return the paths without the files that the `.skyignore` of the folder excludes."""
    text = (root / NAME).read_text(encoding="utf-8", errors="replace")
    lines = [line.strip() for line in text.splitlines()]
    excluded = [_pattern(line) for line in lines if line and not line.startswith("#")]
    return [path for path in paths if not any(one.match(path) for one in excluded)]


def _pattern(line: str) -> re.Pattern[str]:
    """Return the pattern of a line: `*` and `?` within a name, `**` across folders."""
    words = re.split(r"(\*\*/?|\*|\?)", line.strip("/").removeprefix("./"))
    meant = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}
    body = "".join(meant.get(word, re.escape(word)) for word in words)
    return re.compile(rf"{'' if line.startswith(('/', './')) else '(?:.*/)?'}{body}(?:/|$)", re.DOTALL)
