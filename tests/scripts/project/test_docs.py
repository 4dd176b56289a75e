"""`inv docs`: questions of newcomers find their paragraphs, and all words belong to the question."""

import contextlib
import json
import os
from pathlib import Path
from types import SimpleNamespace

import pytest

import tasks
from infra import strict_yaml
from infra.errors import UsageError
from scripts.cli.invoke_patch import CommandParser
from scripts.project import docs
from tests import fork_server
from tests.world import ROOT

SHOWN = 3  # paragraphs, the default of --most
QUESTIONS = strict_yaml.read(Path(__file__).parents[2] / "docs" / "questions.yaml")
PAGE = """# A page

An introduction.

## Limits

A pod has a limit.

```sh
./inv launch --ttl 2h
```

| flag | meaning |
|---|---|
| `--ttl` | a duration |
"""


@pytest.fixture(scope="module")
def pages():
    """Return the paragraphs of the documentation, which are read and indexed once for all tests."""
    found, index_of = docs.read_pages(ROOT), docs.index_of
    with pytest.MonkeyPatch.context() as patch, contextlib.closing(index_of(found)) as index:
        kept = SimpleNamespace(execute=index.execute, close=lambda: None)
        patch.setattr(docs, "index_of", lambda some: kept if some is found else index_of(some))
        patch.setattr(docs, "read_pages", lambda root: found)
        yield found


def rank(pages, asked: str, answer: str) -> int:
    """Return the place of the first paragraph with the answer, from 1; 0 for a question without an answer."""
    found, _ = docs.search(pages, asked.split())
    texts = (" ".join(one.text.split()) for one in found)
    return next((number for number, text in enumerate(texts, 1) if answer in text), 0)


@pytest.mark.parametrize(
    "question",
    [
        pytest.param(one, id=one["asked"], marks=[pytest.mark.pack(one["pack"])] if "pack" in one else [])
        for one in QUESTIONS
    ],
)
def test_question_of_a_newcomer_is_answered_on_the_first_screen(pages, question):
    assert 1 <= rank(pages, question["asked"], question["answer"]) <= SHOWN


def test_questions_are_seventy_and_two_thirds_are_answered_by_the_first_paragraph(pages):
    assert len(QUESTIONS) == len({one["asked"] for one in QUESTIONS}) == 70
    assert all(len(one["asked"].split()) <= 7 for one in QUESTIONS)
    assert sum(rank(pages, one["asked"], one["answer"]) == 1 for one in QUESTIONS) >= 47


def test_every_page_is_searched(pages):
    written = {path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").rglob("*.md")}
    searched = {one.page for one in pages}
    assert written - set(docs.LEFT_OUT) <= searched and {"README.md", "CONTRIBUTING.md"} < searched


def test_code_belongs_to_the_text_above_and_a_row_of_a_table_keeps_its_head():
    first, limit, row = docs.paragraphs_of("page.md", PAGE)
    assert (first.title, first.headings, first.line) == ("A page", (), 3)
    assert limit.headings == row.headings == ("Limits",)
    assert limit.text.startswith("A pod has a limit.") and "./inv launch --ttl 2h" in limit.text
    assert row.text == "| `--ttl` | a duration |"
    assert row.markdown.splitlines()[0] == "| flag | meaning |" and len(row.markdown.splitlines()) == 3


def test_forms_of_a_word_and_synonyms_find_the_same_paragraph():
    paragraphs = docs.paragraphs_of("page.md", "# Page\n\nThe run ends.\n\n## Other\n\nThe price of kubernetes.")
    for asked in ("ending", "cancel", "terminate"):
        (found, *_), missing = docs.search(paragraphs, [asked])
        assert (found.text, missing) == ("The run ends.", []), asked
    assert docs.search(paragraphs, ["k8s"])[0][0].text == "The price of kubernetes."


def test_flag_of_two_commands_is_shown_once(pages):
    found, _ = docs.search(pages, ["minimum", "disk", "size"])
    texts = [one.text for one in found]
    assert len(set(texts)) == len(texts) and sum("--disk-size" in one for one in texts) >= 1


def test_every_synonym_is_a_word_of_the_pages(pages):
    said = [one for words in docs.SYNONYMS.values() for one in words]
    assert not [one for one in said if docs.search(pages, [one])[1]]


def test_unknown_words_are_named_with_the_nearest_word_of_the_pages(pages):
    found, missing = docs.search(pages, ["jupiter", "notebook"])
    assert missing == ["jupiter"] and docs.nearest(pages, missing) == {"jupiter": "jupyter"}
    assert "Jupyter" in found[0].headings
    with pytest.raises(UsageError, match=r"no page has 'jupiter' \(did you mean jupyter\?\)\."):
        docs.docs.work(docs.DocsFlags(words=("jupiter",)))


def test_names_of_commands_after_docs_are_words_of_the_question():
    (one,) = CommandParser(["docs", "resume", "spot", "down", "--most", "2"], tasks.namespace).read()
    assert (one.name, one.as_kwargs["words"], one.as_kwargs["most"]) == ("docs", ["resume", "spot", "down"], 2)
    assert [one.name for one in CommandParser(["status", "docs"], tasks.namespace).read()] == ["status", "docs"]


def test_paragraphs_are_shown_with_page_line_and_headings(pages, capsys):
    docs.docs.work(docs.DocsFlags(words=("slack", "notice"), most=1))
    place, _, *shown = capsys.readouterr().out.splitlines()
    assert place.startswith("docs/guides/notices.md:") and place.endswith(
        "Get notified, and find out why > Get notified"
    )
    assert "SLIPWAY_HOOK_TEAM=slack" in "\n".join(shown) and "docs/guides/rent.md:" not in "\n".join(shown)
    docs.docs.work(docs.DocsFlags(words=("mistral",), most=1))
    assert "[a job](docs/guides/jobs.md)" in capsys.readouterr().out, "links lead from the checkout"
    docs.docs.work(docs.DocsFlags())
    assert "docs/money.md  " in capsys.readouterr().out


@pytest.mark.process
def test_documentation_is_searched_and_help_is_a_word():
    def typed(*words: str) -> str:
        done = fork_server.run(words, os.environ)
        assert done.returncode == 0, done.stderr
        return done.stdout

    (found,) = json.loads(typed("docs", "slack", "notice", "--most", "1", "--json"))
    assert found["page"] == "docs/guides/notices.md" and "SLIPWAY_HOOK_TEAM=slack" in found["text"]
    assert typed("help").startswith("Slipway trains") and "--most" in typed("help", "docs")
