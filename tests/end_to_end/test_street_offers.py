"""Launches that wait for an offer, from several terminals, in a rehearsed market with one machine of a kind."""

import pytest

from infra.rehearsal import attach
from tests.end_to_end.test_street_market import KEYS, Rehearsed
from tests.world import until

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.pack("jobs"),
    pytest.mark.process,
    pytest.mark.needs("sshd", "ssh-keygen"),  # For the machines of the market.
    pytest.mark.timeout(400),  # Guard against hangs, with eight other tests at work.
]
WAITS = "waits for an offer of 1 x RTX5090: none of "


@pytest.fixture
def user(tmp_path):
    user = Rehearsed(tmp_path, KEYS)
    attach.start(user.base, speed=60)
    yield user
    user.inv("down", "--all", "--rehearse")
    user.inv("rehearse", "--stop")
    assert until(lambda: not user.processes(), "the end of everything")


def line(name: str, folder, *more: str) -> list[str]:
    """Return a launch on Lium's only RTX5090, which works until a file with the launch's name exists."""
    work = f"until [ -e {folder}/{name}.go ]; do sleep 0.1; done"
    machine = ["--provider", "lium", "--gpu", "RTX5090", "--num-gpus", "1"]
    return ["launch", *machine, "--cmd", work, "-n", name, "--spend-limit", "2", "--yes", "--rehearse", *more]


def refused(user, *words: str, code: int) -> str:
    process = user.run(*words, "--rehearse")
    err = process.stderr
    assert process.returncode == code and "Traceback" not in err, err
    return err


def test_waiting_launch_is_listed_can_be_ended_and_blocks_no_other(user, tmp_path):
    has = user.begin(*line("has", tmp_path))
    until(lambda: user.status().get("has", {}).get("state") == "running", "it has the machine")
    assert "none of " in refused(user, *line("impatient", tmp_path)[:-1], code=3)
    one, two, three = (user.begin(*line(name, tmp_path, "--wait")) for name in ("one", "two", "three"))
    pod = ("pod.create", "--provider", "lium", "--gpu", "RTX5090", "--num-gpus", "1", "--run-name", "held")
    held = user.begin(*pod, "--spend-limit", "2", "--yes", "--wait", "--rehearse")
    for name in ("one", "two", "three", "held"):
        row = until(lambda name=name: user.status().get(name), f"{name} waits")
        assert (row["state"], row["provider"]) == ("waiting", "lium") and row["note"].startswith(WAITS), row
    for verb in ("logs", "why"):
        said = refused(user, verb, "one", code=2)
        assert f"one {WAITS}" in said and "no work has started. To end the run: inv down" in said, said
    one.kill()
    one.communicate()
    until(lambda: "one" not in user.status(), "its place is free")
    for name, process in (("two", two), ("held", held)):
        assert user.json("down", name, "--rehearse")["ended"] == [name]
        _, err = process.communicate(timeout=100)
        assert process.returncode == 1 and f"{name}: inv down --rehearse ended the run during the wait" in err, err
    assert {name: row["state"] for name, row in user.status().items()} == {"has": "running", "three": "waiting"}
    for name, process in (("has", has), ("three", three)):  # The machine is free after the first run.
        (tmp_path / f"{name}.go").touch()
        _, err = process.communicate(timeout=300)
        assert process.returncode == 0, err
    assert len(user.truth()["pods"]) == 2
    (row,) = (row for row in user.json("status", "--rehearse") if row["run"] == "three")
    assert row["state"] == "succeeded"
    four = user.begin(*line("four", tmp_path, "--max-price", "0.1", "--wait"))
    until(lambda: user.status().get("four", {}).get("state") == "waiting", "the fourth waits")
    assert user.json("down", "--all", "--rehearse")["ended"] == ["four"]
    _, err = four.communicate(timeout=100)
    assert four.returncode == 1 and "inv down --rehearse ended the run during the wait" in err, err
