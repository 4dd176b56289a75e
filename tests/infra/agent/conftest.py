from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.infra.agent.world import World


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """Yield a pod folder; no process of the pod survives the test."""
    pod = World(tmp_path)
    yield pod
    pod.end()
