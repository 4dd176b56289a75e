"""A control host and its laptops, and all that can befall them: the rigs, at night."""

import pytest

from tests.faults.test_crash import rig
from tests.needs import PRIVILEGE

pytestmark = [
    pytest.mark.process,
    pytest.mark.nightly,  # a round takes minutes, also where nothing else is at work
    pytest.mark.needs("sshd", "ssh-keygen", "ip", "iptables", PRIVILEGE),
    pytest.mark.timeout(14500),
]
NONE = "0 orphans, 0 duplicates, 0 early ends"


@pytest.mark.parametrize(
    ("what", "times"), [("laptops", 200), ("boots", 20), ("disks", 50), ("full", 20), ("pairs", 20)]
)
def test_whatever_befalls_a_control_host_no_run_is_lost_and_no_machine_forgotten(what, times):
    done = rig("control", what, "--times", str(times), timeout_s=14000)
    assert done.returncode == 0 and NONE in done.stdout.splitlines()[-1]


def test_a_thousand_kills_of_everything_at_once_lose_no_run_no_machine_and_no_answer():
    done = rig("together", "--kills", "1000", timeout_s=14000)
    assert done.returncode == 0 and f"kills, {NONE}, 0 cut answers called whole" in done.stdout
