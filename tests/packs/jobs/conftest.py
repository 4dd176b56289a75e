"""Fixture that restores the phases and extensions of the process after a test, shared with the tests of flows."""

from tests.flows.conftest import as_before as as_before
