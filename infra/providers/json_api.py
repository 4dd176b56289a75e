"""A vendor's JSON API, called within a deadline; an error says whether the request may have had an effect.

    read, query   may be repeated: up to 5 attempts within `read_s`, Retry-After honored
    act           changes state: exactly one attempt

Errors of `act`: after Unsent, VendorRefused or AuthError, no change was made; after Unclear (an Ambiguous), a change
may have been made. Only a few statuses count as a refusal; lost, truncated, late or malformed answers prove no refusal.
For any answer of a server, this module raises only SlipwayErrors.
"""

import asyncio
import hashlib
import json
import re
import time
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from email.utils import parsedate_to_datetime
from typing import Any, NoReturn, TypeVar

import httpx
import msgspec

from infra.agent.limits import boottime_s
from infra.errors import Ambiguous, AuthError, SlipwayError, UsageError
from infra.providers.rate_limit import Pace
from store.backoff import Backoff

DEFINITE = {400, 401, 402, 403, 404, 410, 422, 429}  # 429: all three vendors count requests before they act
FIREWALL = "error code: 1010"  # in the 403 of a web firewall that blocks clients by User-Agent
AGAIN = {408, 425, 429, 500, 502, 503, 504}
BLOCKED = "a web firewall of the vendor refuses this client because of the User-Agent, independent of the key"
VERSION = "0.1.0"  # equals the version in pyproject.toml, as a test checks
USER_AGENT = f"slipway/{VERSION}"
REDIRECTS = {301, 302, 307, 308}
LOOPBACK = {"127.0.0.1", "::1", "localhost"}
MOST_ATTEMPTS = 5
WORDY = 16  # characters; a shorter key may match part of a token of ours in a listing by chance
MOST_REDIRECTS = 3
LONGEST_WAIT_S = 60.0
BACKOFF = Backoff(first_s=0.5, longest_s=8.0, certain=0.0)
DATE_GRAIN_S = 1.0  # the Date of an answer is cut to seconds
MOST_SKEW_S = 3600.0  # seconds between a vendor's clock and ours, above which timers are not trusted
DEEPEST = 64  # nesting depth at which lists and objects become null
MOST_DIGITS = 1000  # digits of an integer
MOST_WORDS = 1 << 20  # bytes of an error body to read
SAID = 400  # characters of a reason

T = TypeVar("T")
_write = msgspec.json.Encoder(decimal_format="number").encode


@dataclass(frozen=True)
class Reply:
    """The complete answer to a request."""

    status: int
    headers: Mapping[str, str]  # names in lower case
    body: bytes

    @property
    def content(self) -> Any:
        """Return the body as JSON, or as text for a body that is too long or not JSON."""
        body = self.body[:MOST_WORDS]
        try:
            return lenient(body)
        except ValueError:
            return body.decode(errors="replace")

    @property
    def summary(self) -> str:
        """Return the status and the reason as one printable line."""
        words, asked = printable(_reason(self.content)), printable(self.headers.get("x-request-id", ""), 80)
        return f"{self.status} {words}{f' (request {asked})' if asked else ''}".strip()

    @property
    def code(self) -> str:
        """Return the machine-readable error code, "" for none."""
        read = self.content
        if not isinstance(read, dict):
            return ""
        error = read.get("error")
        code = error.get("code") if isinstance(error, dict) else read.get("error_code")
        return code if isinstance(code, str) else ""

    @property
    def retry_after_s(self) -> float | None:
        from store.patience import asked_wait_s

        return asked_wait_s(self.headers)


@dataclass(frozen=True)
class Exchange:
    """A request and the complete answer, for a listener; never the request headers, which hold the key."""

    method: str
    path: str  # below the base, with the query string
    content: bytes  # body of the request
    reply: Reply


class RequestNotSent(SlipwayError):
    """The connection failed: no request was sent."""


class VendorRefused(SlipwayError):
    """A definite refusal of the vendor."""

    def __init__(self, said: str, reply: Reply) -> None:
        self.reply = reply
        super().__init__(said)


class UnclearOutcome(Ambiguous):
    """The request may have had an effect. `reply`: the answer, if any."""

    def __init__(self, said: str, reply: Reply | None = None) -> None:
        self.reply = reply
        super().__init__(said)


class _TooLong(Exception):
    pass


