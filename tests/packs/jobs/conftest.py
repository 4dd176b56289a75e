"""The fixture by which a test leaves the phases and extensions of its process as they were, as for the flows."""

from tests.flows.conftest import as_before as as_before
