"""The gateway from the clients' side, with engines that fail in separate ways."""

import asyncio
import contextlib
import hashlib
import json
import signal

import aiohttp
import pytest

from serve import loops
from serve.gateway.http.connections import Home, Line
from serve.gateway.http.wire import HELD_BYTES
from serve.gateway.keys import Keys
from serve.gateway.routing import STALLED, Target
from tests.faults.trial import rounds
from tests.serve.scripted_engine import CHAT, GUARD_S, chat, gateway, until

pytestmark = pytest.mark.process

KINDS = ("cut", "error", "500", "503", "busy", "garbage", "die")


def run(main):
    """Run on uvloop, as in production; the clients' tests run on Python's own loop."""
    loops.run(main())


@pytest.mark.day_cases(4)
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("fail", KINDS)
def test_request_without_a_first_byte_is_retried_on_a_second_replica(pair, fresh, fail, stream):
    async def main():
        (ill,) = fresh({"fail": fail, "words": ["X"]})
        async with gateway(ill, pair[0], eject_after=3, eject_s=600) as front:
            for _ in range(10):
                async with front.ask(stream=stream) as reply:
                    assert (reply.status, reply.headers["X-Slipway-Replica"]) == (200, "r1")
                    assert '"A' in await reply.text()
            failed = await front.metric("replica_failures_total", replica="r0")
            # A full engine is not ill; any other is asked three times and then no more.
            assert failed == (0 if fail == "busy" else 3)
            assert await front.metric("replicas_ejected") == (0 if fail == "busy" else 1)
            assert await front.metric("retries_total") == (5 if fail == "busy" else 3)

    run(main)


def test_stopping_engine_answers_500_to_new_requests_and_finishes_the_old(pair, fresh):
    async def main():
        (old,) = fresh({"shutdown_s": GUARD_S, "token_s": 0.05, "words": ["X"]})
        async with gateway(old) as front:
            async with front.ask(stream=True, max_tokens=20) as reply:
                await reply.content.readline()
                old.signal(signal.SIGTERM)
                front.add(pair[0], "r1")
                for _ in range(10):
                    async with front.ask() as other:
                        assert (other.status, other.headers["X-Slipway-Replica"]) == (200, "r1")
                assert (await reply.text()).endswith("data: [DONE]\n\n")
            await asyncio.to_thread(old.process.wait, GUARD_S)

    run(main)


@pytest.mark.parametrize("fail", ["die", "cut"])
def test_engine_death_mid_stream_is_reported_to_the_client(pair, fresh, fail):
    async def main():
        (ill,) = fresh({"fail": fail, "after_tokens": 2, "held": True})
        async with gateway(ill) as front:
            before = pair[0].seen()["requests"]
            async with front.ask(stream=True, max_tokens=5) as reply:
                front.add(pair[0], "r1")
                said = b""
                with pytest.raises(aiohttp.ClientPayloadError):  # No last chunk.
                    async for part in reply.content.iter_any():
                        if not said:
                            ill.let_go()
                        said += part
            events = [line[6:] for line in said.splitlines() if line.startswith(b"data: ")]
            assert json.loads(events[-1])["error"]["code"] == 502 and b"[DONE]" not in said
            assert pair[0].seen()["requests"] == before  # No other replica was asked for the rest.
            assert await front.metric("replica_failures_total", replica="r0") == 1

    run(main)


def test_error_in_a_stream_that_ends_normally_is_a_failure(fresh):
    async def main():
        (ill,) = fresh({"fail": "error", "after_tokens": 2, "held": True})
        async with gateway(ill, eject_after=1) as front:
            async with front.ask(stream=True, max_tokens=5) as reply:
                await reply.content.readline()
                ill.let_go()
                text = await reply.text()
            assert text.count('"error"') == 1 and text.endswith("data: [DONE]\n\n")
            assert await front.metric("requests_total", code="200") == 1
            assert await front.metric("replica_failures_total") == 1
            assert await front.metric("replicas_ejected") == 0  # The controller asks the engine itself.

    run(main)


