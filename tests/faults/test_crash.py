"""The rigs that fork: renting killed anywhere, and renting beside others. Each fails what is known to be bad."""

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
    needs("sshd", "ssh-keygen")  # of its market
    command = [sys.executable, "-m", f"{package}.{module}", *words]
    done = subprocess.run(
        command, cwd=ROOT, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=timeout_s
    )
    print("\n".join(done.stdout.split("\n")[-90:]), done.stderr)
    return done


@rounds(20, 1000)
def test_a_launch_killed_anywhere_on_a_market_that_loses_answers_leaves_no_orphan_and_no_twin(rounds):
    done = rig("crash", "--trials", str(rounds))
    assert done.returncode == 0 and "kills, 0 orphans, 0 duplicates, 0 early ends" in done.stdout


@pytest.mark.parametrize(
    ("bad", "why"),
    [
        # A journal that loses writes between processes can lose any kind of row: any complaint finds it.
        ("InJson", "lost sight|lost work|orphans|early end"),
        pytest.param("Resending", "duplicates|lost work", marks=pytest.mark.nightly),
        pytest.param("Forgetting", "early end", marks=pytest.mark.nightly),
    ],
)
def test_the_crash_rig_catches(bad, why):
    # The first failure ends it. Where a kill falls hangs on the machine: 60 trials once met none.
    done = rig("crash", "--trials", "300", "--seed", "3", "--renting", f"tests.faults.known_bad:{bad}")
    assert done.returncode == 1 and any(word in done.stdout for word in why.split("|"))


@rounds(10, 500)
def test_a_sweep_beside_launches_deletes_no_live_pod(rounds):
    done = rig("races", "launches", "--rounds", str(rounds))
    assert done.returncode == 0 and "no live pod deleted" in done.stdout


@rounds(10, 500)
def test_of_eight_that_want_the_same_one_has_it_and_one_machine_is_made(rounds):
    done = rig("races", "winners", "--rounds", str(rounds))
    assert done.returncode == 0 and f"{rounds} rounds" in done.stdout


@pytest.mark.parametrize(
    ("race", "rounds", "bad", "why"),
    [
        pytest.param("launches", "50", "RowsFirst", "lost work", marks=pytest.mark.nightly),
        ("winners", "5", "InJson", "winners"),
    ],
)
def test_the_races_catch(race, rounds, bad, why):
    done = rig("races", race, "--rounds", rounds, "--seed", "2", "--renting", f"tests.faults.known_bad:{bad}")
    assert done.returncode == 1 and why in done.stdout
