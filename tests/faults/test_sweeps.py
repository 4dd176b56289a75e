"""A whole sweep on a market with randomly killed processes and pods."""

import pytest

from tests.faults.test_crash import rig

pytestmark = [pytest.mark.process, pytest.mark.pack("sweeps"), pytest.mark.nightly]


@pytest.mark.timeout(5600)
def test_each_of_24_trials_on_4_pods_finishes_once_within_the_budget_despite_kills():
    done = rig("sweeps", "--trials", "24", "--pods", "4", "--kills", "20", timeout_s=5500)
    assert done.returncode == 0 and "24 trials on 4 pods, 20 kills" in done.stdout
    assert "each trial done once, 0 lost" in done.stdout