BAD = {"role": "user", "content": "poison"}


@pytest.mark.parametrize("fail", ["500", "503", "cut", "garbage"])
def test_request_that_fails_everywhere_is_blamed_on_no_replica(pair, fail):
    async def main():
        for one in pair:
            one.script(fail=fail, only="poison")
        async with gateway(*pair, eject_after=2, eject_s=600, retry_floor=1000) as front:
            replicas = set()
            for _ in range(3):
                for _ in range(4):
                    async with front.ask(messages=[BAD]) as reply:
                        assert reply.status in (500, 502, 503)
                assert await front.metric("replicas_ejected") == 0
                for _ in range(2):
                    async with front.ask() as reply:
                        assert reply.status == 200
                        replicas.add(reply.headers["X-Slipway-Replica"])
            assert replicas == {"r0", "r1"}
            assert await front.metric("replica_failures_total") == 24

    run(main)


def test_failures_of_one_client_do_not_use_up_the_retries_of_others(pair, fresh):
    async def main():
        (ill,) = fresh({"fail": "cut"})
        pair[0].script(fail="500", only="poison")
        secrets = {"ann": "ann has 16 letters", "bob": "bob has 16 letters"}
        keys = Keys({name: hashlib.sha256(key.encode()).hexdigest() for name, key in secrets.items()})
        async with gateway(ill, pair[0], keys=keys, retry_floor=2, retry_ratio=0.0, eject_after=100) as front:
            for name, said, codes in (("ann", chat(messages=[BAD]), {500, 502}), ("bob", chat(), {200})):
                for _ in range(4):
                    asking = {"json": said, "headers": {"Authorization": f"Bearer {secrets[name]}"}}
                    async with front.session.post(front.url + CHAT, **asking) as reply:
                        assert reply.status in codes

    run(main)


def test_one_closed_port_fails_no_request(pair, fresh):
    """Such a try has reached no engine, so no saved retry is needed."""

    async def main():
        (gone,) = fresh({})
        gone.stop()
        async with gateway(gone, pair[0], retry_floor=1, retry_ratio=0.0, eject_after=100) as front:
            for _ in range(20):
                async with front.ask() as reply:
                    assert (reply.status, reply.headers["X-Slipway-Replica"]) == (200, "r1")

    run(main)


def test_hanging_engine_is_avoided_and_returns_when_it_works(pair):
    async def main():
        pair[0].script(fail="hang", times=2)  # /health is 200 all the while.
        async with gateway(*pair, first_byte_s=0.15, eject_after=2, eject_s=0.3) as front:
            seen = []
            while seen[-3:].count("r0") < 2:
                async with front.ask(stream=True) as reply:
                    assert reply.status == 200 and (await reply.text()).endswith("[DONE]\n\n")
                    seen.append(reply.headers["X-Slipway-Replica"])
                await asyncio.sleep(0.01)
            assert await front.metric("replica_failures_total", replica="r0") == 2
            assert await front.metric("replicas_ejected") == 0
            await until(lambda: not pair[0].seen()["running"], "what hung was ended")

    run(main)


def test_frozen_engine_does_not_slow_down_the_others(pair, fresh):
    """Row 28: requests to the engine wait for their first byte; all others go elsewhere meanwhile."""

    async def main():
        (ill,) = fresh({})
        async with gateway(ill, *pair, first_byte_s=600, stall_s=0.1) as front:
            ill.signal(signal.SIGSTOP)
            stuck = [asyncio.ensure_future(front.session.post(front.url + CHAT, json=chat(stream=True)))]
            await until(lambda: front.gateway.turns.fleet._turn, "one is on its way")
            while await front.metric("in_flight", replica="r0") == 0:
                stuck.append(asyncio.ensure_future(front.session.post(front.url + CHAT, json=chat(stream=True))))
                await asyncio.sleep(0.01)
            slot = next(iter(front.gateway.turns.fleet.slots.values()))
            turns = front.gateway.turns
            await until(lambda: slot.load(turns.clock(), turns.limits) > STALLED, "it is stalled")
            held = slot.in_flight
            for _ in range(50):
                async with front.ask() as reply:
                    assert reply.status == 200 and reply.headers["X-Slipway-Replica"] in ("r1", "r2")
            assert slot.in_flight == held
            ill.signal(signal.SIGCONT)
            for one in stuck:
                assert (await one).status == 200

    run(main)


