"""Probe of a replica: the request from the service file, and a token from the expected model.

`probe` takes the address of an engine and returns a Probed; the only exception is OSError when this machine lacks the
resources to ask, which says nothing about the engine. A `/health` of 200 is not enough, since a hanging engine still
answers 200. A late token is not enough for a failure either: an engine with a long queue is healthy while the token
counter grows. A careful probe, for a replica in doubt, asks for several tokens, and for a chat answer if the engine has
given a chat answer before.
"""

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import aiohttp
import msgspec

from infra.agent.shortage import is_shortage
from serve.service import Probe

METRICS_S = 5.0
MOST_BYTES = 8 << 20  # limit of an answer
LOOK_S = 0.25  # interval between reads of a full engine's counters
WAITING = ("vllm:num_requests_waiting", "vllm:num_requests_waiting_total")
TOKENS = "vllm:generation_tokens_total"
RUNNING = "vllm:num_requests_running"


@dataclass(frozen=True)
class Counters:
    """Counters of an engine at /metrics; None = not reported."""

    waiting: float | None = None
    tokens: float | None = None
    running: float | None = None


@dataclass(frozen=True)
class ProbeResult:
    passed: bool
    why: str = ""
    """Reason for a failure."""
    counters: Counters = Counters()


@dataclass(frozen=True)
class ProbeRequest:
    """Request of a probe, without the model."""

    path: str
    said: Mapping[str, Any]


TOKEN = ProbeRequest("/v1/completions", {"prompt": "1", "max_tokens": 1, "temperature": 0})
FEW_TOKENS = ProbeRequest("/v1/completions", {"prompt": "1", "max_tokens": 4, "temperature": 0})
CHAT = ProbeRequest(
    "/v1/chat/completions", {"messages": [{"role": "user", "content": "1"}], "max_tokens": 4, "temperature": 0}
)


async def probe(
    session: aiohttp.ClientSession,
    url: str,
    key: str,
    model: str,
    asked: Probe,
    before: Counters | None,
    requests: Sequence[ProbeRequest] = (TOKEN,),
) -> ProbeResult:
    """Probe an engine once.

    `before`: counters of the last probe of a replica that was ready then; None = not ready so far.
    """
    headers = _headers(key)
    limit = aiohttp.ClientTimeout(asked.timeout_seconds)
    try:
        # Our key comes before the key of the file, which is for the engine of a different server.
        said = {name: one for name, one in asked.headers.items() if not (key and name.lower() == "authorization")}
        await _path(session, url, {**headers, **said}, asked, limit)
    except asyncio.TimeoutError:
        return ProbeResult(False, f"{asked.path}: no answer in {asked.timeout_seconds:g} s")
    except (aiohttp.ClientError, OSError, _Wrong) as error:
        if is_shortage(error):
            raise
        return ProbeResult(False, f"{asked.path}: {str(error) or type(error).__name__}")
    look_s, why = 0.0, ""
    try:
        for request in requests:
            await _token(session, url, headers, model, request, limit)
    except asyncio.TimeoutError:
        why = f"no token in {asked.timeout_seconds:g} s"
    except _Busy:  # a full engine says so at once, even during prompts that take seconds
        look_s, why = asked.timeout_seconds, "it is full"
    except (aiohttp.ClientError, OSError, _Wrong) as error:
        if is_shortage(error):
            raise
        return ProbeResult(False, f"a token: {str(error) or type(error).__name__}")
    found = await _counters_within(session, url, before, look_s)
    if why and before is not None and before.tokens is not None and found.tokens is not None:
        if found.tokens > before.tokens:
            return ProbeResult(True, counters=found)
        why += ", and makes no tokens for other requests"
    return ProbeResult(not why, why, found)


def careful(chats: bool | None) -> tuple[ProbeRequest, ...]:
    """Return the requests of a careful probe. `chats`: True if the engine has answered a chat request."""
    return (FEW_TOKENS, CHAT) if chats else (FEW_TOKENS,)


