"""The gateway from the clients' side, with working engines."""

import asyncio
import json
import signal
import subprocess
from dataclasses import replace

import aiohttp
import pytest

from infra.errors import UsageError
from serve.gateway import keys
from serve.gateway.http.limits import GatewayLimits
from serve.gateway.keys import Keys
from serve.gateway.server import Gateway
from tests.serve.scripted_engine import CHAT, GUARD_S, chat, gateway, port_of, program, until

pytestmark = pytest.mark.process


def run(main):
    return asyncio.run(main())


def test_answers_come_from_all_replicas_with_the_replica_name(pair):
    async def main():
        async with gateway(*pair) as front:
            seen = set()
            for _ in range(20):
                async with front.ask() as reply:
                    said = await reply.json()
                    seen.add((reply.headers["X-Slipway-Replica"], said["choices"][0]["message"]["content"]))
            assert seen == {("r0", "AAA"), ("r1", "BBB")}
            async with front.ask("/v1/completions", messages=None, prompt="Once", max_tokens=2) as reply:
                assert (await reply.json())["choices"][0]["text"] in ("AA", "BB")

    run(main)


def test_model_list_contains_no_folder(pair):
    async def main():
        async with gateway(*pair) as front, front.session.get(f"{front.url}/v1/models") as reply:
            text = await reply.text()
            assert "/models/" not in text and json.loads(text)["data"][0]["id"] == "fake"

    run(main)


@pytest.mark.parametrize(
    "path", ["/invocations", "/collective_rpc", "/tokenize", "/pause", "/fake/seen", "/v1/../pause"]
)
def test_unlisted_route_does_not_exist(pair, path):
    async def main():
        async with gateway(*pair) as front, front.ask(path) as reply:
            assert reply.status == 404 and "reached" not in await reply.text()

    run(main)


def test_route_accepts_only_its_own_method(pair):
    async def main():
        async with gateway(*pair) as front:
            async with front.session.get(front.url + CHAT) as reply:
                assert reply.status == 405 and reply.headers["Allow"] == "POST"
            async with front.session.post(f"{front.url}/v1/models") as reply:
                assert reply.status == 405 and reply.headers["Allow"] == "GET, HEAD"

    run(main)


def test_monitor_asks_for_the_head_of_the_model_list(pair):
    async def main():
        async with gateway(*pair) as front:
            async with front.session.get(f"{front.url}/v1/models") as reply:
                length = reply.headers["Content-Length"]
            async with front.session.head(f"{front.url}/v1/models") as reply:
                assert reply.status == 200 and reply.headers["Content-Length"] == length
                assert await reply.read() == b""
            async with front.session.head(front.url + CHAT) as reply:
                assert reply.status == 405

    run(main)


def test_key_admits_a_client_and_is_not_forwarded(pair, tmp_path):
    (ada, line), (_, other) = keys.make("ada"), keys.make("bob")
    path = tmp_path / "keys"
    path.write_text(f"# who may ask\n{line}\n{other}\n")
    path.chmod(0o600)
    assert ada not in path.read_text()

    async def main():
        async with gateway(*pair, keys=keys.load(path), log=tmp_path / "log") as front:
            for said in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": ada}):
                async with front.session.post(front.url + CHAT, json=chat(), headers=said) as reply:
                    assert reply.status == 401
                    assert (await reply.json())["error"]["type"] == "AuthenticationError"
            async with front.session.get(f"{front.url}/metrics") as reply:
                assert reply.status == 401
            async with front.session.get(f"{front.url}/health") as reply:
                assert reply.status == 200
            front.gateway.replace([pair[0].replica("r0", key="the engine's own")])
            pair[0].script(api_key="the engine's own")
            said = {"Authorization": f"Bearer {ada}", "Cookie": "a=b", "X-Request-Id": "mine-1"}
            async with front.session.post(front.url + CHAT, json=chat(), headers=said) as reply:
                assert reply.status == 200 and reply.headers["X-Request-Id"] == "mine-1"
            arrived = pair[0].seen()["headers"]
            assert arrived["authorization"] == "Bearer the engine's own"
            assert "cookie" not in arrived and arrived["x-request-id"] == "mine-1"

    run(main)
    lines = [json.loads(one) for one in (tmp_path / "log").read_text().splitlines()]
    assert [one["status"] for one in lines] == [401, 401, 401, 200]
    assert (lines[-1]["key"], lines[-1]["id"]) == ("ada", "mine-1")
    assert "Who are you" not in (tmp_path / "log").read_text() and ada not in (tmp_path / "log").read_text()


def test_gateway_without_a_key_does_not_listen_on_a_public_address():
    async def main():
        await Gateway(GatewayLimits(), Keys({})).start("0.0.0.0", 0)

    with pytest.raises(UsageError, match="no API key"):
        asyncio.run(main())


