"""Everything at once on a control host: 300 kills in the nightly tier; by hand a thousand, which take an hour."""

import pytest

from tests.faults.test_crash import rig
from tests.needs import PRIVILEGE

pytestmark = pytest.mark.nightly


@pytest.mark.process
@pytest.mark.needs("sshd", "ssh-keygen", "ip", "iptables", PRIVILEGE)
@pytest.mark.timeout(3600)
@pytest.mark.pack("jobs")
@pytest.mark.pack("control_host")
def test_three_hundred_kills_lose_no_run_no_machine_and_no_answer():
    done = rig("together", "--kills", "300", timeout_s=3500)
    assert done.returncode == 0
    assert "kills, 0 orphans, 0 duplicates, 0 early ends, 0 cut answers called whole" in done.stdout
