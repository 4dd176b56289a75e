"""The conditions for a replica to be ready, against the scripted engine."""

import asyncio

import aiohttp
import pytest

from serve.replicas.probe import Counters, probe
from serve.service import Probe

pytestmark = pytest.mark.process

PROBE = Probe(path="/health", timeout_seconds=60)


def ask(engine, before=None, model="fake", asked=PROBE):
    async def run():
        async with aiohttp.ClientSession() as session:
            return await probe(session, engine.url, "", model, asked, before)

    return asyncio.run(run())


def test_health_and_a_token_of_the_expected_model_pass(pair):
    found = ask(pair[0])
    assert found.passed and not found.why
    assert found.counters.waiting == 0 and found.counters.tokens >= 1


def test_another_model_and_another_path_do_not(pair):
    assert "does not exist" in ask(pair[0], model="other").why
    assert ask(pair[0], asked=Probe(path="/nowhere")).why == "/nowhere: status 404"


@pytest.mark.parametrize("fail", ["500", "error", "cut", "garbage"])
def test_an_engine_that_fails_says_why(fresh, fail):
    (engine,) = fresh({"fail": fail})
    found = ask(engine)
    assert not found.passed and found.why.startswith("a token: ")


def test_an_engine_that_hangs_with_a_health_of_200_does_not_pass(fresh):
    (engine,) = fresh({"fail": "hang"})
    quick = Probe(path="/health", timeout_seconds=0.3)
    first = ask(engine, asked=quick)
    assert not first.passed and "no token in 0.3 s" in first.why
    assert not ask(engine, before=first.counters, asked=quick).passed  # nor later: it makes none for others


def test_a_full_engine_is_well_as_long_as_it_makes_tokens_for_others(fresh):
    (engine,) = fresh({"fail": "busy"})
    made = ask(engine).counters.tokens
    assert not ask(engine, before=Counters(0, made)).passed
    assert ask(engine, before=Counters(0, made - 1)).passed


def test_nobody_there_is_no_error(fresh):
    (engine,) = fresh({})
    engine.stop()
    assert "/health: " in ask(engine).why
