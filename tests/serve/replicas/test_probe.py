"""The conditions for a replica to be ready, tested with the scripted engine."""

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


def ask(engine, before=None, model="fake", asked=PROBE, requests=(probes.TOKEN,), key=""):
    async def run():
        async with aiohttp.ClientSession() as session:
            return await probe(session, engine.url, key, model, asked, before, requests)

    return asyncio.run(run())


def test_health_and_a_token_of_the_expected_model_pass(pair):
    found = ask(pair[0])
    assert found.passed and not found.why
    assert found.counters.waiting == 0 and found.counters.tokens >= 1


@pytest.mark.parametrize(
    ("key", "theirs", "why"), [("ours", "theirs", ""), ("other", "ours", "/v1/models: status 401")]
)
def test_probe_of_an_engine_with_a_key_has_our_key_and_not_the_key_of_the_file(fresh, key, theirs, why):
    (engine,) = fresh({"api_key": "ours"})
    asked = Probe(path="/v1/models", headers={"authorization": f"Bearer {theirs}"}, timeout_seconds=60)
    assert ask(engine, asked=asked, key=key).why == why


def test_different_model_or_path_fails(pair):
    assert "does not exist" in ask(pair[0], model="other").why
    assert ask(pair[0], asked=Probe(path="/nowhere")).why == "/nowhere: status 404"


@pytest.mark.parametrize("fail", ["500", "error", "cut", "garbage"])
def test_failing_engine_reports_its_reason(fresh, fail):
    (engine,) = fresh({"fail": fail})
    found = ask(engine)
    assert not found.passed and found.why.startswith("a token: ")


def test_hanging_engine_with_a_healthy_status_fails(fresh):
    (engine,) = fresh({"fail": "hang"})
    quick = Probe(path="/health", timeout_seconds=0.3)
    first = ask(engine, asked=quick)
    assert not first.passed and "no token in 0.3 s" in first.why
    # Nor later: the engine makes no tokens for other clients.
    assert not ask(engine, before=first.counters, asked=quick).passed


def test_full_engine_is_healthy_while_it_makes_tokens_for_others(fresh):
    (engine,) = fresh({"fail": "busy"})
    made = ask(engine).counters.tokens
    assert not ask(engine, before=Counters(0, made), asked=Probe(path="/health", timeout_seconds=0.3)).passed
    assert ask(engine, before=Counters(0, made - 1)).passed


def test_full_engine_may_work_on_long_prompts_for_a_while(fresh):
    """The engine reports at once a full queue: three such answers within a second are no reason for a removal."""
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


def test_careful_probe_asks_for_several_tokens_and_a_conversation(fresh):
    (engine,) = fresh({"fail": "500", "only": '"messages"'})
    assert ask(engine).passed and ask(engine, requests=probes.careful(False)).passed
    assert "status 500" in ask(engine, requests=probes.careful(True)).why
    engine.script(only='"max_tokens": 4')
    assert ask(engine).passed and not ask(engine, requests=probes.careful(None)).passed


class Probing:
    """The probes of one engine, which starts ready."""

    def __init__(self, engine):
        self.engine, self.prober = engine, Prober()

    def probe(self) -> bool:
        async def run():
            async with aiohttp.ClientSession() as session:
                target = self.engine.replica("r0")
                return await self.prober.probe(session, target, "fake", PROBE, True)

        return asyncio.run(run()).passed


def test_replica_that_answers_probes_but_fails_every_request_is_detected(fresh):
    (engine,) = fresh({})
    ill = Probing(engine)
    assert ill.probe()  # The probe learns that the model accepts conversations.
    engine.script(fail="500", only='"messages"')
    assert ill.probe() and ill.probe()
    ill.prober.record_errors(1)
    assert not ill.probe()
    ill.prober.record_errors(0)  # The gateway sends no more requests.
    assert not ill.probe()
    engine.calm()
    assert ill.probe() and not ill.prober.doubt.is_open


def test_failing_requests_alone_leave_a_replica_ready_and_are_reported_once(fresh):
    (engine,) = fresh({"fail": "500", "only": "cat**"})
    well = Probing(engine)
    assert well.probe()
    told = []
    for errors in (1, 7, 90):
        well.prober.record_errors(errors)
        before = well.prober.doubt
        assert well.probe() and not well.prober.doubt.is_open
        told.append(well.prober.doubt_message(before))
    assert "the requests cause the failures" in told[0] and told[1:] == ["", ""]


def test_model_without_conversations_is_probed_without_them(fresh):
    (engine,) = fresh({"fail": "500", "only": '"messages"'})
    plain = Probing(engine)
    assert plain.probe()
    plain.prober.record_errors(3)
    assert plain.probe()


def test_unreachable_engine_is_no_exception(fresh):
    (engine,) = fresh({})
    engine.stop()
    assert "/health: " in ask(engine).why
