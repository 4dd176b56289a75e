"""Every command line of the five documents does here what its entry says."""

import pytest

from tests.sources import lines

pytestmark = [
    pytest.mark.process,
    pytest.mark.nightly,  # some minutes each
    pytest.mark.needs("sshd", "ssh-keygen", "curl"),
    pytest.mark.timeout(1800),
]


@pytest.mark.parametrize("document", lines.DOCUMENTS)
def test_each_line_of_a_document_does_what_its_entry_says(document):
    wrong = [f"{one.line.line}: {one.problem}" for one in lines.run(document) if one.problem]
    assert not wrong, "\n".join(wrong)