async def answers(
    session: aiohttp.ClientSession, url: str, key: str, model: str, asked: Probe, request: ProbeRequest
) -> bool:
    """Return whether an engine answers a request; not every model accepts chat requests."""
    try:
        await _token(session, url, _headers(key), model, request, aiohttp.ClientTimeout(asked.timeout_seconds))
    except (asyncio.TimeoutError, aiohttp.ClientError, OSError, _Wrong, _Busy):
        return False
    return True


class _Wrong(Exception):
    pass


class _Busy(Exception):
    pass


async def body_of(reply: aiohttp.ClientResponse) -> bytes:
    """Return the body of an answer. Raises ClientPayloadError above MOST_BYTES, since answers are untrusted input."""
    body = bytearray()
    async for piece in reply.content.iter_chunked(1 << 16):
        body += piece
        if len(body) > MOST_BYTES:
            raise aiohttp.ClientPayloadError(f"the answer is longer than {MOST_BYTES >> 20} MiB")
    return bytes(body)


async def _path(
    session: aiohttp.ClientSession, url: str, headers: Mapping[str, str], asked: Probe, limit: aiohttp.ClientTimeout
) -> None:
    method, said = ("GET", None) if asked.post_data is None else ("POST", asked.post_data)
    async with session.request(method, url + asked.path, headers=headers, json=said, timeout=limit) as reply:
        await body_of(reply)
        if reply.status != 200:
            raise _Wrong(f"status {reply.status}")


def _headers(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"} if key else {}


async def _token(
    session: aiohttp.ClientSession,
    url: str,
    headers: Mapping[str, str],
    model: str,
    request: ProbeRequest,
    limit: aiohttp.ClientTimeout,
) -> None:
    said = {"model": model, **request.said}
    async with session.post(url + request.path, headers=headers, json=said, timeout=limit) as reply:
        body = await body_of(reply)
        if reply.status == 503 and b"busy" in body:
            raise _Busy
        if reply.status != 200:
            raise _Wrong(f"status {reply.status}: {body[:300].decode(errors='replace')}")
    try:
        found: Any = msgspec.json.decode(body)
        answered, choices = found["model"], found["choices"]
    except (msgspec.DecodeError, KeyError, TypeError) as error:
        raise _Wrong(f"invalid response from the engine: {error}") from None
    if answered != model:
        raise _Wrong(f"the engine answers as model {answered!r}, not {model!r}")
    if not choices:
        raise _Wrong("the answer has no choice")


async def _counters_within(
    session: aiohttp.ClientSession, url: str, before: Counters | None, look_s: float
) -> Counters:
    """Return the counters once they show more tokens than `before`, or after `look_s` seconds."""
    until = time.monotonic() + look_s
    while True:
        found = await counters(session, url)
        if before is None or before.tokens is None or found.tokens is None:
            return found
        if found.tokens > before.tokens or time.monotonic() >= until:
            return found
        await asyncio.sleep(LOOK_S)


async def counters(session: aiohttp.ClientSession, url: str) -> Counters:
    """Return the counters as far as readable; names change between engine releases."""
    try:
        async with session.get(f"{url}/metrics", timeout=aiohttp.ClientTimeout(METRICS_S)) as reply:
            text = (await body_of(reply)).decode(errors="replace") if reply.status == 200 else ""
    except (asyncio.TimeoutError, aiohttp.ClientError, OSError):
        text = ""
    sums: dict[str, float] = {}
    for line in text.splitlines():
        name, _, rest = line.partition("{") if "{" in line else line.partition(" ")
        if name in (*WAITING, TOKENS, RUNNING):
            try:
                sums[name] = sums.get(name, 0.0) + float(rest.rsplit(" ", 1)[-1])
            except ValueError:  # not a number: ignore the line
                continue
    waiting = next((sums[name] for name in WAITING if name in sums), None)
    return Counters(waiting, sums.get(TOKENS), sums.get(RUNNING))
