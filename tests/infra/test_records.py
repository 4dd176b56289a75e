"""The effective rate of a pod if the vendor reports a price with or without the disk."""

import pytest

from infra.records import Pod

AGREED, DISK = 476_987, 136_987


@pytest.mark.parametrize(
    ("reported", "disk", "counted"),
    [
        (340_000, DISK, AGREED),  # the agreed price, without the disk
        (AGREED, DISK, AGREED),  # with the disk
        (AGREED + 1, DISK, AGREED),  # with the disk, rounded
        (300_000, DISK, AGREED),  # cheaper either way
        (400_000, DISK, 400_000 + DISK),  # dearer without the disk, or cheaper with the disk: unknown
        (680_000, DISK, 680_000 + DISK),
        (680_000, 0, 680_000),  # a vendor with a price for everything
        (0, DISK, AGREED),  # no report
    ],
)
def test_a_report_counts_without_the_disk_unless_it_is_the_agreed_price(reported, disk, counted):
    pod = Pod(
        provider="runpod",
        pod_id="1",
        token="t",
        run="r",
        address="",
        micro_usd_per_hour=reported,
        disk_micro_usd_per_hour=disk,
    )
    assert pod.rate(AGREED) == counted
    assert pod.rate(pod.rate(AGREED)) == counted  # a second report of the same price changes nothing


def test_a_pod_without_a_row_counts_with_its_disk():
    pod = Pod(
        provider="runpod",
        pod_id="1",
        token="t",
        run="r",
        address="",
        micro_usd_per_hour=340_000,
        disk_micro_usd_per_hour=DISK,
    )
    assert pod.rate() == AGREED
