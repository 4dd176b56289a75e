"""Heads of messages: what a request's says, by RFC 9112, and the lines that every answer's has.

In: the URL and the headers of a request that could be parsed. Out: its path and its host, or what is wrong with it as
status and words; bytes for an answer.
"""

import re
import time
from collections.abc import Mapping
from email.utils import formatdate
from http import HTTPStatus

from httptools import HttpParserError, parse_url

SERVER = b"slipway"
STATUS_LINES = {one.value: b"HTTP/1.1 %d %b\r\n" % (one.value, one.phrase.encode()) for one in HTTPStatus}
ONCE = frozenset((b"host", b"transfer-encoding"))  # headers that may not be there twice
PLAIN = re.compile(rb"/[A-Za-z0-9_/]*")  # a URL that is its own path
_HOST = re.compile(rb"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._~!$&'()*+,;=%-]*)(?::[0-9]*)?")  # RFC 3986, 3.2.2

Fault = tuple[int, str]
"""Status and words of the answer to what is no request."""


def target(url: bytes, host: bytes) -> tuple[bytes, bytes]:
    """Return path and host of a URL with a query, or with a host before it, which is the one that counts.

    The path is no route of ours when it is neither.
    """
    try:
        found = parse_url(url)
    except HttpParserError:
        return b"", host
    return found.path or b"", host if found.host is None else found.host.lower()


def checked(version: str, headers: Mapping[bytes, bytes], doubled: bytes) -> tuple[bytes, Fault | None]:
    """Return the name in the header host, and what is wrong with headers that can be parsed (2.3, 3.2 and 6.1).

    `doubled`: one that was there twice.
    """
    if version not in ("1.0", "1.1"):
        return b"", (505, f"HTTP/{version} is not spoken here; ask by HTTP/1.1")
    if doubled:
        return b"", (400, f"there are two headers {doubled.decode()}")
    host, codings = headers.get(b"host"), headers.get(b"transfer-encoding")
    if host is None and version == "1.1":
        return b"", (400, "there is no header host")
    found = _HOST.fullmatch(host or b"")
    if found is None:
        return b"", (400, "the header host is none")
    return found[1].lower(), _fault_of(codings, version) if codings is not None else None


def _fault_of(codings: bytes, version: str) -> Fault | None:
    if codings.lower() == b"chunked":
        return (400, "HTTP/1.0 has no transfer-encoding") if version == "1.0" else None
    *before, last = (one.strip().lower() for one in codings.split(b","))
    if last != b"chunked" or last in before:
        return 400, "a transfer-encoding must end with chunked, once"
    return 501, "no transfer-encoding but chunked is known here"


_dated = (0, b"")


def date() -> bytes:
    """Return the Date header, made once a second."""
    global _dated
    now = int(time.time())
    if _dated[0] != now:
        _dated = (now, f"Date: {formatdate(now, usegmt=True)}\r\n".encode())
    return _dated[1]
