"""Conftest of the flows: what a plan reads of other people's files stays within its test."""

import pytest

from store.extensions import _used
from trainer.records.phase_registry import PHASES


@pytest.fixture(autouse=True)
def as_before():
    """Leave this process with the phases and the extensions that it had."""
    before, used = dict(PHASES), dict(_used)
    yield
    PHASES.clear()
    PHASES.update(before)
    _used.clear()
    _used.update(used)
