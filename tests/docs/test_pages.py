"""The pages of documentation are correct: links have targets, commands exist, reference pages are current."""

import re

import pytest
from invoke import Exit

import tasks
from infra.providers.lium import Lium
from infra.providers.promises import REPORTED, abilities
from infra.providers.runpod import RunPod
from infra.providers.shadeform import Shadeform
from scripts.cli.invoke_patch import CommandParser
from scripts.project import agents, reference, rooms
from store import packs
from tests.docs.pages import ACCOUNT, BY_HAND, INTERRUPT, PAGES, ROOT, blocks, name, words

MOST_WORDS = 40  # Of the glossary.
OF_PACKS = {command for pack in packs.known().values() for command in pack["commands"]}


def slug(heading: str) -> str:
    """Return the anchor that GitHub gives a heading."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


def anchors(page) -> set[str]:
    return {slug(found) for found in re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)}


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_links_lead_to_files_and_headings(page):
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
        if "://" in target:
            continue
        path, _, anchor = target.partition("#")
        there = (page.parent / path).resolve() if path else page
        if there.is_relative_to(packs.FOLDER) and there.parts[len(packs.FOLDER.parts)] not in packs.installed():
            continue
        assert there.exists() and there.is_relative_to(ROOT), target
        assert not anchor or anchor in anchors(there), target


def test_every_guide_is_linked_from_the_first_page():
    first = (ROOT / "README.md").read_text(encoding="utf-8")
    assert not [
        page.name for page in (ROOT / "docs" / "guides").glob("*.md") if f"(docs/guides/{page.name})" not in first
    ]


def test_first_page_fits_on_two_screens():
    assert len((ROOT / "README.md").read_text().splitlines()) <= 120


def test_recorded_terminal_is_a_small_image_with_both_commands():
    picture = (ROOT / "docs" / "images" / "launch-and-chat.svg").read_text()
    assert len(picture) < 1_000_000
    assert "./inv launch --phase sft" in picture and "./inv chat" in picture


@pytest.fixture(scope="module")
def generated():
    return reference.pages()


@pytest.mark.pack("bits")
@pytest.mark.pack("blocks")
@pytest.mark.pack("preferences")
@pytest.mark.parametrize("page", reference.PAGES)
def test_reference_page_equals_the_output_of_the_generator(page, generated):
    written = (reference.FOLDER / page).read_text(encoding="utf-8")
    assert written == generated[page], "run: python -m scripts.project.reference write"


def test_page_for_coding_agents_equals_the_output_of_the_generator():
    written = (ROOT / "AGENTS.md").read_text(encoding="utf-8")
    assert written == reference.for_agents(), "run: python -m scripts.project.reference write"
    said = written.splitlines()
    rents, asks = (next(one for one in said if word in one) for word in ("commands may rent", "Never give `--yes`"))
    # Every command that may rent is listed in the rule against renting.
    for command in set(tasks.namespace.task_names) - OF_PACKS:
        flags = {one.spelling for one in tasks.namespace[command].flags}
        rented = f"`{command}`" in rents
        assert rented == tasks.namespace[command].rents, command
        assert rented or "spend-limit" not in flags or command == "rehearse", f"{command} takes a limit: does it rent?"
        assert rented or ("yes" in flags) == (f"`{command}`" in asks), command


def test_pages_for_contributors_and_agents_have_one_table_of_folders():
    page = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    assert page == reference.for_contributors(), "run: python -m scripts.project.reference write"
    table = "\n".join(reference.room_table())
    assert table.strip() in page and table.strip() in (ROOT / "AGENTS.md").read_text(encoding="utf-8")
    assert len(page.splitlines()) <= 100, "one page"


@pytest.mark.parametrize("room", rooms.ROOMS, ids=lambda one: one.what)
def test_every_file_and_folder_in_the_table_for_contributors_exists(room):
    missing = {f"packs/{name}" for name in packs.known().keys() - packs.installed().keys()}
    paths = [path for path in room.paths() if "/".join(path.split("/")[:2]) not in missing]
    assert [path for path in paths if not (ROOT / path).exists()] == []
    assert room.folder not in paths or (ROOT / room.folder).is_dir()
    assert room.copy not in paths or (ROOT / room.copy).is_file()


def test_page_without_the_marks_of_its_table_is_refused():
    with pytest.raises(ValueError, match="has no"):
        rooms.filled("# Contributing\n", "| a |")


def test_page_for_coding_agents_cannot_name_a_missing_command():
    with pytest.raises(KeyError, match="inv launch has no --spend-limits"):
        agents._typed(reference.namespace(), "launch --spend-limits 3")


def test_added_flag_appears_on_the_page_of_commands(monkeypatch):
    (rows,) = reference.flag_rows(tasks.namespace["logs"]).values()
    rows = {flag: text for flag, _, text in rows}
    assert rows["`--since DURATION`"] == "print only lines written within this time: 90s, 10m, 2h"
    assert rows["`--follow`"] and rows["`--tail N`"]
    assert "`--json`" not in rows


def test_glossary_gives_at_most_forty_words_one_meaning_each():
    text = (ROOT / "docs" / "concepts.md").read_text()
    rows = re.findall(r"^\| (\S[^|]*?) \| ([^|]+) \|$", text.partition("## Glossary")[2], re.MULTILINE)[1:]
    listed = [word for word, _ in rows if not word.startswith("---")]
    assert {"mid", "sft", "run", "pod", "offer", "artifact", "journal", "keeper"} <= set(listed)
    assert len(listed) <= MOST_WORDS and listed == sorted(set(listed))


@pytest.mark.parametrize("page", BY_HAND, ids=name)
def test_commands_in_the_text_exist_and_can_be_copied(page):
    text = page.read_text(encoding="utf-8")
    known = {*tasks.namespace.task_names, *OF_PACKS, "tokenizer", "serve"}
    typed = {one.rstrip(".") for one in re.findall(r"\./inv ([a-z][a-z._]*)", text)}
    assert typed <= known
    assert not re.findall(r"`inv [a-z-].*", text), "write ./inv"


@pytest.mark.parametrize("page", BY_HAND, ids=name)
def test_every_shown_command_can_be_parsed(page, monkeypatch):
    monkeypatch.chdir(ROOT)
    for block in blocks(page):
        assert block.mark in ("", ACCOUNT, INTERRUPT), block
        for line in block.lines:
            program, *rest = words(line)
            rest = rest[: rest.index("--")] if "--" in rest else rest
            if program == "./inv" and rest and not rest[0].startswith("-"):
                try:
                    assert [one.name for one in CommandParser(rest, tasks.namespace).read()], line
                except Exit as error:  # A word of an absent pack.
                    assert "belongs to the pack" in str(error.message), line


def test_vendor_facts_on_the_page_about_money_equal_the_code():
    text, classes = (ROOT / "docs" / "money.md").read_text(), (RunPod, Lium, Shadeform)
    rows = {
        cells[0]: cells[1:]
        for line in text.splitlines()
        if line.startswith("| ")
        for cells in [[one.strip() for one in line.strip("| ").split("|")]]
        if len(cells) == 1 + len(classes)
    }
    for column, vendor in enumerate(classes):
        can = abilities(vendor.documented, REPORTED.get(vendor.name, ()), (), "", 0.0)
        timer, amount = rows["the vendor ends it at a time"][column], rows["the vendor ends it at an amount"][column]
        assert can.time_limit != can.start_timer and can.start_timer == ("dead-man timer" in timer)
        assert can.spend_limit == (amount == "yes")
        deletes_itself = can.self_terminate == "pod_credential"
        assert deletes_itself == rows["the pod can delete itself"][column].startswith("yes")
        assert deletes_itself == ("itself" in rows["the work succeeds, laptop off"][column])
        assert deletes_itself == ("deletes" in rows["the spend limit is reached"][column])
