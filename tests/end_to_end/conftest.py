"""What several streets need."""

from pathlib import Path

import pytest

from tests.world import World


@pytest.fixture(scope="session")
def stock(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with what base reads (text, tokenizer, tokens), for tests that are about none of it: see `World.take`."""
    folder = tmp_path_factory.mktemp("stock")
    world = World(folder, {"SLIPWAY_WORK": str(folder / "work")})  # else it would be the checkout's, which others use
    assert world.json("train", "--phase", "base", "--prepare")["ran"] == ["text", "tokenizer", "tokens"]
    return world.folder / "artifacts"
