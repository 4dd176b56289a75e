"""A control host with a full disk loses no run and no machine."""

from tests.packs.control_host.fault_rounds import MARKS, check

pytestmark = MARKS


def test_full_disks_lose_no_run_and_no_machine():
    check("full", 12)
