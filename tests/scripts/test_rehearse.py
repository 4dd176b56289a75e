"""A rehearsal that cannot have machines is refused before anything begins."""

import pytest

from infra.errors import UsageError
from infra.rehearsal import attach, pods
from scripts.cli import context
from scripts.runs.rehearse import RehearseFlags, rehearse


def test_without_an_sshd_it_says_what_to_install_and_begins_no_world(tmp_path, monkeypatch):
    state_file = tmp_path / "journal.db"
    monkeypatch.setenv("SLIPWAY_STATE_FILE", str(state_file))
    monkeypatch.setattr(pods.shutil, "which", lambda name, **_: None)
    with pytest.raises(
        UsageError, match="needs sshd, which is not installed on this machine; run: apt install openssh-server"
    ):
        rehearse.work(RehearseFlags(profile="tiny", yes=True))
    assert not attach.beside(context.settings().state_file).exists() and not list(tmp_path.iterdir())
