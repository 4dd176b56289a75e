"""A service whose machine has no files left, and whose connections strangers hold: real processes, as people type."""

import asyncio
import contextlib
import resource
import urllib.request

import pytest

from serve.policy.replica_states import State
from tests.end_to_end.services import GUARD_S, say
from tests.serve.gateway.test_pressure import idle
from tests.world import until

pytestmark = pytest.mark.process


@contextlib.contextmanager
def soft_limit(count: int):
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (count, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


@pytest.mark.nightly
def test_neither_idle_connections_nor_a_want_of_files_cost_a_service_its_controller_or_a_replica(place):
    model = place.model("Bosun")
    with soft_limit(1024):  # as most systems have it
        url = place.up("demo", model, "--config", place.config(endpoint_probe_interval_seconds=0.2))["endpoint"]
    controller, engines = place.controller("demo"), place.engines("demo")

    async def main():
        async with idle(int(url.rpartition(":")[2]), 2000):
            for _ in range(50):
                assert (await asyncio.to_thread(say, url))[0] == " Bosun Bosun Bosun"

    asyncio.run(main())

    limits = resource.prlimit(controller, resource.RLIMIT_NOFILE)
    assert limits[0] > 1024
    resource.prlimit(controller, resource.RLIMIT_NOFILE, (8, limits[1]))
    with contextlib.suppress(OSError):  # it is taken later, when there is a file for it
        urllib.request.urlopen(f"{url}/health", timeout=1).close()
    log = place.folder / "services" / "demo" / "controller.log"
    until(lambda: log.read_text().count("no probe: ") >= 2 * 4, "probes find no file", GUARD_S)  # three ended them
    resource.prlimit(controller, resource.RLIMIT_NOFILE, limits)

    assert {who for _, who in [say(url) for _ in range(10)]} == {"demo-0", "demo-1"}
    assert place.controller("demo") == controller and place.engines("demo") == engines
    assert [one.state for one in place.seen("demo").members] == [State.READY] * 2
