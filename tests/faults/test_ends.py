"""Each end of a RunPod pod holds alone. The rig fails a timer that is late."""

import pytest

from tests.faults import ends
from tests.faults.rented import Wrong
from tests.faults.test_crash import rig

pytestmark = [pytest.mark.process, pytest.mark.nightly, pytest.mark.timeout(3600)]  # a round takes one to two minutes
# A launch whose pods have a timer that is due ten minutes after their limit, by our clock.
LATE = "from infra.machines import dead_man; from infra.providers import runpod; "
LATE += "runpod.deadline = lambda *words: dead_man.deadline(*words) + 600\n"
# A launch that hands over 10 s after it has begun to, which are 200 by the vendor's clock: a slow connection.
SLOW = "import time; from infra.runs import hand_over; twice = hand_over.twice; "
SLOW += "hand_over.twice = lambda action: (time.sleep(10), twice(action))[1]\n"


def test_whatever_is_killed_a_pod_is_gone_at_its_limit_while_one_end_lives():
    done = rig("ends", "--kills", "200", timeout_s=3500)
    assert done.returncode == 0 and "0 pods beyond their limits" in done.stdout


def test_that_rig_catches_a_timer_that_is_late():
    with pytest.raises(Wrong, match="laptop at said boot: .*s beyond its limit"):
        ends.Rig(seed=3, kinds=("laptop",), stages=("said boot",), late=LATE).run(1, print)


def test_a_slow_hand_over_moves_no_end():
    """The guard counted from before its hand-over, and moved the deadline of the timer likewise."""
    rig = ends.Rig(seed=3, kinds=("guard", "timer"), late=SLOW)
    rig.run(1, print)
    assert rig.ended_by == {"guard: pod": 4, "timer: pod": 4} and rig.worst_s < 120.0
