"""What is asked of a control host before it is reached: words that name nothing there, and machines that are none."""

import pytest

from flows.installation import control
from infra.errors import UsageError
from infra.settings import Settings
from tests.world import ROOT


@pytest.mark.parametrize("path", ["", ".", "/", "..", "../env", "var/../../env"])
def test_only_a_file_or_a_folder_can_be_brought(path, tmp_path):
    environ = {"SLIPWAY_STATE_FILE": str(tmp_path / "journal.db"), "SLIPWAY_CONTROL": "box", "HOME": str(tmp_path)}
    with pytest.raises(UsageError, match="names nothing to bring"):
        control.pull(path, str(tmp_path / "to"), Settings.load(ROOT, environ=environ))


def test_here_is_no_control_host(tmp_path):
    environ = {"SLIPWAY_STATE_FILE": str(tmp_path / "journal.db"), "SLIPWAY_CONTROL": "here", "HOME": str(tmp_path)}
    with pytest.raises(UsageError, match="it has not moved to a control host"):
        control.pull("var/reports", "", Settings.load(ROOT, environ=environ))
