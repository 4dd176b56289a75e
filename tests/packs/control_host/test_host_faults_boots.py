"""A control host that starts again, and laptops that act on one run at the same time, lose no machine."""

from tests.packs.control_host.fault_rounds import MARKS, check

pytestmark = MARKS


def test_restarts_of_the_host_lose_no_run_and_no_machine():
    check("boots", 20)


def test_pairs_of_laptops_rent_no_machine_twice():
    check("pairs", 20)