def test_engine_keys_survive_a_controller_and_a_damaged_file_is_replaced(tmp_path):
    path = tmp_path / "service" / "engine-seed"
    first = keys.seed(path)
    assert keys.seed(path) == first and path.stat().st_mode & 0o777 == 0o600
    assert keys.engine_key(first, "demo-0") == keys.engine_key(first, "demo-0") != keys.engine_key(first, "demo-1")
    path.write_text(path.read_text()[:-1])
    assert keys.seed(path) != first and keys.seed(path) == keys.seed(path)


def test_key_file_writable_by_others_is_refused(tmp_path):
    path = tmp_path / "keys"
    path.write_text(keys.make("ada")[1])
    path.chmod(0o666)
    with pytest.raises(UsageError, match="chmod 600"):
        keys.load(path)


@pytest.mark.parametrize(
    ("status", "said"),
    [
        (400, {"max_tokens": 5000}),
        (400, {"max_tokens": 0}),
        (400, {"max_tokens": "many"}),
        (400, {"max_completion_tokens": True}),
        (400, {"n": 17}),
        (400, {"n": 10**30}),
        (400, {"stream": "yes"}),
        (400, {"messages": []}),
        (400, {"logprobs": 1000}),
        (400, {"stop": ["x"] * 17}),
        (400, {"tools": json.loads("[" * 70 + "]" * 70)}),
        (413, {"guided_regex": "(a+)+" * 4000}),
        (413, {"response_format": {"type": "json_schema", "json_schema": {"x": "y" * 20000}}}),
        (413, {"messages": [{"role": "user", "content": "x" * 70000}]}),
    ],
)
def test_excessive_work_never_reaches_an_engine(pair, status, said):
    async def main():
        before = [one.seen()["requests"] for one in pair]
        async with gateway(*pair, max_body_bytes=65536, max_tokens=4096) as front, front.ask(**said) as reply:
            assert (reply.status, (await reply.json())["error"]["code"]) == (status, status)
        assert [one.seen()["requests"] for one in pair] == before

    run(main)


def test_stream_flag_is_interpreted_like_the_engine(pair):
    async def main():
        async with gateway(*pair) as front:
            for stream, kind in ((1, "text/event-stream"), (0, "application/json")):
                async with front.ask(stream=stream) as reply:
                    assert (reply.status, reply.content_type) == (200, kind)

    run(main)


def test_number_of_prompts_times_answers_is_bounded(pair):
    async def main():
        async with gateway(*pair) as front:
            for prompt, n, status in ([["a"] * 4, 4, 200], [["a"] * 4, 5, 400], [list(range(100)), 16, 200]):
                async with front.ask("/v1/completions", messages=None, prompt=prompt, n=n) as reply:
                    assert reply.status == status

    run(main)


def test_body_without_a_length_is_bounded_too(pair):
    async def endless():
        for _ in range(100):
            yield b" " * 4096

    async def main():
        said = {"Content-Type": "application/json"}
        async with (
            gateway(*pair, max_body_bytes=65536) as front,
            front.session.post(front.url + CHAT, data=endless(), headers=said) as reply,
        ):
            assert reply.status == 413

    run(main)


def test_stream_arrives_during_its_generation(pair):
    async def main():
        async with gateway(pair[0]) as front:
            pair[0].script(fail="hang", after_tokens=2, times=1)  # The rest never arrives.
            async with front.ask(stream=True, max_tokens=5) as reply:
                assert reply.headers["Content-Type"].startswith("text/event-stream")
                words = []
                while words.count("A") < 2:
                    line = await reply.content.readline()
                    if line.startswith(b"data: {"):
                        words += [json.loads(line[6:])["choices"][0]["delta"]["content"]]
                assert pair[0].seen()["running"] == 1
            await until(lambda: not pair[0].seen()["running"], "the engine stops when its client leaves")
            async with front.ask(stream=True) as reply:
                text = await reply.text()
            assert text.count("data: {") == 4 and text.endswith("data: [DONE]\n\n")
            assert await front.metric("requests_total", code="499") == 1
            assert await front.metric("time_to_first_token_seconds_count") == 2

    run(main)


@pytest.mark.parametrize("stream", [False, True])
def test_work_of_a_disconnected_client_is_cancelled(pair, stream):
    async def main():
        pair[0].script(first_token_s=600)
        before = pair[0].seen()["aborted"]
        async with gateway(pair[0]) as front:
            asking = asyncio.ensure_future(front.session.post(front.url + CHAT, json=chat(stream=stream)))
            await until(lambda: pair[0].seen()["running"], "the engine works")
            asking.cancel()
            await until(lambda: not pair[0].seen()["running"], "the engine stops")
            assert pair[0].seen()["aborted"] == before + 1
            await until(lambda: front.gateway._proxy.in_flight == 0, "it is counted off")
            assert await front.metric("requests_total", code="499") == 1
            assert await front.metric("replica_failures_total") == 0

    run(main)


