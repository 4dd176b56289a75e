"""The conditions for a replica to be ready, against the scripted engine."""

import asyncio

import aiohttp
import pytest

from serve.replicas import probe as probes
from serve.replicas.probe import Counters, probe
from serve.replicas.prober import Prober
from serve.service import Probe
from tests.serve.scripted_engine import CHAT

pytestmark = pytest.mark.process

PROBE = Probe(path="/health", timeout_seconds=60)


def ask(engine, before=None, model="fake", asked=PROBE, requests=(probes.TOKEN,)):
    async def run():
        async with aiohttp.ClientSession() as session:
            return await probe(session, engine.url, "", model, asked, before, requests)

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
    assert not ask(engine, before=Counters(0, made), asked=Probe(path="/health", timeout_seconds=0.3)).passed
    assert ask(engine, before=Counters(0, made - 1)).passed


def test_a_full_engine_may_work_on_long_prompts_for_a_while(fresh):
    """It says at once that it is full: three such answers within a second are no reason to take it out."""
    (engine,) = fresh({"max_seqs": 1, "max_queued": 0, "first_token_s": 2.0})

    async def run():
        async with aiohttp.ClientSession() as session:
            before = await probes.counters(session, engine.url)
            long = asyncio.create_task(session.post(engine.url + CHAT, json={"stream": True, "max_tokens": 1}))
            while not engine.seen()["running"]:
                await asyncio.sleep(0.01)
            found = await probe(session, engine.url, "", "fake", PROBE, before)
            (await long).close()
            return found

    assert asyncio.run(run()).passed


def test_a_careful_probe_asks_for_more_than_one_token_and_in_a_conversation(fresh):
    (engine,) = fresh({"fail": "500", "only": '"messages"'})
    assert ask(engine).passed and ask(engine, requests=probes.careful(False)).passed
    assert "status 500" in ask(engine, requests=probes.careful(True)).why
    engine.script(only='"max_tokens": 4')
    assert ask(engine).passed and not ask(engine, requests=probes.careful(None)).passed


class Probing:
    """The probes of one engine, which begins ready."""

    def __init__(self, engine):
        self.engine, self.prober = engine, Prober()

    def probe(self) -> bool:
        async def run():
            async with aiohttp.ClientSession() as session:
                target = self.engine.replica("r0")
                return await self.prober.probe(session, target, "fake", PROBE, True)

        return asyncio.run(run()).passed


def test_a_replica_that_answers_probes_and_fails_every_real_request_is_found(fresh):
    (engine,) = fresh({})
    ill = Probing(engine)
    assert ill.probe()  # which learns that it takes conversations
    engine.script(fail="500", only='"messages"')
    assert ill.probe() and ill.probe()
    ill.prober.suspect(1)
    assert not ill.probe()
    ill.prober.suspect(0)  # it is asked for nothing any more
    assert not ill.probe()
    engine.calm()
    assert ill.probe() and not ill.prober.doubt.is_open


def test_requests_that_fail_alone_leave_a_replica_well_and_are_told_once(fresh):
    (engine,) = fresh({"fail": "500", "only": "cat**"})
    well = Probing(engine)
    assert well.probe()
    told = []
    for errors in (1, 7, 90):
        well.prober.suspect(errors)
        before = well.prober.doubt
        assert well.probe() and not well.prober.doubt.is_open
        told.append(well.prober.verdict(before))
    assert "the requests cause the failures" in told[0] and told[1:] == ["", ""]


def test_a_model_without_conversations_is_not_held_to_them(fresh):
    (engine,) = fresh({"fail": "500", "only": '"messages"'})
    plain = Probing(engine)
    assert plain.probe()
    plain.prober.suspect(3)
    assert plain.probe()


def test_nobody_there_is_no_error(fresh):
    (engine,) = fresh({})
    engine.stop()
    assert "/health: " in ask(engine).why
