"""Forking rigs: renting killed at any point, and renting beside other processes. Each rig rejects known-bad code."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.faults.trial import rounds
from tests.needs import needs

pytestmark = pytest.mark.process

ROOT = Path(__file__).parents[2]


def rig(
    module: str, *words: str, package: str = "tests.faults", timeout_s: float = 1100
) -> subprocess.CompletedProcess[str]:
    needs("sshd", "ssh-keygen")  # of the market
    command = [sys.executable, "-m", f"{package}.{module}", *words]
    done = subprocess.run(
        command, cwd=ROOT, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=timeout_s
    )
    print("\n".join(done.stdout.split("\n")[-90:]), done.stderr)
    return done


@pytest.mark.nightly
@rounds(20, 500)  # a thousand by hand, with `python -m tests.faults.crash`
def test_a_killed_launch_on_a_market_that_loses_answers_leaves_no_orphan_and_no_twin(rounds):
    done = rig("crash", "--trials", str(rounds))
    assert done.returncode == 0 and "kills, 0 orphans, 0 duplicates, 0 early ends" in done.stdout


@pytest.mark.nightly  # like the trials of the rig
@pytest.mark.parametrize(
    ("bad", "why"),
    [
        # A journal that loses writes between processes can lose any kind of row: every complaint counts.
        ("InJson", "lost sight|lost work|orphans|early end"),
        ("Resending", "duplicates|lost work"),
        ("Forgetting", "early end"),
    ],
)
def test_crash_rig_rejects_known_bad_code(bad, why):
    # The first failure ends the trials. The machine decides where a kill falls: 60 trials once hit no fault.
    done = rig("crash", "--trials", "300", "--seed", "3", "--renting", f"tests.faults.known_bad:{bad}")
    assert done.returncode == 1 and any(word in done.stdout for word in why.split("|"))


@rounds(10, 500)
def test_a_concurrent_sweep_deletes_no_live_pod_of_a_launch(rounds):
    done = rig("races", "launches", "--rounds", str(rounds))
    assert done.returncode == 0 and "no live pod deleted" in done.stdout


@rounds(10, 500)
def test_one_of_eight_concurrent_launches_wins_and_makes_one_machine(rounds):
    done = rig("races", "winners", "--rounds", str(rounds))
    assert done.returncode == 0 and f"{rounds} rounds" in done.stdout


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("race", "rounds", "bad", "why"),
    [
        pytest.param("launches", "50", "RowsFirst", "lost work", marks=pytest.mark.nightly),
        ("winners", "5", "InJson", "winners"),
    ],
)
def test_race_rig_rejects_known_bad_code(race, rounds, bad, why):
    done = rig("races", race, "--rounds", rounds, "--seed", "2", "--renting", f"tests.faults.known_bad:{bad}")
    assert done.returncode == 1 and why in done.stdout