def test_internal_error_is_answered_and_logged(pair, monkeypatch, caplog):
    async def main():
        async with gateway(*pair) as front:
            monkeypatch.setattr(front.gateway.turns, "assign", None)
            async with front.ask() as reply:
                assert reply.status == 500 and (await reply.json())["error"]["type"] == "InternalServerError"

    run(main)
    assert "TypeError" in caplog.text


def test_request_without_capacity_waits_in_a_bounded_queue(pair):
    async def main():
        pair[0].script(fail="hang", times=1)
        limits = {"max_in_flight_per_replica": 1, "max_queued": 1, "queue_s": GUARD_S}
        async with gateway(pair[0], **limits) as front:
            first = asyncio.ensure_future(front.session.post(front.url + CHAT, json=chat()))
            await until(lambda: pair[0].seen()["running"], "the first runs")
            second = asyncio.ensure_future(front.session.post(front.url + CHAT, json=chat()))
            await until(lambda: front.gateway.turns.waiting, "the second waits")
            async with front.ask() as third:
                assert (third.status, third.headers["Retry-After"]) == (429, "1")
            first.cancel()
            assert (await second).status == 200
            assert await front.metric("queue_seconds_count") == 2

    run(main)


def test_request_that_waits_too_long_is_refused(pair):
    async def main():
        pair[0].script(first_token_s=600)
        async with gateway(pair[0], max_in_flight_per_replica=1, queue_s=0.1) as front:
            first = asyncio.ensure_future(front.session.post(front.url + CHAT, json=chat()))
            await until(lambda: pair[0].seen()["running"], "the first runs")
            async with front.ask() as second:
                assert second.status == 503 and "no replica had room" in await second.text()
            first.cancel()

    run(main)


def test_key_gets_only_its_share_of_the_capacity(pair):
    (ada, line), (bob, other) = keys.make("ada"), keys.make("bob")
    known = Keys(dict(one.split() for one in (line, other)))

    async def main():
        pair[0].script(first_token_s=600, times=0)
        async with gateway(pair[0], keys=known, key=ada, max_in_flight_per_key=1) as front:
            first = asyncio.ensure_future(front.session.post(front.url + CHAT, json=chat()))
            await until(lambda: pair[0].seen()["running"], "the first runs")
            async with front.ask() as second:
                assert second.status == 429
            pair[0].script(first_token_s=0)
            said = {"Authorization": f"Bearer {bob}"}
            async with front.session.post(front.url + CHAT, json=chat(), headers=said) as third:
                assert third.status == 200
            first.cancel()

    run(main)


def test_service_without_a_replica_refuses_unless_it_may_hold(pair):
    async def main():
        async with gateway() as front:
            async with front.ask() as reply:
                assert (reply.status, reply.headers["Retry-After"]) == (503, "5")
            async with front.session.get(f"{front.url}/health") as reply:
                assert reply.status == 503
        async with gateway(hold_s=GUARD_S) as front:
            async with front.session.get(f"{front.url}/health") as reply:
                assert (reply.status, (await reply.json())["status"]) == (200, "asleep")
            asking = asyncio.ensure_future(front.session.post(front.url + CHAT, json=chat()))
            await until(lambda: front.gateway.turns.waiting, "it is held")
            # The request that wakes the service.
            assert front.gateway.metrics.arrivals.per_second(front.gateway.turns.clock()) > 0
            front.gateway.replace([pair[1].replica("r7")])
            assert (await asking).headers["X-Slipway-Replica"] == "r7"

    run(main)


def test_new_limits_apply_from_the_next_request(pair):
    async def main():
        async with gateway(*pair) as front:

            async def asked() -> set[str]:
                found = set()
                for _ in range(4):
                    async with front.ask() as reply:
                        found.add(reply.headers["X-Slipway-Replica"])
                return found

            assert len(await asked()) == 2
            front.gateway.set_limits(replace(front.gateway.limits, affinity_chars=100))
            assert len(await asked()) == 1
            for one in pair:
                one.script(fail="hang")
            front.gateway.set_limits(replace(front.gateway.limits, first_byte_s=0.05, tries=1))
            async with front.ask(stream=True) as reply:  # Without the limit the request would wait for a minute.
                assert reply.status == 502
            front.gateway.replace([])
            front.gateway.set_limits(replace(front.gateway.limits, hold_s=0.05))
            async with front.ask() as reply:
                assert reply.status == 503 and "within 0.05 s" in await reply.text()

    run(main)


