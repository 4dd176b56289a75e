"""A service on a machine without free file descriptors, with connections held by strangers and real processes."""

import asyncio
import contextlib
import resource
import urllib.request

import pytest

from serve.policy.replica_states import State
from tests.end_to_end.services import GUARD_S, say
from tests.serve.gateway.test_pressure import idle
from tests.world import until

pytestmark = [pytest.mark.process, pytest.mark.nightly]


@contextlib.contextmanager
def soft_limit(count: int):
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (count, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_idle_connections_and_missing_files_cost_no_controller_and_no_replica(installation):
    model = installation.model("Bosun")
    with soft_limit(1024):  # The soft limit of most systems.
        url = installation.up("demo", model, "--config", installation.config(endpoint_probe_interval_seconds=0.2))[
            "endpoint"
        ]
    controller, engines = installation.controller("demo"), installation.engines("demo")

    async def main():
        async with idle(int(url.rpartition(":")[2]), 2000):
            for _ in range(50):
                assert (await asyncio.to_thread(say, url))[0] == " Bosun Bosun Bosun"

    asyncio.run(main())

    limits = resource.prlimit(controller, resource.RLIMIT_NOFILE)
    assert limits[0] > 1024
    resource.prlimit(controller, resource.RLIMIT_NOFILE, (8, limits[1]))
    with contextlib.suppress(OSError):  # The connection is accepted later, when a file descriptor is free.
        urllib.request.urlopen(f"{url}/health", timeout=1).close()
    log = installation.folder / "services" / "demo" / "controller.log"
    # Three calls ended them.
    until(lambda: log.read_text().count("no probe: ") >= 2 * 4, "probes find no file", GUARD_S)
    resource.prlimit(controller, resource.RLIMIT_NOFILE, limits)

    assert {who for _, who in [say(url) for _ in range(10)]} == {"demo-0", "demo-1"}
    assert installation.controller("demo") == controller and installation.engines("demo") == engines
    assert [one.state for one in installation.seen("demo").members] == [State.READY] * 2
