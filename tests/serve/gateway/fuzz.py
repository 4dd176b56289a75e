"""Bytes for the gateway's port, mostly no HTTP: the traffic of an open port on the internet."""

import json
import random
from collections.abc import Callable

from tests.serve.scripted_engine import ASK, CHAT, chat

Case = Callable[[random.Random], bytes]
METHODS = (b"GET", b"POST", b"PUT", b"HEAD", b"OPTIONS", b"CONNECT", b"TRACE", b"PRI", b"\x00", b"get", b"")
PATHS = (CHAT.encode(), b"/health", b"/metrics", b"/v1/models", b"/", b"*", b"/v1/../fake/seen", b"/%2e%2e/%00", b"//x")
VERSIONS = (b"HTTP/1.1", b"HTTP/1.0", b"HTTP/2.0", b"HTTP/9.9", b"HTTP", b"")
HEADERS = (
    b"Content-Length: 5",
    b"Content-Length: -1",
    b"Content-Length: 99999999999999999999",
    b"Content-Length: 5\r\nContent-Length: 6",
    b"Transfer-Encoding: chunked",
    b"Transfer-Encoding: chunked\r\nContent-Length: 3",
    b"Transfer-Encoding: gzip, chunked",
    b"Transfer-Encoding: identity\r\nTransfer-Encoding: chunked",
    b"Content-Encoding: gzip",
    b"Content-Type: application/json",
    b"Host: localhost",
    b"Origin: https://elsewhere.example",
    b"Expect: 100-continue",
    b"Connection: Upgrade\r\nUpgrade: websocket",
    b"Connection: keep-alive, close",
    b"Authorization: Bearer " + b"x" * 5000,
    b"Authorization: \xff\xfe",
    b"X-Request-Id: a\x00b",
    b"X-Request-Id: " + b"y" * 300,
    b"Host: \r\n folded",
    b": empty",
    b"no colon",
    b"A" * 9000 + b": b",
)
VALUES = (None, True, -1, 0, 1, 2**63, 1e308, "", "x" * 3000, [], {}, [[]], {"a": None}, "\ud83d\ude00", "\x00")
KEYS = (
    "messages",
    "max_tokens",
    "n",
    "stream",
    "stop",
    "guided_regex",
    "model",
    "logprobs",
    "prompt",
    "response_format",
)


def noise(chance: random.Random) -> bytes:
    return chance.randbytes(chance.randrange(1, 400))


def headers(chance: random.Random) -> bytes:
    """Return a request line and headers with inconsistent parts, followed by more bytes."""
    lines = [b" ".join((chance.choice(METHODS), chance.choice(PATHS), chance.choice(VERSIONS)))]
    lines += [b"Host: localhost", *chance.sample(HEADERS, chance.randrange(0, 4))]
    if chance.random() < 0.05:
        lines += [b"X-%d: 1" % number for number in range(200)]
    return (
        b"\r\n".join(lines)
        + b"\r\n\r\n"
        + chance.choice((b"", b"{}", b"5\r\nhello\r\n0\r\n\r\n", b"zz\r\n", noise(chance)))
    )


def bodies(chance: random.Random) -> bytes:
    """Return a valid request with JSON of any shape."""
    said = chat()
    for _ in range(chance.randrange(1, 5)):
        said[chance.choice(KEYS)] = chance.choice(VALUES)
    body = json.dumps(said).encode()
    kind = chance.random()
    if kind < 0.2:
        body = body[: chance.randrange(len(body))]
    elif kind < 0.3:
        body = b"[" * chance.randrange(1, 5000)
    elif kind < 0.4:
        body = b'{"messages":' + b"[" * 3000 + b"]" * 3000 + b"}"
    elif kind < 0.5:
        cut = chance.randrange(len(body))
        body = body[:cut] + chance.randbytes(3) + body[cut:]
    elif kind < 0.55:
        body = b'{"messages":[1],"max_tokens":' + b"9" * 5000 + b"}"
    length = len(body) + chance.choice((0, 0, 0, 0, -1, 7))
    return ASK + b"Content-Length: %d\r\n\r\n" % max(0, length) + body


def chunks(chance: random.Random) -> bytes:
    sizes = (b"5", b"0005", b"-5", b"FFFFFFFFFFFFFFFFF", b"5;x=" + b"y" * 200, b"", b"0x5", b" 5")
    body = b"".join(chance.choice(sizes) + b"\r\nhello\r\n" for _ in range(chance.randrange(1, 6)))
    return ASK + b"Transfer-Encoding: chunked\r\n\r\n" + body + b"0\r\n\r\n"


def pipeline(chance: random.Random) -> bytes:
    return b"".join(chance.choice((headers, bodies, chunks, noise))(chance) for _ in range(chance.randrange(2, 12)))


def cut_request(chance: random.Random) -> bytes:
    """Return a valid request, cut at an arbitrary byte."""
    body = json.dumps(chat(stream=chance.random() < 0.5)).encode()
    whole = ASK + b"Content-Length: %d\r\n\r\n" % len(body) + body
    return whole[: chance.randrange(len(whole) + 1)]


CASES: tuple[Case, ...] = (noise, headers, bodies, chunks, pipeline, cut_request)
