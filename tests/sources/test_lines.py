"""Every command line of the five documents behaves here as documented in the entry."""

import pytest

from tests.sources import lines

pytestmark = [
    pytest.mark.process,
    pytest.mark.nightly,  # Some minutes each.
    pytest.mark.needs("sshd", "ssh-keygen", "curl"),
    pytest.mark.timeout(1800),
]


@pytest.mark.parametrize("document", lines.DOCUMENTS)
def test_each_line_of_a_document_agrees_with_its_entry(document):
    wrong = [f"{one.line.line}: {one.problem}" for one in lines.run(document) if one.problem]
    assert not wrong, "\n".join(wrong)
