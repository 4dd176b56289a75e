"""What several trials of faults need."""

import os
import subprocess

import pytest


@pytest.fixture
def disk(tmp_path):
    """A file system of 2 MB. Root writes past permission bits and quotas, so it takes a mount."""
    folder = tmp_path / "disk"
    folder.mkdir()
    if os.geteuid() != 0:
        pytest.skip("mounting needs root")
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", folder], check=True)
    yield folder
    subprocess.run(["umount", folder], check=True)