def test_silence_in_the_middle_of_a_stream_has_a_limit(pair):
    async def main():
        pair[0].script(fail="hang", after_tokens=2, times=1)
        async with gateway(pair[0], idle_s=0.2) as front:
            async with front.ask(stream=True) as reply:
                said = b""
                with pytest.raises(aiohttp.ClientPayloadError):
                    async for part in reply.content.iter_any():
                        said += part
            assert b'"code":502' in said
            assert await front.metric("replica_failures_total") == 1
            await until(lambda: not pair[0].seen()["running"], "the engine stops")

    run(main)


@pytest.mark.parametrize("stream", [False, True])
def test_no_request_exceeds_the_total_timeout(pair, stream):
    async def main():
        pair[0].script(first_token_s=0.02, token_s=0.02)
        async with gateway(pair[0], total_s=0.3) as front:
            async with front.ask(stream=stream, max_tokens=4000) as reply:
                if stream:
                    with pytest.raises(aiohttp.ClientPayloadError):
                        await reply.read()
                else:
                    assert reply.status == 504
            await until(lambda: not pair[0].seen()["running"], "the engine stops")

    run(main)


def test_failing_fleet_does_not_get_three_tries_for_every_request(pair):
    async def main():
        for one in pair:
            one.script(fail="500")
        before = sum(one.seen()["requests"] for one in pair)
        async with gateway(*pair, retry_floor=5, retry_ratio=0.1) as front:
            for _ in range(40):
                async with front.ask() as reply:
                    assert reply.status == 500 and "EngineCore" in await reply.text()  # The engine's own error.
            assert sum(one.seen()["requests"] for one in pair) - before in range(45, 50)
            for one in pair:  # All are out, so being out has no effect.
                one.calm()
            async with front.ask() as reply:
                assert reply.status == 200

    run(main)


def test_closed_port_is_a_failed_try(pair, fresh):
    async def main():
        (gone,) = fresh({})
        gone.stop()
        async with gateway(gone, pair[0]) as front:
            for _ in range(4):
                async with front.ask() as reply:
                    assert reply.status == 200
        async with gateway(gone) as front, front.ask() as reply:
            assert reply.status == 502 and "no replica gave an answer" in await reply.text()

    run(main)


def test_engine_with_a_wrong_key_is_not_a_client_error(pair):
    async def main():
        pair[0].script(api_key="other")
        async with gateway(*pair) as front:
            for _ in range(4):
                async with front.ask() as reply:
                    assert (reply.status, reply.headers["X-Slipway-Replica"]) == (200, "r1")

    run(main)


def test_idle_connections_closed_by_an_engine_cost_no_request(pair, fresh):
    """A pooled connection that is reset at its next use is a try like any other."""

    async def main():
        (one,) = fresh({})
        async with gateway(one, pair[0]) as front:
            for _ in range(4):
                async with front.ask() as reply:
                    assert reply.status == 200
            one.stop()
            for _ in range(6):
                async with front.ask() as reply:
                    assert (reply.status, reply.headers["X-Slipway-Replica"]) == (200, "r1")

    run(main)


@contextlib.asynccontextmanager
async def scripted_server(answer):
    """Yield the address of an engine that handles each connection with `answer`, once a request begins."""

    async def serve(reader, writer):
        try:
            await reader.readuntil(b"\r\n\r\n")
            await answer(reader, writer)
        except ConnectionError:
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()


