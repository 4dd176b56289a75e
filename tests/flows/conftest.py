"""Conftest of the flows: files of other users, as read by a plan, stay within the test."""

import pytest

from store.extensions import _used
from trainer.records.phase_registry import PHASES


@pytest.fixture(autouse=True)
def as_before():
    """Restore the phases and the extensions of this process after the test."""
    before, used = dict(PHASES), dict(_used)
    yield
    PHASES.clear()
    PHASES.update(before)
    _used.clear()
    _used.update(used)
