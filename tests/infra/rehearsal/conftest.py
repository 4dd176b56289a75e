import pytest

from tests.infra.rehearsal import worlds


@pytest.fixture(scope="module")
def shared_world(tmp_path_factory):
    with worlds.world(tmp_path_factory.mktemp("world")) as running:
        yield running


@pytest.fixture
def world(shared_world):
    """Yield a market without faults; no process survives the test."""
    shared_world.fault()
    shared_world.violations.clear()
    yield shared_world
    assert shared_world.violations == []
    shared_world.fault()
    for pod in shared_world.truth()["pods"]:
        if pod["state"] not in ("deleting", "gone"):
            shared_world.delete(pod["vendor"], pod["id"])
    shared_world.move(60)
    worlds.until(lambda: {pod["state"] for pod in shared_world.truth()["pods"]} <= {"gone"}, "a world at rest")
    truth = shared_world.truth()
    assert (truth["running"], truth["billing"], truth["micro_usd_per_hour"], truth["problems"]) == (0, 0, 0, [])
