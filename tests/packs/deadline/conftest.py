"""Fixtures for the training of phases, shared with the tests of the core's phases."""

from tests.trainer.conftest import inputs as inputs
from tests.trainer.conftest import one_thread as one_thread
from tests.trainer.conftest import world as world