class JsonApi:
    """The API at `base`, called as `name` with these headers, including the key."""

    def __init__(
        self,
        name: str,
        base: str,
        headers: Mapping[str, str],
        *,
        attempt_s: float = 20.0,
        read_s: float = 60.0,
        most_bytes: int = 16 << 20,
        pace: Pace | None = None,
        sleep: Callable[[float], None] = time.sleep,
        clock_scale: float = 1.0,
    ) -> None:
        """Prepare the API; send no request.

        `pace`: the rate limit, by default of this process alone. `clock_scale`: speed of the server's clock relative to
        ours, 1 except in a rehearsal. Raise UsageError for an address outside this machine without TLS, and for an
        invalid key.
        """
        url = httpx.URL(base)
        self.is_loopback = url.host in LOOPBACK
        if url.scheme != "https" and not (url.scheme == "http" and self.is_loopback):
            raise UsageError(f"{name}: {base} must begin with https://")
        if not all(value.isascii() and value.isprintable() and value.strip() == value for value in headers.values()):
            raise UsageError(f"{name}: the key holds characters that no key has; paste only the key")
        self.name, self.base = name, base.rstrip("/")
        self.attempt_s, self.read_s, self.most_bytes = attempt_s, read_s, most_bytes
        # The listener gets every answer first; an error of the listener counts as a lost answer.
        self.listener: Callable[[Exchange], None] | None = None
        self._secrets = [value.removeprefix("Bearer ").encode() for value in headers.values() if value]
        more = {"Accept": "application/json", "Accept-Encoding": "identity", "User-Agent": USER_AGENT}
        self._headers = {**headers, **more}
        self.clock_scale = clock_scale
        self._pace, self._sleep = pace or Pace(clock_scale=clock_scale), sleep
        self._tls = httpx.create_ssl_context() if url.scheme == "https" else False
        self._clocks: tuple[float, float] | None = None  # the vendor's clock and the boot clock, read at the same time
        self._skew_s = 0.0
        self._answer_s = 0.0  # duration of the last request

    @property
    def owner(self) -> str:
        """Return an id of the account for vendors without account names: a fingerprint of the key."""
        return "key " + hashlib.sha256(b"\0".join(self._secrets)).hexdigest()[:8]

    def now(self) -> float:
        """Return UTC epoch seconds by the vendor's clock, as of the last answer; the vendor's timers use this clock.

        Before any answer, return the time of our clock.
        """
        if self._clocks is None:
            return time.time()
        theirs, boot_s = self._clocks
        return theirs + (boottime_s() - boot_s) * self.clock_scale

    def latest_now(self) -> float:
        """Return the latest possible time by the vendor's clock: `now` lacks the travel time of the last answer."""
        return self.now() + DATE_GRAIN_S + self._answer_s * self.clock_scale

    @property
    def skew_problem(self) -> str:
        """Return why timers cannot be trusted: the difference of the clocks; "" up to an hour or if unknown."""
        if abs(self._skew_s) <= MOST_SKEW_S:
            return ""
        apart = f"{abs(self._skew_s) / 3600:.0f} h {'ahead of' if self._skew_s > 0 else 'behind'} this machine's"
        return (
            f"the vendor's clock is {apart}, so a timer may end the pod too late; correct this machine's clock if wrong"
        )

    def read(self, path: str, kind: type[T], **params: str) -> T:
        """Return the document at `path`.

        Raise AuthError for a refused key, VendorRefused for any other refusal, such as an unknown id, and SlipwayError
        without a usable answer.
        """
        return self._send_read("GET", path, kind, params=params)

    def query(self, path: str, body: Any, kind: type[T]) -> T:
        """Return the answer to a query sent by POST, like `read`."""
        return self._send_read("POST", path, kind, content=_write(body))

    def send_change(self, method: str, path: str, body: Any = None, headers: Mapping[str, str] | None = None) -> Reply:
        """Send a request for a change once; return the 2xx reply, perhaps with an empty body.

        Raise RequestNotSent, VendorRefused or AuthError if no change was made, and UnclearOutcome if a change may have
        been made.
        """
        what = f"{self.name}: {method} {path}"
        while wait_s := self._pace.wait_s(changes=True):
            self._sleep(wait_s)
        content = None if body is None else _write(body)
        try:
            reply = self._once(method, path, self.attempt_s, content=content, headers=headers or {})
        except (httpx.ConnectError, httpx.ConnectTimeout, httpx.UnsupportedProtocol) as error:
            raise RequestNotSent(f"{what}: no connection: {_name(error)}; nothing was sent") from None
        except SlipwayError:
            raise
        except Exception as error:  # the request was sent, even if the answer is unusable
            why = self._loss_reason(error)
            raise UnclearOutcome(f"{what}: {why}; the request may have been carried out") from error
        if reply.status < 300:
            return reply
        if reply.status == 401:
            raise AuthError(f"{what}: the vendor refused the key: {reply.summary}")
        if reply.status in DEFINITE:
            raise VendorRefused(f"{what}: {reply.summary}", reply)
        raise UnclearOutcome(f"{what}: {reply.summary}; the request may have been carried out", reply)

    def decode(self, reply: Reply, kind: type[T]) -> T:
        """Return the body of an `act` reply. Raise UnclearOutcome for a malformed body: the change may be made."""
        try:
            return _decode(reply.body, kind)
        except ValueError as error:
            raise UnclearOutcome(
                f"{self.name}: status {reply.status} with an unreadable body: {error}", reply
            ) from None

    def _send_read(self, method: str, path: str, kind: type[T], **options: Any) -> T:
        what = f"{self.name}: {method} {path}"
        deadline, limit_s = time.monotonic() + self.read_s, self.attempt_s
        said = self._pace.description
        for attempt in range(MOST_ATTEMPTS):
            wait_s = self._pace.wait_s()
            while wait_s and time.monotonic() + wait_s < deadline:
                self._sleep(wait_s)
                wait_s = self._pace.wait_s()
            if wait_s:
                break
            wait_s = BACKOFF.wait_s(attempt + 1)
            try:
                reply = self._once(method, path, limit_s, **options)
                if reply.status < 300:
                    return _decode(reply.body, kind)
                if reply.status not in AGAIN:
                    self._raise_refusal(what, reply)
                said = reply.summary
                if reply.retry_after_s is not None:
                    wait_s = min(LONGEST_WAIT_S, reply.retry_after_s)
            except SlipwayError:
                raise
            except Exception as error:  # also a truncated body
                said = self._loss_reason(error)
            if attempt == MOST_ATTEMPTS - 1 or time.monotonic() + wait_s > deadline:
                break
            self._sleep(wait_s)
            limit_s = min(self.attempt_s, max(0.0, deadline - time.monotonic()))
        raise SlipwayError(f"{what}: no usable answer: {said}")

    def _raise_refusal(self, what: str, reply: Reply) -> NoReturn:
        if is_blocked(reply):
            raise SlipwayError(f"{what}: {BLOCKED}: {reply.summary}")
        if reply.status in (401, 403):
            raise AuthError(f"{what}: the vendor refused the key: {reply.summary}")
        if reply.status == 410:
            raise SlipwayError(f"{what}: the vendor retired this API; update Slipway: {reply.summary}")
        raise VendorRefused(f"{what}: {reply.summary}", reply)

    def _once(self, method: str, path: str, limit_s: float, **options: Any) -> Reply:
        url = httpx.URL(self.base + path)
        for _ in range(MOST_REDIRECTS):
            reply = _run(self._attempt(method, url, **options), limit_s)
            if method != "GET" or reply.status not in REDIRECTS:
                break
            there = url.join(reply.headers.get("location", ""))
            if (there.scheme, there.host, there.port) != (url.scheme, url.host, url.port):
                raise SlipwayError(f"{self.name}: {url} redirects to {there.host}, which must not receive the key")
            url = there
        return reply

    async def _attempt(self, method: str, url: httpx.URL, **options: Any) -> Reply:
        """Return the complete answer to a request."""
        headers = {**self._headers, **options.pop("headers", {})}
        if options.get("content") is not None:
            headers["Content-Type"] = "application/json"
        began_s = boottime_s()
        verify, timeout = self._tls, httpx.Timeout(self.attempt_s, connect=min(10.0, self.attempt_s))
        async with httpx.AsyncClient(verify=verify, timeout=timeout, trust_env=not self.is_loopback) as client:
            async with client.stream(method, url, headers=headers, **options) as response:
                body = bytearray()
                async for chunk in response.aiter_bytes():
                    body += chunk
                    if len(body) > self.most_bytes:
                        raise _TooLong
            self._answer_s = boottime_s() - began_s
            self._update_clock(response.headers.get("date", ""))
            for secret in self._secrets:  # a server may echo the key, and the body goes into messages
                if response.status_code >= 300 or len(secret) >= WORDY:
                    body = body.replace(secret, b"***")
            reply = Reply(response.status_code, {k.lower(): v for k, v in response.headers.items()}, bytes(body))
            if self.listener:
                path = str(response.request.url).removeprefix(self.base)
                self.listener(Exchange(method, path, options.get("content") or b"", reply))
            return reply

    def _update_clock(self, date: str) -> None:
        try:
            read = parsedate_to_datetime(date)
            theirs = (read if read.tzinfo else read.replace(tzinfo=timezone.utc)).timestamp()
        except (ValueError, TypeError, OverflowError):
            return  # no date in the answer: keep the last known difference of the clocks
        self._clocks = (theirs, boottime_s())
        if self.clock_scale == 1.0:  # a rehearsal's clock differs on purpose
            self._skew_s = theirs - time.time()

    def _loss_reason(self, error: Exception) -> str:
        if isinstance(error, ValueError):
            return f"unreadable answer: {printable(str(error))}"
        if isinstance(error, _TooLong):
            return f"the answer is longer than {self.most_bytes >> 20} MiB"
        if isinstance(error, (asyncio.TimeoutError, httpx.TimeoutException)):
            return f"no complete answer in {self.attempt_s:g} s"
        return _name(error)


