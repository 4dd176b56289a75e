"""Heads of HTTP messages: validation of request heads by RFC 9112, and the common header lines of answers.

The URL and the headers of a parsed request become path and host, or status and text of an error.
"""

import re
import time
from collections.abc import Mapping
from email.utils import formatdate
from http import HTTPStatus

from httptools import HttpParserError, parse_url

SERVER = b"slipway"
STATUS_LINES = {one.value: b"HTTP/1.1 %d %b\r\n" % (one.value, one.phrase.encode()) for one in HTTPStatus}
ONCE = frozenset((b"host", b"transfer-encoding"))  # headers that must not repeat
PLAIN = re.compile(rb"/[A-Za-z0-9_/]*")  # URL without query and host, equal to the path
_ABSOLUTE = re.compile(rb"(?i:https?)://([^/?#]*)(.*)")
_HOST = re.compile(rb"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._~!$&'()*+,;=%-]*)(?::[0-9]*)?")  # RFC 3986, 3.2.2

Fault = tuple[int, str]
"""Status and text of the answer to an invalid request."""


def target(url: bytes, host: bytes) -> tuple[bytes, bytes]:
    """Return path and host of a URL with a query or a host; the host in the URL overrides `host`.

    The path of an invalid URL is empty and matches no route.
    """
    try:
        found = parse_url(url)
    except HttpParserError:
        return b"", host
    return found.path or b"", host if found.host is None else found.host.lower()


def origin_form(url: bytes, host: bytes) -> tuple[bytes, bytes]:
    """Return the path with the query, and the Host header, of a URL; the host in the URL overrides `host`."""
    found = _ABSOLUTE.fullmatch(url)
    if found is None:
        return url, host
    return found[2] if found[2].startswith(b"/") else b"/" + found[2], found[1]


def check_host(version: str, headers: Mapping[bytes, bytes], doubled: bytes) -> tuple[bytes, Fault | None]:
    """Return the name in the Host header, and the fault of invalid headers (RFC 9112, 2.3, 3.2 and 6.1) or None.

    `doubled`: name of a repeated header, or empty.
    """
    if version not in ("1.0", "1.1"):
        return b"", (505, f"HTTP/{version} is not supported; use HTTP/1.1")
    if doubled:
        return b"", (400, f"the header {doubled.decode()} is given twice")
    host, codings = headers.get(b"host"), headers.get(b"transfer-encoding")
    if host is None and version == "1.1":
        return b"", (400, "the header host is missing")
    found = _HOST.fullmatch(host or b"")
    if found is None:
        return b"", (400, "the header host is invalid")
    return found[1].lower(), _fault_of(codings, version) if codings is not None else None


def _fault_of(codings: bytes, version: str) -> Fault | None:
    if codings.lower() == b"chunked":
        return (400, "HTTP/1.0 does not allow transfer-encoding") if version == "1.0" else None
    *before, last = (one.strip().lower() for one in codings.split(b","))
    if last != b"chunked" or last in before:
        return 400, "a transfer-encoding must end with a single chunked"
    return 501, "the only supported transfer-encoding is chunked"


_dated = (0, b"")


def date() -> bytes:
    """Return the Date header line, formatted at most once a second."""
    global _dated
    now = int(time.time())
    if _dated[0] != now:
        _dated = (now, f"Date: {formatdate(now, usegmt=True)}\r\n".encode())
    return _dated[1]
