"""Connections of clients: unusual requests, unread answers, and incomplete requests."""

import asyncio
import json
import socket

import pytest

from serve.gateway.http.wire import HELD_BYTES
from tests.serve.scripted_engine import ASK, GUARD_S, HEALTH, chat, gateway, until

pytestmark = pytest.mark.process


def run(main):
    return asyncio.run(main())


async def connected(front):
    host, port = front.url.removeprefix("http://").split(":")
    return await asyncio.open_connection(host, int(port))


def test_unread_answers_stay_in_the_engine(pair):
    tokens = 20_000  # About 44 MB of events: more than the kernel buffers for two connections.

    async def main():
        pair[0].script(max_model_len=tokens, words=["A" * 2000])
        before = pair[0].seen()["tokens"]
        async with gateway(pair[0], max_tokens=None) as front:
            host, port = front.url.removeprefix("http://").split(":")
            reader, writer = await asyncio.open_connection(host, int(port), limit=4096)
            body = json.dumps(chat(stream=True, max_tokens=tokens)).encode()
            writer.write(ASK + b"Content-Length: %d\r\n\r\n" % len(body) + body)
            steady = [0]
            while len(set(steady[-6:])) > 1 or not steady[-1]:
                await asyncio.sleep(0.1)
                steady.append(pair[0].seen()["tokens"] - before)
            assert steady[-1] < tokens * 0.9  # The rest waits in the engine.
            size = 0
            while not (chunk := await reader.read(65536)).endswith(b"0\r\n\r\n"):
                assert chunk
                size += len(chunk)
            assert size > tokens * 2000 and pair[0].seen()["tokens"] - before == tokens
            writer.close()

    run(main)


def test_client_that_reads_no_answer_is_disconnected(pair):
    async def main():
        pair[0].script(max_model_len=60_000, words=["A" * 2000])
        async with gateway(pair[0], max_tokens=None, client_idle_s=0.3) as front:
            host, port = front.url.removeprefix("http://").split(":")
            _, writer = await asyncio.open_connection(host, int(port), limit=1024)
            body = json.dumps(chat(stream=True, max_tokens=60_000)).encode()
            writer.write(ASK + b"Content-Length: %d\r\n\r\n" % len(body) + body)
            await until(lambda: pair[0].seen()["running"], "it runs")
            await until(lambda: not pair[0].seen()["running"], "it is cut off")
            assert await front.metric("replica_failures_total") == 0
            writer.close()

    run(main)


def test_missing_body_times_out(pair):
    async def main():
        async with gateway(*pair, client_idle_s=0.2) as front:
            reader, writer = await connected(front)
            writer.write(ASK + b"Content-Length: 10\r\n\r\n{")
            assert (await reader.readline()).startswith(b"HTTP/1.1 408")
            writer.close()

    run(main)


def test_missing_headers_time_out(pair):
    async def main():
        async with gateway(*pair, keepalive_s=0.2) as front:
            reader, writer = await connected(front)
            writer.write(b"POST /v1/chat")
            assert await asyncio.wait_for(reader.read(), GUARD_S) == b""
            writer.close()

    run(main)


def post(version: bytes = b"1.1", headers: bytes = b"", **said) -> bytes:
    body = json.dumps(chat(**said)).encode()
    head = ASK.replace(b"HTTP/1.1", b"HTTP/" + version)
    return b"%b%bContent-Length: %d\r\n\r\n%b" % (head, headers, len(body), body)


async def raw(front, *parts: bytes) -> bytes:
    """Return all bytes of a connection until the gateway's close."""
    reader, writer = await connected(front)
    for part in parts:
        writer.write(part)
        await writer.drain()
    said = await asyncio.wait_for(reader.read(), GUARD_S)
    writer.close()
    return said


