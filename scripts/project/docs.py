"""The command `docs`: a search in the pages of this checkout, without a network.

    pages -> paragraphs -> an index of SQLite (FTS5: stems, BM25) -> the paragraphs that answer best

A paragraph is a part of a page with its own answer: a text with the code below the text, an entry of a list, or a row
of a table. The title of the page and the headings above a paragraph count as words of the paragraph, with higher
weights. SYNONYMS maps words of readers to words of the pages.
"""

import contextlib
import difflib
import posixpath
import re
import sqlite3
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from infra.checkout import ROOT
from infra.errors import SlipwayError, UsageError
from infra.flags import flag
from scripts.cli.command import command
from scripts.cli.flags import Output
from scripts.cli.render import columns, console, print_json, say

# For users first, in the order of the list without words.
PAGES = (
    *("README.md", "docs/*.md", "docs/guides/*.md", "packs/*/README.md"),
    *("docs/reference/*.md", "packs/*/reference.md", "CONTRIBUTING.md", "docs/contributing/*.md"),
)
LEFT_OUT = ("docs/reference/requirements.md",)  # a table of tests
# Weights of pages: questions of readers before guides, guides before pages for contributors and generated tables.
WEIGHTS = {
    "docs/questions.md": 1.15,
    "docs/contributing/": 0.5,
    "CONTRIBUTING.md": 0.5,
    "docs/architecture.md": 0.5,
    "docs/street.md": 0.5,
    "docs/extend.md": 0.7,
    "docs/reference/other-tools.md": 0.5,
    "docs/reference/": 0.8,
    "packs/": 0.8,
    "README.md": 0.8,
}
TITLE, HEADING, TEXT = 2.0, 4.0, 1.0  # weights of the columns of the index
ROW = 0.8  # weight of a row of a table
OUTSIDE = 0.5  # share of a word that only the title or a heading has
# Words of readers, and words of the pages with the same meaning. Other forms of a word need no entry: the index stems.
SYNONYMS = {
    "autoscale": ("autoscaling",),
    "axolotl": ("not supported",),
    "cancel": ("end", "down"),
    "custom": ("your own", "of your own"),
    "dataset": ("data set",),
    "delete": ("remove",),
    "docker": ("container image", "image"),
    "email": ("notice",),
    "env": ("environment",),
    "finetune": ("fine tuning", "sft"),
    "huggingface": ("hugging face", "hf"),
    "hyperparameter": ("sweep", "learning rate"),
    "ide": ("editor",),
    "k8s": ("kubernetes",),
    "kill": ("end", "down"),
    "m2": ("m1",),
    "m3": ("m1",),
    "m4": ("m1",),
    "mac": ("macos",),
    "macbook": ("macos",),
    "moe": ("mixtures of experts",),
    "multi": ("several",),
    "multiple": ("several",),
    "none": ("default",),
    "oom": ("out of memory", "too little memory"),
    "osx": ("macos",),
    "pause": ("stop",),
    "persistent": ("volume",),
    "ppo": ("reinforcement learning",),
    "price": ("cost",),
    "rlhf": ("reinforcement learning",),
    "shutdown": ("end", "down"),
    "stop": ("end", "down"),
    "telegram": ("notice",),
    "terminate": ("end", "down"),
    "throughput": ("tokens per second",),
    "uninstall": ("remove",),
    "upgrade": ("update",),
    "vars": ("variables",),
    "vscode": ("vs code",),
}
STOP = frozenset(
    "a an and any are as at be by can could do does doing for from get give has have how i if in into is it me much my "
    "no not of on or please should so some that the their them there these they this to use used using want was what "
    "when where which who why will with would you your".split()
)
# Tokens of Markdown that begin a paragraph, with the level of the token in the page.
BEGINNINGS = {"paragraph_open": 0, "list_item_open": 1, "fence": 0, "code_block": 0}
CODE = ("fence", "code_block")
JOINED = 800  # letters; shorter neighbors of a section are a single paragraph


