"""The worlds in which phases are trained, as for the phases of the core."""

from tests.trainer.conftest import inputs as inputs
from tests.trainer.conftest import one_thread as one_thread
from tests.trainer.conftest import world as world
