"""Row 30: signals during renting, or a closed output. The rig rejects known-bad code."""

import pytest

from tests.faults.test_crash import rig

pytestmark = pytest.mark.process


@pytest.mark.nightly
def test_a_signal_while_renting_leaves_no_unnamed_pod():
    done = rig("signals", "--most", "10")
    assert done.returncode == 0 and "every pod is at work, proven gone, or named" in done.stdout


@pytest.mark.nightly
@pytest.mark.timeout(3600)
def test_every_signal_at_every_point():
    done = rig("signals", timeout_s=3500)
    assert done.returncode == 0 and "every pod is at work, proven gone, or named" in done.stdout


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("bad", "kind", "why"),
    [("Deaf", "TERM", "exit code -15"), ("TornOff", "INT", "one signal leaves behind"),
     ("Silent", "INT INT", "nobody was told")],
)  # fmt: skip
def test_signal_rig_rejects_known_bad_code(bad, kind, why):
    words = ("--most", "1", "--kind", kind, "--at", "sent create", "--manners", f"tests.faults.signals:{bad}")
    done = rig("signals", *words)
    assert done.returncode == 1 and why in done.stdout