def test_pipelined_requests_are_answered_in_order(pair):
    async def main():
        async with gateway(*pair) as front:
            ahead = [post(headers=b"X-Request-Id: n%d\r\n" % number) for number in range(40)]
            said = await raw(front, b"".join(ahead), post(headers=b"X-Request-Id: last\r\nConnection: close\r\n"))
            heads = [line.split()[1] for line in said.splitlines() if line.startswith(b"X-Request-Id")]
            assert heads == [b"n%d" % number for number in range(40)] + [b"last"]
            assert said.count(b"HTTP/1.1 200 OK") == 41

    run(main)


def test_pipelined_requests_beyond_the_buffer_are_all_answered(pair):
    async def main():
        async with gateway(*pair) as front:
            ahead = (HEALTH + b"\r\n") * 3000
            said = await raw(front, ahead, HEALTH + b"Connection: close\r\n\r\n")
            assert said.count(b"HTTP/1.1 200 OK") == 3001

    run(main)


def test_pipelined_requests_in_small_pieces_are_paused_too(pair):
    few = (HEALTH + b"\r\n") * 50

    async def main():
        async with gateway(hold_s=GUARD_S) as front:
            reader, writer = await connected(front)
            writer.write(post())  # The request waits for a replica.
            await until(lambda: front.gateway.turns.waiting, "it waits")
            (line,) = front.gateway._listener.connections
            pieces = 0
            while not line.is_reading_paused and pieces < 200:
                writer.write(few)
                pieces += 1
                await asyncio.sleep(0.001)
            assert line.is_reading_paused and len(line._pending) < 1000
            writer.write(HEALTH + b"Connection: close\r\n\r\n")
            front.add(pair[0], "r0")
            said = await asyncio.wait_for(reader.read(), GUARD_S)
            assert said.count(b"HTTP/1.1 200 OK") == 1 + 50 * pieces + 1
            writer.close()

    run(main)


def test_large_unwanted_body_does_not_delay_the_next_request(pair):
    async def main():
        async with gateway(hold_s=GUARD_S, keepalive_s=2) as front:
            reader, writer = await connected(front)
            writer.write(post())
            await until(lambda: front.gateway.turns.waiting, "it waits")
            (line,) = front.gateway._listener.connections
            writer.write(
                b"POST /v1/nothing HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % (HELD_BYTES + 9)
            )
            writer.write(b"x" * (HELD_BYTES - 9))
            await until(lambda: line._incoming is not None and line._incoming._held == HELD_BYTES - 9, "most is here")
            writer.write(b"x" * 18)  # With this piece the body is whole, and exceeds the held bytes.
            await until(lambda: line.is_reading_paused, "no more is received")
            writer.write(HEALTH + b"Connection: close\r\n\r\n")
            front.add(pair[0], "r0")
            said = await asyncio.wait_for(reader.read(), GUARD_S)
            assert [part.split()[0] for part in said.split(b"HTTP/1.1 ")[1:]] == [b"200", b"404", b"200"]
            writer.close()

    run(main)


