"""Row 10: a laptop that sleeps while renting or keeping a run. The rig rejects known-bad code."""

import pytest

from tests.faults.test_crash import rig
from tests.faults.trial import rounds

pytestmark = pytest.mark.process


@rounds(5, 200)
def test_a_process_does_not_act_on_old_knowledge_after_a_sleep(rounds):
    done = rig("sleeps", "--trials", str(rounds))
    assert done.returncode == 0 and f"{rounds} sleeps, 0 stale writes" in done.stdout


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("bad", "meanwhile", "why"),
    [("Forgiving", "ended and swept", "stale"), ("Believing", "taken over", "that another process keeps")],
)
def test_sleep_rig_rejects_known_bad_code(bad, meanwhile, why):
    words = ("--trials", "60", "--seed", "3", "--meanwhile", meanwhile, "--renting", f"tests.faults.sleeps:{bad}")
    done = rig("sleeps", *words)
    assert done.returncode == 1 and why in done.stdout