def epoch(told: Any) -> float | None:
    """Return the epoch seconds of a time in an answer; UTC without a time zone.

    Return None for an invalid time, which must not spoil a listing.
    """
    try:
        at = msgspec.convert(told, datetime)
        return (at if at.tzinfo else at.replace(tzinfo=timezone.utc)).timestamp()
    except (ValueError, OverflowError):
        return None


def rfc3339(at: float) -> str:
    """Return a time as RFC 3339, in UTC, rounded down to the second."""
    return datetime.fromtimestamp(int(at), timezone.utc).isoformat().replace("+00:00", "Z")


def endpoint(official: str, other: str, variable: str) -> str:
    """Return the address of a vendor: `other`, if set, else `official`.

    Raise UsageError for an `other` outside this machine: the key of an account must not go there.
    """
    if other and httpx.URL(other).host not in LOOPBACK:
        raise UsageError(f"{variable} is {other}; the key of an account may go only to the vendor or to this machine")
    return other or official


def _run(answer: Coroutine[Any, Any, T], limit_s: float) -> T:
    """Run a coroutine like asyncio.run, which would wait for an unresponsive name server.

    Raise TimeoutError after `limit_s` seconds.
    """
    loop = asyncio.new_event_loop()
    try:
        return loop.run_until_complete(asyncio.wait_for(answer, limit_s))  # noqa: TID251 - nothing cancels it
    finally:
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()


