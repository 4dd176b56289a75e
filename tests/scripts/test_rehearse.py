"""A rehearsal without possible machines is refused before any start."""

import pytest

from infra.errors import UsageError
from infra.rehearsal import attach, pods
from scripts.cli import context
from scripts.runs.rehearse import RehearseFlags, rehearse


def test_rehearsal_without_an_sshd_names_the_package_and_starts_no_world(tmp_path, monkeypatch):
    state_file = tmp_path / "journal.db"
    monkeypatch.setenv("SLIPWAY_STATE_FILE", str(state_file))
    monkeypatch.setattr(pods.shutil, "which", lambda name, **_: None)
    with pytest.raises(
        UsageError, match="needs sshd, which is not installed on this machine; run: apt install openssh-server"
    ):
        rehearse.work(RehearseFlags(profile="tiny", yes=True))
    assert not attach.worlds_folder(context.settings().state_file).exists() and not list(tmp_path.iterdir())
