"""A control host that starts again loses no run and no machine."""

from tests.packs.control_host.fault_rounds import MARKS, check

pytestmark = MARKS


def test_restarts_of_the_host_lose_no_run_and_no_machine():
    check("boots", 12)
