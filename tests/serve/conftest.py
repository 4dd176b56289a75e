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
    """Two engines that work; what a test does to their scripts is undone before the next."""
    for engine in _pair:
        engine.calm()
    return _pair


@pytest.fixture
def fresh():
    """Starts engines that a test may kill."""
    started: list[Engine] = []

    def more(*scripts):
        engines = start(*scripts)
        started.extend(engines)
        return engines

    yield more
    for engine in started:
        engine.stop()
