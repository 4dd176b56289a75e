"""Every fault of a control host and its laptops, at night."""

import pytest

from tests.faults.test_crash import rig
from tests.needs import PRIVILEGE

pytestmark = [
    pytest.mark.pack("jobs"),
    pytest.mark.process,
    pytest.mark.nightly,  # A round takes minutes, even on an idle machine.
    pytest.mark.needs("sshd", "ssh-keygen", "ip", "iptables", PRIVILEGE),
    pytest.mark.timeout(14500),
]


@pytest.mark.parametrize(
    ("what", "times"), [("laptops", 200), ("boots", 20), ("disks", 50), ("full", 20), ("pairs", 20)]
)
def test_faults_of_a_control_host_lose_no_run_and_no_machine(what, times):
    done = rig("host_faults", what, "--times", str(times), package="tests.packs.control_host", timeout_s=14000)
    assert done.returncode == 0 and "0 orphans, 0 duplicates, 0 early ends" in done.stdout.splitlines()[-1]
