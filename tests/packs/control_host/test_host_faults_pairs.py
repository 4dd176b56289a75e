"""Laptops that act on one run at the same time rent no machine twice."""

from tests.packs.control_host.fault_rounds import MARKS, check

pytestmark = MARKS


def test_pairs_of_laptops_rent_no_machine_twice():
    check("pairs", 12)