@pytest.mark.parametrize(
    "begin", [b"X: ", b"Content-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n7\r\ndata: 1\r\n1;"]
)
def test_engine_that_sends_endless_headers_is_cut_off(begin):
    async def main():
        was_cut = asyncio.get_running_loop().create_future()

        async def answer(reader, writer):
            try:
                writer.write(b"HTTP/1.1 200 OK\r\n" + begin)
                for _ in range(1000):
                    writer.write(b"x" * 65536)
                    await writer.drain()
                was_cut.set_result(False)
            except ConnectionError:
                was_cut.set_result(True)

        async with scripted_server(answer) as url, gateway() as front:
            front.gateway.replace([Target(replica_id="r0", url=url)])
            with contextlib.suppress(aiohttp.ClientPayloadError):
                async with front.ask(stream=True) as reply:
                    await reply.text()
            assert await asyncio.wait_for(was_cut, GUARD_S)
            assert await front.metric("replica_failures_total", replica="r0") == 1

    run(main)


def test_informational_responses_do_not_frame_the_answer():
    async def answer(reader, writer):
        writer.write(b"HTTP/1.1 103 Early Hints\r\nContent-Length: 0\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n{}")  # To the end of the connection.

    async def main():
        async with scripted_server(answer) as url, gateway() as front:
            front.gateway.replace([Target(replica_id="r0", url=url)])
            async with front.ask() as reply:
                assert (reply.status, await reply.text()) == (200, "{}")

    run(main)


def test_request_that_an_engine_does_not_read_is_cancelled_with_its_client(monkeypatch):
    """Cancel such requests, or each would hold a body until the engine dies."""
    lost, connection_lost = [], Line.connection_lost
    monkeypatch.setattr(Line, "connection_lost", lambda self, why: (lost.append(self), connection_lost(self, why)))

    async def main():
        ended = asyncio.Event()

        async def answer(reader, writer):
            reader._transport.pause_reading()
            await ended.wait()

        async with scripted_server(answer) as url, gateway(total_s=0.3) as front:
            front.gateway.replace([Target(replica_id="r0", url=url)])
            async with front.ask(messages=[{"role": "user", "content": "x" * (7 << 20)}]) as reply:
                assert reply.status == 504
            await until(lambda: lost, "the connection is gone")
            ended.set()

    run(main)


def test_interrupted_connection_is_not_reused():
    """All of an answer had arrived unread: the client disconnected."""

    async def main():
        async def answer(reader, writer):
            await reader.read()

        async with scripted_server(answer) as url:
            home = Home(url)
            for size, is_kept in ((HELD_BYTES, True), (HELD_BYTES + 1, False)):
                line = await home.connect()
                reply = line.send_request(b"GET / HTTP/1.1\r\n\r\n", home)
                line.data_received(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % size + b"x" * size)
                assert reply.is_whole
                reply.close()
                assert (home.idle() is line) == is_kept
                line.close()

    run(main)


@rounds(3, 60)
def test_clients_and_replicas_that_come_and_go_leave_no_count_behind(pair, rounds):
    """Row of the issue: in-flight counters under churn, with real connections; `gateway` checks them at the end."""

    async def main():
        for one in pair:
            one.script(token_s=0.003)
        async with gateway(*pair, max_in_flight_per_replica=8, max_queued=64) as front:
            codes: list[int] = []

            async def ask(asking) -> int:
                async with front.session.post(front.url + CHAT, json=asking) as reply:
                    await reply.read()
                    return reply.status

            async def client(number: int) -> None:
                asking = chat(stream=number % 2 == 0, max_tokens=1 + number % 7)
                try:
                    limit_s = 0.005 * (1 + number % 9) if number % 3 else GUARD_S
                    codes.append(await asyncio.wait_for(ask(asking), limit_s))
                except asyncio.TimeoutError:
                    codes.append(0)

            for turn in range(rounds):
                clients = [asyncio.ensure_future(client(turn * 40 + number)) for number in range(40)]
                for step in range(4):
                    await asyncio.sleep(0.005)
                    live = [one.replica(f"t{turn}.{step}.{name}") for name, one in enumerate(pair)]
                    front.gateway.replace(live[step % 2 :])
                await asyncio.gather(*clients)
            assert set(codes) <= {0, 200} and codes.count(200) > rounds * 10

    run(main)
