"""What several streets need."""

import shutil
from pathlib import Path

import pytest

from tests.world import World


@pytest.fixture(scope="session")
def stock(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with what base reads (text, tokenizer, tokens), for tests that are about none of it: see `World.take`.

    Made by a run, which has a work folder of its own: `inv train --prepare` works in that of the checkout.
    """
    world = World(tmp_path_factory.mktemp("stock"))
    made = world.json("launch", "--phase", "base", "--steps", "1", "--yes")["ran"]
    assert made == ["environment", "text", "tokenizer", "tokens", "base"]
    store = world.folder / "artifacts"
    for name in ("base_checkpoints", "by-fingerprint/base_checkpoints"):
        shutil.rmtree(store / name)
    return store
