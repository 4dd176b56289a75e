"""Bundles of kernels in buckets and on the hub, through the real clients."""

from dataclasses import replace

import pytest

from packs.kernels.trainer.stored_bundles import ARCHIVE, FOLDER, KernelStore
from store.artifacts.artifacts import Store
from store.backends.backend import open_place
from tests.packs.kernels.test_bundles import COMPILE_S, FACTS, FILES, KEY, found
from tests.store.conftest import away_uri as away_uri
from tests.store.conftest import google as google
from tests.store.conftest import hub as hub
from tests.store.conftest import no_keys as no_keys
from tests.store.conftest import s3 as s3
from tests.store.conftest import s3_server as s3_server

pytestmark = [pytest.mark.nightly, pytest.mark.process]


def test_kernels_of_a_remote_store_are_found_until_the_bundle_is_changed_or_removed(away_uri):
    said: list[str] = []
    space = KernelStore(uri=away_uri, key=KEY, facts=FACTS, say=said.append)
    assert found(space) == {} and said == []
    space.publish(FILES, COMPILE_S, "a machine")
    assert found(space) == FILES and found(replace(space, key=b"o" * 32)) == {}
    kept = Store(away_uri).list_all()[1][0]
    assert kept.name.startswith(f"{FOLDER}/{space.name}-")
    open_place(away_uri).put({f"{kept.name}/{ARCHIVE}": b"of an attacker with the right to write"})
    assert found(space) == {} and "another digest" in said[-1]
    Store(away_uri).remove(kept.name)
    assert found(space) == {}
