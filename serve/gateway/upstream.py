"""One try at one replica, up to the first byte of its answer.

In: an Ask and a Replica. Out: an Answer of which something is there: all of it when it is short, else its first chunk
and the rest to be read. Raises Failed while another replica may still be asked. Called by: `proxy`.
"""

import asyncio
import io
from collections.abc import Mapping
from dataclasses import dataclass

import aiohttp
from yarl import URL

from serve.gateway.asks import Ask
from serve.gateway.limits import Limits
from serve.gateway.routing import Replica
from serve.gateway.sse import Watch

WHOLE_BYTES = 1 << 20  # an answer up to this size is read before any of it is passed on
CHUNK_BYTES = 64 << 10
IDLE_POOL_S = 4.0  # engines close an idle connection after 5 s (VLLM_HTTP_TIMEOUT_KEEP_ALIVE)
PASSED = ("Content-Type", "Content-Encoding", "Retry-After", "Cache-Control")
RETRIED = (500, 502, 503)
BUSY = b"currently busy"  # vLLM's --max-num-queued-reqs: it is full, not ill


class Failed(Exception):
    """No byte has reached the client. `answer` is what the engine said, if it said something whole."""

    def __init__(self, why: str, answer: "Answer | None" = None, is_ill: bool = True) -> None:
        super().__init__(why)
        self.why, self.answer, self.is_ill = why, answer, is_ill


@dataclass
class Answer:
    """What a replica says. `rest` is None when `body` is all of it."""

    status: int
    headers: Mapping[str, str]
    body: bytes
    rest: aiohttp.ClientResponse | None = None
    watch: Watch | None = None  # of a stream of events


class Engines:
    """Connections to the replicas. Made and closed within one event loop."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self._urls: dict[tuple[str, str], URL] = {}
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=IDLE_POOL_S),
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=limits.connect_s),
            auto_decompress=False,
            read_bufsize=CHUNK_BYTES,
            skip_auto_headers=("User-Agent", "Accept", "Accept-Encoding"),
        )

    async def close(self) -> None:
        await self._session.close()

    def forget(self, urls: set[str]) -> None:
        """Only these are still there."""
        self._urls = {key: url for key, url in self._urls.items() if key[0] in urls}

    async def ask(self, method: str, ask: Ask, replica: Replica, headers: Mapping[str, str]) -> Answer:
        """Raises Failed. An answer that is not whole must be closed by whoever gets it."""
        if replica.key:
            headers = {**headers, "Authorization": f"Bearer {replica.key}"}
        # A large body is read piece by piece, so that writing it does not hold up the others.
        data = io.BytesIO(ask.body) if len(ask.body) > WHOLE_BYTES else ask.body or None
        url = self._url(replica, ask.path)
        try:
            response = await self._session.request(method, url, data=data, headers=headers, allow_redirects=False)
            try:
                return _judged(await _begin(response))
            except BaseException:
                response.close()
                raise
        except (aiohttp.ClientError, OSError, asyncio.TimeoutError) as error:
            raise Failed(f"{type(error).__name__}: {error}") from None

    def _url(self, replica: Replica, path: str) -> URL:
        key = (replica.url, path)
        url = self._urls.get(key)
        if url is None:
            url = self._urls[key] = URL(replica.url + path)
        return url


async def _begin(response: aiohttp.ClientResponse) -> Answer:
    """All of a short answer, the first chunk of a stream of events."""
    headers = {name: response.headers[name] for name in PASSED if name in response.headers}
    streams = response.status == 200 and response.content_type == "text/event-stream"
    content = response.content
    body = await content.readany()
    if streams:
        if not body:
            raise Failed("the stream ended before its first byte")
        watch = Watch()
        watch.feed(body)
        return Answer(response.status, headers, body, response, watch)
    parts, size = [body], len(body)
    while body and size <= WHOLE_BYTES:
        body = await content.readany()
        parts.append(body)
        size += len(body)
    return Answer(response.status, headers, b"".join(parts), response if body else None)


def _judged(answer: Answer) -> Answer:
    """The same, when it is one for the client. Raises Failed."""
    status = answer.status
    if answer.watch is not None and (answer.watch.error_code or 0) >= 500:
        raise Failed("an error in place of the first token")
    if status in RETRIED and answer.rest is None:
        is_full = status == 503 and BUSY in answer.body
        raise Failed(f"answered {status}", answer, is_ill=not is_full)
    if status in (401, 403) or 300 <= status < 400:  # between the gateway and its engine; not the client's doing
        raise Failed(f"answered {status}")
    return answer
