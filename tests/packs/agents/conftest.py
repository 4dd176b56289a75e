"""The installation of an owner, with a rehearsed market."""

import pytest

from infra.agent.environments import cache_folder
from tests.world import World


@pytest.fixture
def world(tmp_path):
    one = World(tmp_path, {"SLIPWAY_ENVIRONMENTS": str(cache_folder.default_cache())})
    yield one
    one.inv("down", "--all", "--rehearse")
    one.inv("rehearse", "--stop")
