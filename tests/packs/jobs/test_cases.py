"""Every case of `tests.packs.jobs.cases` gives the wanted result."""

import pytest

from tests.packs.jobs.cases import CASES, verdict

pytestmark = [pytest.mark.process, pytest.mark.nightly]


@pytest.mark.parametrize("name", CASES)
def test_case_gives_the_wanted_result(tmp_path, name):
    assert verdict(CASES[name], tmp_path) == ""
