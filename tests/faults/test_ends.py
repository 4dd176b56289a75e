"""Each end of a RunPod pod holds alone. The rig fails a timer that is late."""

import pytest

from tests.faults import ends
from tests.faults.rented import Wrong
from tests.faults.test_crash import rig

pytestmark = [pytest.mark.process, pytest.mark.nightly, pytest.mark.timeout(3600)]  # a round takes one to two minutes
# A launch whose pods have a timer that is due ten minutes after their limit, by our clock.
LATE = "from infra.machines import dead_man; from infra.providers import runpod; "
LATE += "runpod.deadline = lambda *words: dead_man.deadline(*words) + 600\n"


def test_whatever_is_killed_a_pod_is_gone_at_its_limit_while_one_end_lives():
    done = rig("ends", "--kills", "200", timeout_s=3500)
    assert done.returncode == 0 and "0 pods beyond their limits" in done.stdout


def test_that_rig_catches_a_timer_that_is_late():
    """Before its hand-over: a guard moves the deadline of the timer to its own limit."""
    with pytest.raises(Wrong, match="laptop at said boot: .*s beyond its limit"):
        ends.Rig(seed=3, kinds=("laptop",), stages=("said boot",), late=LATE).run(1, print)
