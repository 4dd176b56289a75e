"""Fixtures that several trials of faults need."""

import subprocess
import time

import pytest

from tests.faults import rented
from tests.needs import PRIVILEGE, needs


@pytest.fixture
def disk(tmp_path):
    """A file system of 2 MB. Root writes past permission bits and quotas, so it takes a mount."""
    folder = tmp_path / "disk"
    folder.mkdir()
    needs(PRIVILEGE)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", folder], check=True)
    yield folder
    subprocess.run(["umount", folder], check=True)


@pytest.fixture(scope="module")
def stage_of_module(tmp_path_factory):
    with rented.stage(tmp_path_factory.mktemp("stage")) as made:
        yield made


@pytest.fixture
def here(stage_of_module, monkeypatch):
    """A market without faults, and a clock for all that is moved with it."""
    for name, instead in stage_of_module.clocks().items():
        monkeypatch.setattr(time, name, instead)
    stage_of_module.fault()
    yield stage_of_module
    monkeypatch.undo()
    stage_of_module.fault()
