"""Texts name things: the rate of each pointing word stays at the target, in code, messages and guides."""

import pytest

from tests.prose import FOLDERS, TARGETS, messages, rates, table, texts

# A check of the whole tree, not of a change: --fast leaves it out.
pytestmark = pytest.mark.slow
MARGIN = 0.3  # Per thousand words: a new file may use a word once more.


@pytest.mark.parametrize("name", [*FOLDERS, "messages", "guides"])
def test_pointing_words_are_rare(name):
    found = rates(table(name).values())
    over = {word: round(rate, 2) for word, rate in found.items() if rate > TARGETS[word] + MARGIN}
    assert not over, f"per thousand words of {name}; python -m tests.prose {name} names the files"


def test_docstrings_and_comments_are_measured_without_directives():
    source = '"""A module."""\n\n\ndef f():  # what it does\n    """Return one."""\n    return 1  # noqa: E501\n'
    assert list(filter(None, texts(source))) == ["A module.", "Return one.", "# what it does"]


def test_messages_are_measured_without_docstrings_programs_and_short_texts():
    said = "the request may have created a machine; the supervisor deletes the machine"
    source = f'"""{said} and this is a docstring."""\nraise E(f"{{n}}: {said}")\nQ = "SELECT {said}"\nK = "a key"\n'
    assert list(messages(source)) == [f": {said}"]
