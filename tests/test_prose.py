"""Docstrings and comments name things: the rates of pointing words may only fall, folder by folder."""

import pytest

from tests.prose import FOLDERS, TARGETS, rates, texts

# Rates per thousand words, in the order of TARGETS, rounded up. Lower a row with each folder that is rewritten; a row
# that is at its targets is removed.
CEILINGS: dict[str, tuple[float, ...]] = {
    "flows": (2, 4, 4, 2, 2, 0.1, 0.1, 0.3, 0.05, 0.2, 0.5, 9, 9, 0.8, 0.5, 0.5),
    "packs": (12.2, 11.8, 15.1, 6.6, 4.9, 1, 0.6, 0.8, 0.5, 0.6, 1.6, 19.9, 28.8, 2.5, 1.7, 2.5),
    "scripts": (13.9, 9.5, 13.4, 5.5, 4, 1.8, 0.8, 1.1, 0.7, 0.3, 1.1, 17, 25.5, 3.1, 1.3, 2.5),
}
MARGIN = 0.3  # a new file may use a word once more


@pytest.mark.parametrize("folder", FOLDERS)
def test_pointing_words_become_no_more(folder):
    ceilings = dict(zip(TARGETS, CEILINGS.get(folder, TARGETS.values()), strict=True))
    over = {word: round(rate, 2) for word, rate in rates(folder).items() if rate > ceilings[word] + MARGIN}
    assert not over, f"per thousand words of {folder}; python -m tests.prose {folder} names the files"


def test_docstrings_and_comments_are_measured_and_directives_are_not():
    source = '"""A module."""\n\n\ndef f():  # what it does\n    """Return one."""\n    return 1  # noqa: E501\n'
    assert list(filter(None, texts(source))) == ["A module.", "Return one.", "# what it does"]
