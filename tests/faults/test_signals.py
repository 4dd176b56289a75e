"""Row 30: told to leave while it rents, or nobody reads what it says. The rig fails what is known to be bad."""

import pytest

from tests.faults.test_crash import rig

pytestmark = pytest.mark.process


def test_whoever_leaves_while_it_rents_leaves_no_pod_without_a_name():
    done = rig("signals", "--most", "10")
    assert done.returncode == 0 and "every pod is at work, proven gone, or named" in done.stdout


@pytest.mark.nightly
@pytest.mark.timeout(3600)
def test_of_every_signal_at_every_point():
    done = rig("signals", timeout_s=3500)
    assert done.returncode == 0 and "every pod is at work, proven gone, or named" in done.stdout


@pytest.mark.parametrize(
    ("bad", "kind", "why"),
    [("Deaf", "TERM", "exit code -15"), ("TornOff", "INT", "one signal leaves behind"),
     ("Silent", "INT INT", "nobody was told")],
)  # fmt: skip
def test_that_rig_catches(bad, kind, why):
    words = ("--most", "1", "--kind", kind, "--at", "sent create", "--manners", f"tests.faults.signals:{bad}")
    done = rig("signals", *words)
    assert done.returncode == 1 and why in done.stdout
