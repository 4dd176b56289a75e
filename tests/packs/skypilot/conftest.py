"""SkyPilot itself over a Slurm cluster, for the nightly tests of the pack."""

import tempfile
from pathlib import Path

import pytest

from tests.packs.skypilot.bed import bed, lacking


@pytest.fixture(scope="module")
def sky():
    if why := lacking():
        pytest.skip(why)
    with tempfile.TemporaryDirectory(prefix="bed-") as made, bed(Path(made)) as one:
        yield one
