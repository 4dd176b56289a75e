"""Fixtures that several end-to-end tests need."""

import fcntl
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.end_to_end.services import GUARD_S, Place
from tests.world import ONE_THREAD, World, until


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with a base model and what it has read (text, tokenizer, tokens): see `World.take`.

    It is for tests that are about none of it. The first worker that asks makes it for all of them, by a run, which has
    a work folder of its own: `inv train --prepare` works in that of the checkout.
    """
    own = tmp_path_factory.getbasetemp()
    shared = own.parent if "PYTEST_XDIST_WORKER" in os.environ else own
    store = shared / "trained"
    with (shared / "trained.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not store.exists():
            world = World(tmp_path_factory.mktemp("making"), dict(ONE_THREAD))
            made = world.json("launch", "--phase", "base", "--yes")["ran"]
            assert made == ["environment", "text", "tokenizer", "tokens", "base"]
            (world.folder / "artifacts").rename(store)
    return store


@pytest.fixture(scope="session")
def stock(trained: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same without the model: a launch of base begins to train at once."""
    store = tmp_path_factory.mktemp("stock") / "artifacts"
    shutil.copytree(trained, store)
    for name in ("base_checkpoints", "by-fingerprint/base_checkpoints"):
        shutil.rmtree(store / name)
    return store


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    """An installation, and the end of all that its services were."""
    world = World(tmp_path)
    yield Place(world, tmp_path)
    world.inv("serve.down", "--all")
    # A supervisor that leaves by itself gives its lease up first: nobody can wait for the rest of it.
    until(lambda: not world.processes(), "their end", GUARD_S)