def test_removed_replica_finishes_its_requests(pair):
    async def main():
        pair[0].script(fail="hang", after_tokens=1, times=1)
        async with gateway(pair[0]) as front:
            leaving = next(iter(front.gateway.turns.fleet.slots))
            async with front.ask(stream=True) as reply:
                await reply.content.readline()
                front.gateway.replace([pair[1].replica("r1")])
                assert front.gateway.in_flight(leaving) == 1
                for _ in range(3):
                    async with front.ask() as other:
                        assert other.headers["X-Slipway-Replica"] == "r1"
                assert await front.metric("in_flight", replica="r0") == 1
            await until(lambda: front.gateway.in_flight(leaving) == 0, "it has finished")
            assert await front.metric("in_flight", replica="r1") == 0
            front.gateway.replace([pair[1].replica("r2")])
            # The metrics of the replica were removed with the replica.
            assert await front.metric("requests_total", replica="r0") == 0
            assert await front.metric("replicas") == 1

    run(main)


def test_metrics_add_up(pair):
    async def main():
        async with gateway(*pair) as front:
            for _ in range(6):
                async with front.ask(stream=True) as reply:
                    await reply.read()
            async with front.ask(model="other") as reply:
                assert reply.status == 404 and "does not exist" in await reply.text()
            assert await front.metric("requests_total", code="200") == 6
            assert await front.metric("requests_total", code="404") == 1
            assert [await front.metric("requests_total", replica=f"r{one}") for one in (0, 1)] in ([3, 4], [4, 3])
            assert await front.metric("request_seconds_count", route="chat") == 7
            assert await front.metric("arrivals_per_second") == pytest.approx(7 / 60)
            assert await front.metric("replica_qps") == pytest.approx(7 / 60)
            assert await front.metric("replica_failures_total") == 0

    run(main)


def test_unwritable_log_is_counted_and_ends_no_request(pair, tmp_path):
    async def main():
        async with gateway(pair[0], log=tmp_path / "later" / "log") as front:
            for number in (1, 2):
                async with front.ask() as reply:
                    assert reply.status == 200
                assert await front.metric("access_log_lost_total") == number
            (tmp_path / "later").mkdir()
            async with front.ask() as reply:
                assert reply.status == 200
        assert len((tmp_path / "later" / "log").read_text().splitlines()) == 1

    run(main)


@pytest.mark.needs("curl")
def test_curl_with_a_large_body_and_expect_100_is_answered(pair):
    async def main():
        async with gateway(pair[0]) as front:
            body = json.dumps(chat(messages=[{"role": "user", "content": "x" * (2 << 20)}]))
            words = (
                "-sS",
                "-H",
                "Content-Type: application/json",
                "-H",
                "Expect: 100-continue",
                "--expect100-timeout",
                "30",
                "--data-binary",
                "@-",
            )
            curl = await asyncio.create_subprocess_exec(
                "curl", *words, front.url + CHAT, stdin=subprocess.PIPE, stdout=subprocess.PIPE
            )
            out, _ = await asyncio.wait_for(curl.communicate(body.encode()), GUARD_S)
            assert json.loads(out)["choices"][0]["message"]["content"] == "AAA"

    run(main)


def test_gateway_reads_replicas_from_its_file_and_exits_without_losing_a_stream(pair, tmp_path):
    path = tmp_path / "gateway.json"
    setup = {"replicas": [{"replica_id": "a", "url": pair[0].url}], "limits": {"slow_start_s": 0.001}}
    path.write_text(json.dumps(setup))
    process = program("serve.gateway", str(path), stderr=subprocess.PIPE)
    try:
        url = f"http://127.0.0.1:{port_of(process)}"

        async def main():
            async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(GUARD_S)) as session:

                async def replica():
                    async with session.post(url + CHAT, json=chat()) as reply:
                        return reply.headers["X-Slipway-Replica"]

                assert await replica() == "a"
                path.write_text("{")
                process.send_signal(signal.SIGHUP)
                assert "truncated" in await asyncio.to_thread(process.stderr.readline)
                assert await replica() == "a"
                setup["replicas"] = [{"replica_id": "b", "url": pair[1].url}]
                path.write_text(json.dumps(setup))
                process.send_signal(signal.SIGHUP)
                while await replica() != "b":
                    await asyncio.sleep(0.01)
                pair[1].script(token_s=0.05)
                async with session.post(url + CHAT, json=chat(stream=True, max_tokens=20)) as reply:
                    await reply.content.readline()
                    process.send_signal(signal.SIGTERM)
                    assert (await reply.text()).endswith("data: [DONE]\n\n")
            assert await asyncio.to_thread(process.wait, GUARD_S) == 0

        run(main)
    finally:
        process.kill()
        process.wait(GUARD_S)
        process.stdout.close()
        process.stderr.close()
