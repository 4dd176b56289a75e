"""Fixtures for the tests of the vendors: keys, a mark, a rehearsal with a user."""

import contextlib
import os
import signal

import pytest

from infra.names import new_token
from infra.providers.by_name import open_market
from infra.providers.pod_keys import PodKeys
from infra.rehearsal import attach
from tests.hosts import until
from tests.infra.market.rehearsed import KINDS, Rehearsal
from tests.needs import needs


@pytest.fixture
def keys(tmp_path):
    return PodKeys(tmp_path / "keys")


@pytest.fixture
def token():
    return new_token("0a1b2c3d")


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    """Return a rehearsal, shared by all tests of a file."""
    needs("sshd", "ssh-keygen")
    rehearsal = Rehearsal(tmp_path_factory.mktemp("user"))
    attach.start(rehearsal.base, speed=60)
    yield rehearsal
    with contextlib.suppress(attach.NoWorld):
        attach.stop(rehearsal.base)


@pytest.fixture
def rehearsal(shared):
    """Return the rehearsal in the initial state: without faults and running machines."""
    shared.world.send_command("/faults", {})
    yield shared
    shared.world.send_command("/faults", {})
    for vendor in KINDS:
        market = open_market(vendor, shared.settings)
        for pod in market.list():
            market.delete(pod.pod_id)
    until(lambda: not shared.running(), "a world at rest")
    # A command starts a supervisor without waiting for the supervisor's lease. The supervisor would settle pods of the
    # next test.
    for pid in (supervisors := shared.supervisors()):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)
    until(lambda: not supervisors & shared.supervisors(), "the end of the supervisor")
