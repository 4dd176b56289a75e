"""Measure the language of the project: pointing words per thousand words of docstrings and comments, by folder.

    python -m tests.prose [FOLDER ...]

A pointing word stands for a noun that the sentence leaves out: "what", "one", "its", "there". Prints the rate of each
word beside the target, and the files that use most of them.
"""

import ast
import io
import re
import sys
import tokenize
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
FOLDERS = ("data", "flows", "infra", "packs", "scripts", "serve", "store", "trainer")
TARGETS = {
    "what": 2.0, "one": 4.0, "its": 4.0, "where": 2.0, "there": 2.0, "nobody": 0.1, "somebody": 0.1, "told": 0.1,
    "whoever": 0.05, "whatever": 0.2, "whose": 0.5, "it": 9.0, "that": 9.0, "those": 0.8, "another": 0.5,
    "nothing": 0.5,
}  # fmt: skip
DIRECTIVES = ("noqa", "fmt:", "type:")
SHOWN = 15


def texts(source: str) -> Iterator[str]:
    """Yield every docstring and every comment of a module but directives of tools."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield ast.get_docstring(node) or ""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT and not any(one in token.string for one in DIRECTIVES):
            yield token.string


def count(path: Path) -> Counter[str]:
    """Return the words of a file that have a target, and the number of all words under ""."""
    found: Counter[str] = Counter()
    for text in texts(path.read_text("utf-8")):
        words = re.findall(r"[a-z']+", text.lower())
        found[""] += len(words)
        found.update(word for word in words if word in TARGETS)
    return found


def files(folder: str) -> Iterator[Path]:
    """Yield the Python files of a folder of the project."""
    yield from sorted(one for one in (ROOT / folder).rglob("*.py") if "__pycache__" not in one.parts)


def rates(folder: str) -> dict[str, float]:
    """Return how often each word occurs per thousand words."""
    total = sum((count(path) for path in files(folder)), Counter())
    return {word: 1000 * total[word] / max(1, total[""]) for word in TARGETS}


def main(folders: list[str]) -> None:
    for folder in folders:
        found = rates(folder)
        over = {word: rate for word, rate in found.items() if rate > TARGETS[word]}
        said = ", ".join(f"{word} {rate:.1f} ({TARGETS[word]:g})" for word, rate in over.items())
        print(f"{folder}: {said or 'every word is at its target'}")
        worst = [(sum(number for word, number in count(one).items() if word), one) for one in files(folder)]
        for number, path in sorted(worst, reverse=True)[:SHOWN]:
            print(f"  {number:4} of {count(path)['']:5}  {path.relative_to(ROOT)}")


if __name__ == "__main__":
    main(sys.argv[1:] or list(FOLDERS))
