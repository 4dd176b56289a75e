"""A RunPod pod on a hanging machine while the laptop is off: the control host ends the pod at its limit."""

import pytest

from tests.end_to_end.test_street_ends import LAUNCH, SPEED, ending_process
from tests.faults.ends import stop_machine
from tests.hosts import sshd as sshd
from tests.packs.control_host.test_street_control import renting as renting

pytestmark = [
    pytest.mark.process,
    pytest.mark.nightly,  # A minute and a half, until the limit.
    pytest.mark.needs("sshd", "ssh-keygen"),
    pytest.mark.timeout(600),
]


@pytest.mark.parametrize("renting", [SPEED], indirect=True)
def test_control_host_ends_a_hanging_machine_at_its_limit(renting):
    renting.up()
    renting.laptop.json("launch", *LAUNCH)  # The process on the laptop has ended.
    (pod,) = renting.world.truth()["pods"]
    stop_machine(renting.world.folder / "pods", pod["id"], pod["name"])
    limit_s = 0.45 / (pod["micro_usd_per_hour"] / 1e6) * 3600
    assert ending_process(renting.world, limit_s) == "client"
