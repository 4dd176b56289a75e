"""A laptop that vanishes in the middle of a command loses no run and no machine."""

from tests.packs.control_host.fault_rounds import MARKS, check

pytestmark = MARKS


def test_vanished_laptops_lose_no_run_and_no_machine():
    check("laptops", 100)
