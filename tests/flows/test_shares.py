"""The words for a launch that finds its machine taken."""

import pytest

from flows.shares import MachineLine
from infra.errors import Busy
from infra.ledger.journal import Journal
from infra.settings import Settings


@pytest.mark.parametrize(
    ("may_wait", "said"),
    [
        (True, "box: it holds the pod of a-1\nstand in line until one is free: --wait"),
        (False, "box: it holds the pod of a-1"),
    ],
)
def test_whoever_finds_a_machine_taken_is_told_how_to_wait_where_that_is_possible(tmp_path, may_wait, said):
    def work():
        raise Busy("box: it holds the pod of a-1")

    with Journal.open(tmp_path / "journal.db") as journal:
        line = MachineLine(journal, Settings.load(tmp_path, environ={}), print, may_wait=may_wait)
        with pytest.raises(Busy) as error:
            line.begin(work)
    assert str(error.value) == said
