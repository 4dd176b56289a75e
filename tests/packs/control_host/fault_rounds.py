"""Rounds of one kind of fault of a control host, at night. Each kind has a file, because a worker runs a whole file.

The part `packs` has 60 minutes; more rounds: `python -m tests.packs.control_host.host_faults disks --times 50`.
"""

import pytest

from tests.faults.test_crash import rig
from tests.needs import PRIVILEGE

MARKS = [
    pytest.mark.pack("jobs"),
    pytest.mark.process,
    pytest.mark.nightly,  # A round takes minutes, even on an idle machine.
    pytest.mark.needs("sshd", "ssh-keygen", "ip", "iptables", PRIVILEGE),
    pytest.mark.timeout(14500),
]


def check(what: str, times: int) -> None:
    """Run the rounds of a fault, a function of `host_faults`; no run and no machine may be lost."""
    done = rig("host_faults", what, "--times", str(times), package="tests.packs.control_host", timeout_s=14000)
    assert done.returncode == 0 and "0 orphans, 0 duplicates, 0 early ends" in done.stdout.splitlines()[-1]
