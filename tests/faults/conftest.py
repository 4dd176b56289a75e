"""Shared fixtures of the fault trials."""

import subprocess
import time

import pytest

from tests.faults import rented
from tests.needs import PRIVILEGE, needs


@pytest.fixture
def disk(tmp_path):
    """Mount a file system of 4 MB, with room for two compiled agents.

    Root bypasses permission bits and quotas, so a mount is necessary.
    """
    folder = tmp_path / "disk"
    folder.mkdir()
    needs(PRIVILEGE)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", folder], check=True)
    yield folder
    subprocess.run(["umount", folder], check=True)


@pytest.fixture(scope="module")
def stage_of_module(tmp_path_factory):
    with rented.stage(tmp_path_factory.mktemp("stage")) as made:
        yield made


@pytest.fixture
def here(stage_of_module, monkeypatch):
    """Return a market without faults, and a clock for the whole market."""
    for name, instead in stage_of_module.clocks().items():
        monkeypatch.setattr(time, name, instead)
    stage_of_module.fault()
    yield stage_of_module
    monkeypatch.undo()
    stage_of_module.fault()
