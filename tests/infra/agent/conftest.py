from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.infra.agent.world import World


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """A pod folder, and the certainty that nothing of it is left running."""
    pod = World(tmp_path)
    yield pod
    pod.end()
