"""Measure the language of the project: pointing words per thousand words, by folder.

    python -m tests.prose [FOLDER ...]       docstrings and comments
    python -m tests.prose messages           messages and help texts, as one table
    python -m tests.prose guides             README, guides and notes, as one table

A pointing word stands for a noun that the sentence leaves out: "what", "one", "its", "there". The program prints the
rate of each word beside the target, and the files with most pointing words.
"""

import ast
import io
import re
import sys
import tokenize
from collections import Counter
from collections.abc import Iterable, Iterator
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
LETTERS = 60  # A shorter text is a word, a key or a part of a message.
PROGRAM = re.compile(r"\n\s*\S.*\n|^(SELECT|UPDATE|INSERT|DELETE|CREATE|PRAGMA) ", re.DOTALL)
# A statement that no money is spent, as in docs/.
FACT = re.compile(r"nothing (was|is) (rented|sent|changed|paid|made)")


def texts(source: str) -> Iterator[str]:
    """Yield every docstring and every comment of a module, except directives of tools."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield ast.get_docstring(node) or ""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT and not any(one in token.string for one in DIRECTIVES):
            yield token.string


def messages(source: str) -> Iterator[str]:
    """Yield every literal shown to users: text of at least `LETTERS` letters, neither docstring nor program."""
    nodes: list[ast.AST] = [ast.parse(source)]
    while nodes:
        node = nodes.pop()
        if isinstance(node, ast.Constant):
            parts: list[ast.expr] = [node]
        elif isinstance(node, ast.JoinedStr):
            parts = node.values
            nodes += (one for one in parts if not isinstance(one, ast.Constant))
        else:
            is_docstring = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant | ast.JoinedStr)
            nodes += () if is_docstring else ast.iter_child_nodes(node)
            continue
        text = " ".join(one.value for one in parts if isinstance(one, ast.Constant) and isinstance(one.value, str))
        if len(text) >= LETTERS and len(re.findall("[A-Za-z]", text)) >= LETTERS and not PROGRAM.search(text):
            yield FACT.sub("", text)


def counted(texts: Iterable[str]) -> Counter[str]:
    """Return the counts of the words with a target, and the number of all words under ""."""
    found: Counter[str] = Counter()
    for text in texts:
        words = re.findall(r"[a-z']+", text.lower())
        found[""] += len(words)
        found.update(word for word in words if word in TARGETS)
    return found


def guides() -> list[Path]:
    """Return the pages written by people: README, guides, notes, pages of packs; no generated page."""
    found = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "packs").glob("*/README.md")]
    return [one for one in found if (ROOT / "docs/reference") not in one.parents]


def table(name: str) -> dict[str, Counter[str]]:
    """Return the counted words of `messages`, of `guides` or of a folder's docstrings and comments, by file."""
    if name == "guides":
        pages = {str(one.relative_to(ROOT)): one.read_text("utf-8") for one in guides()}
        code_blocks = re.compile(r"```.*?```|`[^`]*`", re.DOTALL)
        return {path: counted([code_blocks.sub("", text)]) for path, text in pages.items()}
    paths = [path for folder in (FOLDERS if name == "messages" else [name]) for path in files(folder)]
    read = messages if name == "messages" else texts
    return {str(path.relative_to(ROOT)): counted(read(path.read_text("utf-8"))) for path in paths}


def files(folder: str) -> Iterator[Path]:
    """Yield the Python files of a folder of the project."""
    yield from sorted((ROOT / folder).rglob("*.py"))


def rates(counts: Iterable[Counter[str]]) -> dict[str, float]:
    """Return the occurrences of each word per thousand words."""
    total = sum(counts, Counter())
    return {word: 1000 * total[word] / max(1, total[""]) for word in TARGETS}


def main(names: list[str]) -> None:
    for name in names:
        found = table(name)
        over = {word: rate for word, rate in rates(found.values()).items() if rate > TARGETS[word]}
        said = ", ".join(f"{word} {rate:.1f} ({TARGETS[word]:g})" for word, rate in over.items())
        print(f"{name}: {said or 'every word is at its target'}")
        worst = [(sum(number for word, number in counts.items() if word), path) for path, counts in found.items()]
        for number, path in sorted(worst, reverse=True)[:SHOWN]:
            print(f"  {number:4} of {found[path]['']:5}  {path}")


if __name__ == "__main__":
    main(sys.argv[1:] or list(FOLDERS))
