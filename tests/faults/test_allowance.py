"""Random and adversarial calls with the token of an allowance: the nightly share of `bench.allowance`."""

import subprocess
import sys

import pytest

from tests import seeds
from tests.world import ROOT

pytestmark = pytest.mark.nightly


@pytest.mark.process
@pytest.mark.needs("sshd", "ssh-keygen")
@pytest.mark.timeout(3600)
@pytest.mark.pack("agents")
def test_agents_with_one_token_spend_at_most_the_allowance_and_leave_no_machine():
    words = ["-m", "bench.allowance", "--sequences", "10", "--seed", str(seeds.seed()), "--arm", "allowance"]
    done = subprocess.run([sys.executable, *words], cwd=ROOT, capture_output=True, text=True, timeout=3500)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr[-4000:]}"
    assert "no fault of the allowance found" in done.stdout
