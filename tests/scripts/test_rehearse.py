"""A rehearsal without possible machines is refused before any start; a dry run changes no rehearsal."""

import contextlib

import pytest

from infra.errors import UsageError
from infra.rehearsal import attach, pods
from scripts.cli import context
from scripts.runs.rehearse import RehearseFlags, rehearse
from tests.world import World

KEYS = {name: "" for name in ("RUNPOD_API_KEY", "LIUM_API_KEY", "SHADEFORM_API_KEY")}
WORK = ("--phase", "base", "--gpu", "L40S", "--num-gpus", "1")


def test_rehearsal_without_an_sshd_names_the_package_and_starts_no_world(tmp_path, monkeypatch):
    state_file = tmp_path / "journal.db"
    monkeypatch.setenv("SLIPWAY_STATE_FILE", str(state_file))
    monkeypatch.setattr(pods.shutil, "which", lambda name, **_: None)
    with pytest.raises(
        UsageError, match="needs sshd, which is not installed on this machine; run: apt install openssh-server"
    ):
        rehearse.work(RehearseFlags(profile="tiny", yes=True))
    assert not attach.worlds_folder(context.settings().state_file).exists() and not list(tmp_path.iterdir())


@pytest.fixture
def user(tmp_path):
    """Yield an installation, and end the rehearsal afterwards."""
    yield (one := World(tmp_path, KEYS))
    with contextlib.suppress(attach.NoWorld):
        attach.stop(base_of(one))


def base_of(user):
    return attach.worlds_folder(user.folder / "state" / "journal.db")


@pytest.mark.process
def test_dry_run_changes_neither_a_running_nor_an_ended_rehearsal(user):
    faults = user.folder / "faults.yaml"
    faults.write_text("preempt_at_work: 1\nbalance_usd: {lium: 1000}\n")
    market = attach.start(base_of(user), speed=60)
    made = market.folder / "made"
    made.touch()
    replaced = (("--ttl", "10m"), ("--speed", "7"), ("--speed", "7", "--faults", str(faults)))
    for more in (*replaced, (), ("--preempt", "1")):
        done = user.run("rehearse", *WORK, *more, "--dry-run")
        assert done.returncode == 0 and "dry run: nothing was started" in done.stderr, done.stderr
        assert ("would end and lose its files" in " ".join(done.stderr.split())) == (more in replaced), done.stderr
        assert attach.find(base_of(user)) == market and made.exists()
        assert market.truth()["preemptions_left"] == 0
    refused = user.run("rehearse", *WORK, "--faults", str(faults), "--dry-run")
    assert refused.returncode == 2 and "balance_usd can be set only at the start" in " ".join(refused.stderr.split())
    attach.stop(base_of(user))
    user.inv("rehearse", *WORK, "--faults", str(faults), "--dry-run")
    with pytest.raises(attach.NoWorld):
        attach.find(base_of(user))
    assert made.exists() and not user.processes()
