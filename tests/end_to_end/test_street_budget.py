"""One budget for the launches of several terminals, in a rehearsed market started by the first command."""

import pytest

from tests.end_to_end.test_street_market import KEYS, Rehearsed
from tests.world import until

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.pack("jobs"),
    pytest.mark.process,
    pytest.mark.needs("sshd", "ssh-keygen"),  # For the machines of the market.
    pytest.mark.timeout(400),  # Guard against hangs, with eight other tests at work.
]


@pytest.fixture
def user(tmp_path):
    user = Rehearsed(tmp_path, KEYS)
    yield user
    user.inv("down", "--all", "--rehearse")
    user.inv("rehearse", "--stop")
    assert until(lambda: not user.processes(), "the end of everything")


def line(name: str, folder, *more: str) -> list[str]:
    """Return a launch that may cost 2 USD of the 3 USD budget, and works until a file with the launch's name exists."""
    work = f"until [ -e {folder}/{name}.go ]; do sleep 0.1; done"
    machine = ["--provider", "lium", "--gpu", "RTX4090,L40S", "--num-gpus", "1"]
    return ["launch", *machine, "--cmd", work, "-n", name, "--budget", "evals=3", "--spend-limit", "2", "--yes", *more]


# In daily runs tests/infra/market/test_budget.py covers the decision.
def test_second_terminal_waits_for_the_budget_and_a_killed_launch_blocks_no_other(user, tmp_path):
    begun = {name: user.begin(*line(name, tmp_path), "--rehearse") for name in ("one", "two")}
    lost = until(lambda: next((name for name, process in begun.items() if process.poll() is not None), ""), "a refusal")
    paid = ({"one", "two"} - {lost}).pop()
    _, err = begun[lost].communicate()
    assert (
        begun[lost].returncode == 2
        and f"reserved by: {paid}; nothing was rented; to wait until enough money is free: --wait" in err
    )
    third = user.begin(*line("third", tmp_path, "--wait"), "--rehearse")
    until(lambda: user.status().get("third", {}).get("state") == "waiting", "the third waits")
    note = user.status()["third"]["note"]
    assert note.startswith("waits for budget evals: third may cost 2.00 USD") and f"reserved by: {paid}" in note
    fourth = user.begin(*line("fourth", tmp_path, "--wait"), "--rehearse")
    until(lambda: user.status().get("fourth", {}).get("state") == "waiting", "the fourth waits behind it")
    third.kill()
    third.communicate()
    until(lambda: "third" not in user.status(), "its place is free")
    fifth = user.begin(*line("fifth", tmp_path, "--wait"), "--rehearse")
    until(lambda: user.status().get("fifth", {}).get("state") == "waiting", "the fifth waits behind it")
    assert user.json("down", "fifth", "--rehearse")["ended"] == ["fifth"]
    _, err = fifth.communicate(timeout=300)
    assert fifth.returncode == 1 and "ended the run during the wait" in err, err
    assert [pod["state"] for pod in user.truth()["pods"]] == ["running"]
    for name in (paid, "fourth"):
        (tmp_path / f"{name}.go").touch()
    for process in (begun[paid], fourth):
        _, err = process.communicate(timeout=300)
        assert process.returncode == 0, err
    assert len(user.truth()["pods"]) == 2