@pytest.mark.parametrize("last", [b"", HEALTH + b"Connection: close\r\n\r\n"])
def test_pipelining_client_that_reads_no_answer_is_disconnected(pair, last):
    """Disconnect the client also during the close of a connection with unread answers."""

    async def main():
        async with gateway(pair[0], keepalive_s=0.3) as front:
            host, port = front.url.removeprefix("http://").split(":")
            client = socket.socket()
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.connect((host, int(port)))
            await until(lambda: front.gateway._listener.connections, "it is connected")
            (line,) = front.gateway._listener.connections
            line.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
            if last:
                while not line.transport.get_write_buffer_size():
                    client.sendall(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n")
                    await asyncio.sleep(0.001)
                client.sendall(last)
            else:
                client.sendall(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n" * 500)  # About 2 MB of answers.
                await until(lambda: line.is_slow, "more than it takes")
                assert line.transport.get_write_buffer_size() < 200_000
            await until(lambda: not front.gateway._listener.connections, "it is gone")
            client.close()

    run(main)


@pytest.mark.parametrize("headers", [b"", b"Connection: keep-alive\r\n", b"Proxy-Connection: keep-alive\r\n"])
def test_http_1_0_client_gets_a_stream_that_ends_with_its_connection(pair, headers):
    async def main():
        async with gateway(*pair, keepalive_s=2) as front:
            head, _, body = (await raw(front, post(b"1.0", headers, stream=True))).partition(b"\r\n\r\n")
            assert b"chunked" not in head and b"Connection: close" in head
            assert body.startswith(b"data: {") and body.endswith(b"data: [DONE]\n\n")

    run(main)


def test_protocol_upgrade_is_answered_in_http_1_1_and_closed(pair):
    upgrade = b"Connection: Upgrade\r\nUpgrade: websocket\r\n"

    async def main():
        async with gateway(*pair) as front:
            said = await raw(
                front, b"GET /v1/realtime HTTP/1.1\r\nHost: localhost\r\n" + upgrade + b"\r\n\x81\x05hello"
            )
            assert said.startswith(b"HTTP/1.1 404") and said.count(b"HTTP/1.1") == 1
            said = await raw(front, b"HEAD /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            assert said.startswith(b"HTTP/1.1 200") and said.endswith(b"\r\n\r\n")

    run(main)


def test_http_2_offer_of_java_costs_neither_body_nor_connection(pair):
    offer = ASK + b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\n"
    body = json.dumps(chat()).encode()
    counted = b"Content-Length: %d\r\n\r\n%b" % (len(body), body)
    chunked = b"Transfer-Encoding: chunked\r\n\r\n%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)

    async def main():
        async with gateway(*pair) as front:
            asked = (offer + counted) * 2 + (offer + chunked) * 2
            last = HEALTH + b"Connection: close\r\n\r\n"
            for cut in (0, len(offer) - 1, len(offer) + 30, 1000):
                said = await raw(front, asked[:cut], asked[cut:] + last)
                assert said.count(b"HTTP/1.1 200 OK") == 5 and said.count(b"Connection: close") == 1

    run(main)


@pytest.mark.parametrize(
    ("sent", "metric"),
    [
        (b"GET /health HTTP/1.1\r\nX: ", "nonsense_total"),
        (b"GET /health HTTP/1.1\r\n", "nonsense_total"),
        (ASK + b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n", "requests_total"),
    ],
)
def test_endless_headers_and_trailers_are_bounded(pair, sent, metric):
    async def main():
        async with gateway(*pair) as front:
            _, writer = await connected(front)
            await until(lambda: front.gateway._listener.connections, "it is there")
            writer.write(sent)
            more = b"y" * 999 if sent.endswith(b"X: ") else b"y: %b\r\n" % (b"y" * 994)
            for _ in range(64):
                writer.write(more)
            await until(lambda: not front.gateway._listener.connections, "it is sent away")
            writer.close()
            assert await front.metric(metric) == 1

    run(main)


def test_headers_are_counted_once_and_stripped(pair):
    async def main():
        async with gateway(pair[0]) as front:
            body = json.dumps(chat()).encode()
            asked = ASK + b"Connection: close\r\n"
            asked += b"X-Request-Id: \t first \t\r\nX-Request-Id: second\r\nAccept: a\r\nAccept: b\r\n"
            asked += b"Content-Encoding: identity \r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)
            said = await raw(front, asked)
            assert said.startswith(b"HTTP/1.1 200") and b"X-Request-Id: first\r\n" in said
            headers = pair[0].seen()["headers"]
            assert (headers["x-request-id"], headers["accept"]) == ("first", "a")

    run(main)


def test_malformed_body_is_refused_at_once(pair):
    async def main():
        async with gateway(*pair) as front:
            head = ASK + b"Transfer-Encoding: chunked\r\n\r\n5\r\n[1,2,\r\n"
            reader, writer = await connected(front)
            writer.write(head)
            await until(lambda: front.gateway._proxy.in_flight == 1, "it is being read")
            writer.write(b"no size\r\n")
            said = await asyncio.wait_for(reader.read(), GUARD_S)
            writer.close()
            assert said.startswith(b"HTTP/1.1 400") and b"the body is malformed" in said
            assert pair[0].seen()["running"] == pair[1].seen()["running"] == 0

    run(main)


LENGTH = b"Content-Length: 2\r\n\r\n{}"
CHUNKS = b"\r\n\r\n2\r\n{}\r\n0\r\n\r\n"


@pytest.mark.parametrize(
    ("status", "sent"),
    [
        (400, b"POST /v1/chat/completions HTTP/1.1\r\nContent-Type: application/json\r\n" + LENGTH),
        (400, b"GET /health HTTP/1.1\r\n\r\n"),
        (400, ASK + b"Host: localhost\r\n" + LENGTH),
        (400, ASK + b"Host: elsewhere.example\r\n" + LENGTH),
        (400, ASK + b"hOST:\r\n" + LENGTH),
        (400, b"GET /health HTTP/1.1\r\nHost: a b\r\n\r\n"),
        (400, b"GET /health HTTP/1.1\r\nHost: localhost/x\r\n\r\n"),
        (400, b"GET /health HTTP/1.1\r\nHost: user@localhost\r\n\r\n"),
        (400, b"GET /health HTTP/1.1\r\nHost: localhost:port\r\n\r\n"),
        (400, b"GET /health HTTP/1.0\r\nHost: localhost\r\nHost: localhost\r\n\r\n"),
        (505, ASK.replace(b"/1.1", b"/2.0") + LENGTH),
        (505, ASK.replace(b"/1.1", b"/2.0") + b"Connection: keep-alive\r\n" + LENGTH),
        (505, b"GET /health HTTP/0.9\r\nHost: localhost\r\n\r\n"),
        (501, ASK + b"Transfer-Encoding: identity, chunked" + CHUNKS),
        (501, ASK + b"Transfer-Encoding: gzip, chunked" + CHUNKS),
        (400, ASK + b"Transfer-Encoding: identity\r\nTransfer-Encoding: chunked" + CHUNKS),
        (400, ASK + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: identity" + CHUNKS),
        (400, ASK + b"Transfer-Encoding: chunked, chunked" + CHUNKS),
        (400, ASK + b"Transfer-Encoding: chunked, identity" + CHUNKS),
        (400, ASK + b"Transfer-Encoding: identity" + CHUNKS),
        (400, ASK + b"Transfer-Encoding: chunked\r\nContent-Length: 2" + CHUNKS),
        (400, ASK.replace(b"/1.1", b"/1.0") + b"Transfer-Encoding: chunked" + CHUNKS),
    ],
)
def test_ambiguous_request_is_refused_and_later_bytes_are_not_served(pair, status, sent):
    async def main():
        before = pair[0].seen()["requests"]
        async with gateway(pair[0]) as front:
            said = await raw(front, HEALTH + b"\r\n" + sent + post(headers=b"Connection: close\r\n"))
            assert [part[:3] for part in said.split(b"HTTP/1.1 ")[1:]] == [b"200", b"%d" % status]
            assert b"Connection: close" in said
        assert pair[0].seen()["requests"] == before

    run(main)


@pytest.mark.parametrize(
    "sent",
    [
        b"GET /health HTTP/1.0\r\nHost: localhost\r\n\r\n",
        b"GET /health HTTP/1.1\r\nHost: LocalHost:80\r\nConnection: close\r\n\r\n",
        b"GET /health HTTP/1.1\r\nHost: [::1]:8000\r\nConnection: close\r\n\r\n",
        b"GET http://localhost/health HTTP/1.1\r\nHost: elsewhere.example\r\nConnection: close\r\n\r\n",
        ASK + b"Transfer-Encoding: CHUNKED\r\nConnection: close\r\n\r\n2F\r\n"
        b'{"messages": [{"role": "user", "content": "a"}]\r\n1\r\n}\r\n0\r\n\r\n',
    ],
)
def test_valid_request_of_the_rfc_is_served(pair, sent):
    async def main():
        async with gateway(*pair) as front:
            assert (await raw(front, sent)).startswith(b"HTTP/1.1 200")

    run(main)