@dataclass(frozen=True)
class Paragraph:
    """A paragraph of a page as Markdown, with the place."""

    page: str
    """Path of the page, relative to the checkout."""
    line: int
    title: str
    headings: tuple[str, ...]
    """Headings above the paragraph, the outermost first, without the title of the page."""
    text: str
    table_head: str = field(default="", repr=False)
    """The two lines above the rows of a table, for a row."""

    @property
    def markdown(self) -> str:
        return f"{self.table_head}\n{self.text}".strip()


@dataclass(frozen=True, kw_only=True)
class DocsFlags(Output):
    words: tuple[str, ...] = flag((), "words of a question, such as: jupyter on a pod", word=True)
    most: int = flag(3, "number of paragraphs", least=1)


@command(record=DocsFlags, world="", is_here=True, takes_rest=True, example="inv docs jupyter on a pod")
def docs(spec: DocsFlags) -> None:
    """Search the documentation, and show paragraphs that answer.

    All words after the command belong to the question, also names of commands. Without words, the command lists the
    pages. The search needs no network.
    """
    paragraphs = read_pages(ROOT)
    if not question(spec.words):
        titles = {one.page: one.title for one in paragraphs}
        print_json(titles) if spec.json else print(columns(list(titles.items())))
        return
    found, missing = search(paragraphs, spec.words)
    near = nearest(paragraphs, missing)
    said = ", ".join(f"{word!r}{f' (did you mean {near[word]}?)' if word in near else ''}" for word in missing)
    if not found:
        raise UsageError(f"no page has {said}. inv docs lists the pages, and inv --list --all the commands")
    if missing:
        say(f"no page has {said}")
    found = found[: spec.most]
    if spec.json:
        print_json(found)
    else:
        show(found)


def show(found: Iterable[Paragraph]) -> None:
    """Print paragraphs with their places: rendered on a terminal, else as Markdown."""
    from rich.markdown import Markdown
    from rich.padding import Padding

    out = console(stderr=False)
    for one in found:
        place = f"{one.page}:{one.line}  {' > '.join((one.title, *one.headings))}"
        if out.is_terminal:
            out.print(place, style="bold", markup=False)
            out.print(Padding(Markdown(with_paths(one), hyperlinks=False), (0, 0, 1, 2)))
        else:
            print(f"{place}\n\n{with_paths(one)}\n")


def with_paths(one: Paragraph) -> str:
    """Return the Markdown of a paragraph with links relative to the checkout."""
    folder = posixpath.dirname(one.page)

    def path(link: re.Match[str]) -> str:
        return f"]({posixpath.normpath(posixpath.join(folder, link[1]))})"

    return re.sub(r"\]\((?!#|\w+://)([^)\s]+)\)", path, one.markdown)


def search(paragraphs: Sequence[Paragraph], words: Iterable[str]) -> tuple[list[Paragraph], list[str]]:
    """Return the paragraphs with words of the question, the best first, and the words that no page has.

    The score of a word is BM25. The sum counts by the share of the words that the paragraph has.
    Raises SlipwayError without FTS5.
    """
    asked = question(words)
    total: Counter[int] = Counter()
    shares: Counter[int] = Counter()
    missing = []
    with contextlib.closing(index_of(paragraphs)) as index:
        for word in asked:
            best = scores(index, word)
            total.update(best)
            shares.update(dict.fromkeys(best, OUTSIDE))
            shares.update(dict.fromkeys(scores(index, word, "{text} : "), 1 - OUTSIDE))
            missing += [] if best else [word]
    ranked = {
        number: score * (shares[number] / len(asked)) ** 2 * weight(paragraphs[number - 1])
        for number, score in total.items()
    }
    in_order = sorted(ranked, key=lambda number: (-ranked[number], number))
    unique: dict[str, Paragraph] = {}  # two commands may have the same flag
    for one in (paragraphs[number - 1] for number in in_order):
        unique.setdefault(one.text, one)
    return list(unique.values()), missing


