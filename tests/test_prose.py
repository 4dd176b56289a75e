"""Docstrings and comments name things: the rate of each pointing word stays at its target, in every folder."""

import pytest

from tests.prose import FOLDERS, TARGETS, rates, texts

MARGIN = 0.3  # per thousand words: a new file may use a word once more


@pytest.mark.parametrize("folder", FOLDERS)
def test_pointing_words_are_rare(folder):
    over = {word: round(rate, 2) for word, rate in rates(folder).items() if rate > TARGETS[word] + MARGIN}
    assert not over, f"per thousand words of {folder}; python -m tests.prose {folder} names the files"


def test_docstrings_and_comments_are_measured_and_directives_are_not():
    source = '"""A module."""\n\n\ndef f():  # what it does\n    """Return one."""\n    return 1  # noqa: E501\n'
    assert list(filter(None, texts(source))) == ["A module.", "Return one.", "# what it does"]
