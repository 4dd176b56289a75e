"""Each end of a RunPod pod works alone. The rig rejects a late timer."""

import pytest

from tests.faults import ends
from tests.faults.rented import Wrong
from tests.faults.test_crash import rig

pytestmark = [pytest.mark.process, pytest.mark.nightly, pytest.mark.timeout(3600)]  # a round takes one to two minutes
# A launch of pods with a timer due ten minutes after the limit, by real time.
LATE = "from infra.machines import dead_man; from infra.providers import runpod; "
LATE += "runpod.deadline = lambda *words: dead_man.deadline(*words) + 600\n"
# A launch with a slow connection: the hand-over takes 10 s, 200 s by the vendor's clock.
SLOW = "import time; from infra.runs import hand_over; once = hand_over.retry_once; "
SLOW += "hand_over.retry_once = lambda action: (time.sleep(10), once(action))[1]\n"


def test_a_pod_with_one_living_end_is_gone_at_its_limit():
    done = rig("ends", "--kills", "200", timeout_s=3500)
    assert done.returncode == 0 and "0 pods beyond their limits" in done.stdout


def test_ends_rig_rejects_a_late_timer():
    with pytest.raises(Wrong, match="laptop at said boot: .*s beyond its limit"):
        ends.Rig(seed=3, kinds=("laptop",), stages=("said boot",), late=LATE).run(1, print)


def test_a_slow_hand_over_does_not_move_the_end():
    """The guard counts from before the hand-over, and moves the deadline of the timer as well."""
    rig = ends.Rig(seed=3, kinds=("guard", "timer"), late=SLOW)
    rig.run(1, print)
    assert rig.ended_by == {"guard: pod": 4, "timer: pod": 4} and rig.worst_s < 120.0