def _name(error: Exception) -> str:
    return f"{type(error).__name__}: {printable(str(error))}" if str(error) else type(error).__name__


def _reason(read: Any, deepest: int = 3) -> str:
    """Return the reason in an error body; each vendor, and each older server of a vendor, uses a different shape."""
    if not isinstance(read, dict) or not deepest:
        return str(read)
    errors = read.get("errors")
    more = [one.get("message", one) if isinstance(one, dict) else one for one in _listed(errors)]
    found = [read.get(key) for key in ("detail", "message", "error_code", "error")]
    words = [_reason(one, deepest - 1) for one in (*found, *more) if one]
    hint = read.get("hint")
    return "; ".join([*words, *([str(hint)] if hint else [])]) or json.dumps(read, default=str)


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [] if value is None else [value]


def is_blocked(reply: Reply) -> bool:
    """Return whether a web firewall refused the client, so that the vendor has not seen the request."""
    return reply.status == 403 and FIREWALL in reply.summary.lower()


def printable(text: str, most: int = SAID) -> str:
    """Return the start of untrusted text as one line without control characters, at most `most` characters."""
    return " ".join("".join(letter if letter.isprintable() else " " for letter in text[: 4 * most]).split())[:most]


def _decode(body: bytes, kind: type[T]) -> T:
    """Return the record in a body. Raise ValueError for a malformed body."""
    try:
        return msgspec.json.decode(body, type=kind, strict=False)
    except (ValueError, RecursionError):  # from a careless server: one field must not hide all other fields
        return msgspec.convert(lenient(body), kind, strict=False)


def lenient(body: bytes) -> Any:
    """Return JSON from careless servers: invalid or too deep values become null, invalid bytes U+FFFD.

    Raise ValueError for other malformed text, also for a truncated body.
    """
    return _loads(_shallow(body.decode(errors="replace")))


_loads = json.JSONDecoder(
    strict=False, parse_constant=lambda _: None, parse_int=lambda text: int(text) if len(text) <= MOST_DIGITS else None
).decode
_MARK = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"|[\[{]|[\]}]', re.DOTALL)


def _shallow(text: str) -> str:
    """Return the text with null for every list or object at depth DEEPEST."""
    kept, depth, since = [], 0, 0
    for mark in _MARK.finditer(text):
        if mark[0] in ("[", "{"):
            depth += 1
            if depth == DEEPEST:
                kept.append(text[since : mark.start()])
        elif mark[0] in ("]", "}"):
            if depth == DEEPEST:
                kept.append("null")
                since = mark.end()
            depth -= 1
    return "".join([*kept, text[since:] if depth < DEEPEST else ""])
