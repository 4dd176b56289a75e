"""Fixtures for several end-to-end tests."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.end_to_end.services import GUARD_S, Installation
from tests.once import made_once
from tests.world import ONE_THREAD, World, until


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a store with a trained base model and its inputs (text, tokenizer, tokens) for `World.take`.

    Tests of other features begin with a copy of the store. The run has a separate work folder, because
    `inv train --prepare` works in the work folder of the checkout.
    """

    def make(draft: Path) -> Path:
        world = World(draft, dict(ONE_THREAD))
        made = world.json("launch", "--phase", "base", "--yes")["ran"]
        assert made == ["environment", "text", "tokenizer", "tokens", "base"]
        return world.folder / "artifacts"

    return made_once(tmp_path_factory, "trained", make)


@pytest.fixture(scope="session")
def stock(trained: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the store without the model: a launch of base starts training at once."""
    store = tmp_path_factory.mktemp("stock") / "artifacts"
    shutil.copytree(trained, store)
    for name in ("base_checkpoints", "by-fingerprint/base_checkpoints"):
        shutil.rmtree(store / name)
    return store


@pytest.fixture
def installation(tmp_path: Path) -> Iterator[Installation]:
    """Yield an installation, and end every process of the services afterwards."""
    world = World(tmp_path)
    yield Installation(world, tmp_path)
    world.inv("serve.down", "--all")
    # A supervisor releases the lease before a normal exit, so wait for the exit of every process.
    until(lambda: not world.processes(), "their end", GUARD_S)