def index_of(paragraphs: Iterable[Paragraph]) -> sqlite3.Connection:
    """Return an index of the paragraphs, with rows from 1. Raises SlipwayError without FTS5."""
    index = sqlite3.connect(":memory:")
    try:
        index.execute("CREATE VIRTUAL TABLE page USING fts5(title, heading, text, tokenize='porter unicode61')")
    except sqlite3.OperationalError as error:
        raise SlipwayError(
            f"the SQLite of this Python cannot search texts ({error}). Search with: grep -ri WORD docs"
        ) from None
    rows = ((one.title, " ".join(one.headings), f"{one.text} {one.page}") for one in paragraphs)
    index.executemany("INSERT INTO page(title, heading, text) VALUES (?, ?, ?)", rows)
    return index


def scores(index: sqlite3.Connection, word: str, columns: str = "") -> dict[int, float]:
    """Return the score of a word, or of the best synonym, by the row of the index."""
    best: dict[int, float] = {}
    line = f"SELECT rowid, -bm25(page, {TITLE}, {HEADING}, {TEXT}) FROM page WHERE page MATCH ?"
    for said in (word, *SYNONYMS.get(word, ())):
        for number, score in index.execute(line, (f'{columns}"{said}"',)):
            best[number] = max(score, best.get(number, 0.0))
    return best


def question(words: Iterable[str]) -> list[str]:
    """Return the words to search for: without articles and the like, unless the question has no other words."""
    found = list(dict.fromkeys(re.findall(r"\w+", " ".join(words).lower())))
    return [one for one in found if one not in STOP] or found


def nearest(paragraphs: Iterable[Paragraph], words: Iterable[str]) -> dict[str, str]:
    """Return the most similar word of the pages, for each word with a similar one."""
    known = {word for one in paragraphs for word in re.findall(r"[a-z]\w+", one.text.lower())}
    near = ((word, difflib.get_close_matches(word, known, 1)) for word in words)
    return {word: found[0] for word, found in near if found}


def weight(one: Paragraph) -> float:
    of_page = next((value for start, value in WEIGHTS.items() if one.page.startswith(start)), 1.0)
    return of_page * (ROW if one.table_head else 1.0)


def read_pages(root: Path) -> list[Paragraph]:
    """Return the paragraphs of all pages, in the order of the pages."""
    paths = {path.relative_to(root).as_posix(): path for pattern in PAGES for path in sorted(root.glob(pattern))}
    return [
        one
        for page, path in paths.items()
        if page not in LEFT_OUT
        for one in paragraphs_of(page, path.read_text("utf-8"))
        if "inv docs" not in one.text and "`docs`" not in one.headings  # the examples are words of other questions
    ]


def paragraphs_of(page: str, text: str) -> list[Paragraph]:
    """Return the paragraphs of a page."""
    from rich.markdown import Markdown

    lines, tokens = text.splitlines(), Markdown(text).parsed
    found: list[Paragraph] = []
    headings: dict[int, str] = {}
    table_head = ""
    for number, token in enumerate(tokens):
        begin, end = token.map or (0, 0)
        block = "\n".join(lines[begin:end])
        here = tuple(said for level, said in headings.items() if level > 1)
        above = found[-1] if found and found[-1].headings == here and not found[-1].table_head else None
        if token.type == "heading_open":
            level = int(token.tag[1:])
            headings = {key: said for key, said in headings.items() if key < level} | {
                level: tokens[number + 1].content
            }
        elif token.type == "thead_open":
            table_head = "\n".join(lines[begin : end + 1])
        elif token.type == "tr_open" and tokens[number - 1].type != "thead_open":
            found.append(Paragraph(page, begin + 1, headings.get(1, page), here, block, table_head))
        elif BEGINNINGS.get(token.type) != token.level or block.startswith("!["):
            continue
        elif above and (token.type in CODE or len(above.text) + len(block) < JOINED):
            found[-1] = replace(above, text=f"{above.text}\n\n{block}")
        else:
            found.append(Paragraph(page, begin + 1, headings.get(1, page), here, block))
    return found
