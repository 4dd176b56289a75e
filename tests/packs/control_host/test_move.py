"""Arguments about a control host that match no file or no machine, and the age of a journal's copy."""

import json
import os
import time

import pytest

from infra.errors import UsageError
from infra.ledger.journal import Journal
from infra.settings import Settings
from packs.control_host.control import archive, journal_moves, move
from packs.control_host.control.host import ControlHost
from tests.hosts import make_key
from tests.world import ROOT


@pytest.mark.parametrize("path", ["", ".", "/", "..", "../env", "var/../../env"])
def test_only_files_and_folders_can_be_pulled(path, tmp_path):
    environ = {"SLIPWAY_STATE_FILE": str(tmp_path / "journal.db"), "SLIPWAY_CONTROL": "box", "HOME": str(tmp_path)}
    with pytest.raises(UsageError, match="is not a path to copy"):
        move.pull(path, str(tmp_path / "to"), Settings.load(ROOT, environ=environ))


def test_this_machine_is_no_control_host(tmp_path):
    environ = {"SLIPWAY_STATE_FILE": str(tmp_path / "journal.db"), "SLIPWAY_CONTROL": "here", "HOME": str(tmp_path)}
    with pytest.raises(UsageError, match="the journal has not moved to a control host"):
        move.pull("var/reports", "", Settings.load(ROOT, environ=environ))


@pytest.mark.process
@pytest.mark.needs("ssh-keygen")
def test_rebuilt_journal_reports_the_age_of_its_copy(tmp_path):
    box = {"ip": "127.0.0.1", "port": 1, "user": "me", "identity_file": str(make_key(tmp_path / "key"))}
    (tmp_path / "pools.yaml").write_text(json.dumps({"box": {"user": "me", "hosts": [box]}}))
    paths = {"SLIPWAY_STATE_FILE": "journal.db", "SLIPWAY_POOLS": "pools.yaml", "SLIPWAY_STORE": "store", "HOME": "."}
    environ = {name: str(tmp_path / path) for name, path in paths.items()}
    settings = Settings.load(ROOT, environ=environ)
    with Journal.open(settings.state_file, environ) as journal:
        installation = journal.installation
    journal_moves.mark_moved(settings.state_file, "127.0.0.1:1")
    copy = ControlHost.from_settings("127.0.0.1:1", settings).copy
    copy.save(archive.pack(settings.state_file))
    os.utime(copy.path, (time.time() - 7200, time.time() - 7200))
    copy.mark_seen()  # The host answered a request, without a copy of the journal.
    told = []
    assert move.recover_lost_host(settings, told.append).host == "127.0.0.1:1"
    assert "the copy of the journal is 2 h 00 min old; runs may have started or ended since then" in told
    with Journal.open(settings.state_file, environ) as journal:
        assert journal.installation == installation
