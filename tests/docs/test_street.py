"""The code behind one launch: few enough files for an afternoon, each with two sentences."""

import re

from tests.world import ROOT

MOST_FILES, MOST_LINES = 32, 7000
STREET = ROOT / "docs" / "street.md"


def stops() -> list[str]:
    """Return the numbered paragraphs of the page."""
    return re.split(r"^\d+\. ", STREET.read_text("utf-8"), flags=re.MULTILINE)[1:]


def linked_files() -> list[str]:
    """Return the file of each stop, relative to the root, in reading order."""
    files = [re.match(r"\[([^]]+)\]\(\.\./([^)]+)\)", stop) for stop in stops()]
    assert all(found and found[1] == found[2] for found in files), "a stop begins with the link of its file"
    return [found[1] for found in files if found]


def test_launch_path_is_short_enough_to_read_in_an_afternoon():
    files = linked_files()
    assert len(set(files)) == len(files) <= MOST_FILES
    assert sum(len((ROOT / name).read_text("utf-8").splitlines()) for name in files) <= MOST_LINES
    for stop in stops():
        text = re.sub(r"\[[^]]+\]\([^)]+\)|`[^`]+`", "X", stop.split("\n\n")[0])
        assert len(re.findall(r"[.](?=\s|$)", text)) == 2, stop
