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
    tree = ast.parse(source)
    skipped: set[int] = set()
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        for one in body if isinstance(body, list) else ():
            if isinstance(one, ast.Expr):
                skipped.add(id(one.value))
        if isinstance(node, ast.JoinedStr):
            skipped |= {id(one) for one in node.values}
    for node in ast.walk(tree):
        if id(node) in skipped:
            continue
        parts = node.values if isinstance(node, ast.JoinedStr) else [node]
        text = " ".join(one.value for one in parts if isinstance(one, ast.Constant) and isinstance(one.value, str))
        if len(re.findall("[A-Za-z]", text)) >= LETTERS and not PROGRAM.search(text):
            yield FACT.sub("", text)


def counted(texts: Iterable[str]) -> Counter[str]:
    """Return the counts of the words with a target, and the number of all words under ""."""
    found: Counter[str] = Counter()
    for text in texts:
        words = re.findall(r"[a-z']+", text.lower())
        found[""] += len(words)
        found.update(word for word in words if word in TARGETS)
    return found


def count(path: Path) -> Counter[str]:
    """Return the counted words of a file's docstrings and comments."""
    return counted(texts(path.read_text("utf-8")))


def guides() -> list[Path]:
    """Return the pages written by people: README, guides, notes, pages of packs; no generated page."""
    found = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "packs").glob("*/README.md")]
    return [one for one in found if (ROOT / "docs/reference") not in one.parents]


def tables() -> dict[str, dict[str, Counter[str]]]:
    """Return the counted words of messages and of guides, by file."""
    code = {str(one.relative_to(ROOT)): one.read_text("utf-8") for folder in FOLDERS for one in files(folder)}
    pages = {str(one.relative_to(ROOT)): one.read_text("utf-8") for one in guides()}
    prose = {name: [re.sub(r"```.*?```|`[^`]*`", "", text, flags=re.DOTALL)] for name, text in pages.items()}
    return {
        "messages": {name: counted(messages(text)) for name, text in code.items()},
        "guides": {name: counted(text) for name, text in prose.items()},
    }


def files(folder: str) -> Iterator[Path]:
    """Yield the Python files of a folder of the project."""
    yield from sorted((ROOT / folder).rglob("*.py"))


def rates(counts: Iterable[Counter[str]]) -> dict[str, float]:
    """Return the occurrences of each word per thousand words."""
    total = sum(counts, Counter())
    return {word: 1000 * total[word] / max(1, total[""]) for word in TARGETS}


def main(names: list[str]) -> None:
    for name in names:
        table = tables()[name] if name in ("messages", "guides") else {str(one): count(one) for one in files(name)}
        over = {word: rate for word, rate in rates(table.values()).items() if rate > TARGETS[word]}
        said = ", ".join(f"{word} {rate:.1f} ({TARGETS[word]:g})" for word, rate in over.items())
        print(f"{name}: {said or 'every word is at its target'}")
        worst = [(sum(number for word, number in found.items() if word), path) for path, found in table.items()]
        for number, path in sorted(worst, reverse=True)[:SHOWN]:
            print(f"  {number:4} of {table[path]['']:5}  {path}")


if __name__ == "__main__":
    main(sys.argv[1:] or list(FOLDERS))
