"""The control host that a command runs on."""

import json

from infra.rehearsal import attach
from infra.settings import Settings
from packs.control_host.control.host_paths import HostPaths
from tests.world import ROOT


def test_rehearsal_on_a_control_host_runs_on_a_control_host(tmp_path):
    places = HostPaths(tmp_path)
    world = attach.worlds_folder(places.state_file) / "world-1"
    world.mkdir(parents=True)
    (world / "overlay.json").write_text(json.dumps({"SLIPWAY_STATE_FILE": str(world / attach.JOURNAL)}))
    for environ in ({"SLIPWAY_STATE_FILE": str(places.state_file)}, {attach.INSIDE: str(world)}):
        assert not HostPaths.from_settings(Settings.load(ROOT, environ=environ)).is_control_host
        places.about.touch()
        assert HostPaths.from_settings(Settings.load(ROOT, environ=environ)).is_control_host
        places.about.unlink()
