import pytest

from tests.serve.scripted_engine import Engine, start


@pytest.fixture(scope="session")
def _pair():
    engines = start({"words": ["A"]}, {"words": ["B"]})
    yield engines
    for engine in engines:
        engine.stop()


@pytest.fixture
def pair(_pair) -> list[Engine]:
    """Return two working engines; reset the scripts of both after the test."""
    for engine in _pair:
        engine.calm()
    return _pair


@pytest.fixture
def fresh():
    """Return a function that starts engines for a test to kill."""
    started: list[Engine] = []

    def more(*scripts):
        engines = start(*scripts)
        started.extend(engines)
        return engines

    yield more
    for engine in started:
        engine.stop()
