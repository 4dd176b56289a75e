import pytest

from infra.names import new_token
from infra.providers.pod_keys import PodKeys


@pytest.fixture
def keys(tmp_path):
    return PodKeys(tmp_path / "keys")


@pytest.fixture
def token():
    return new_token("0a1b2c3d")
