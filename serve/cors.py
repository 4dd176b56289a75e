"""Answers to web pages of other origins (CORS, https://fetch.spec.whatwg.org/#http-cors-protocol). Pure.

A browser shows an answer to a page only if the answer names the origin of the page, and asks in advance (a preflight
request) before a request with a key or a JSON body. Pages get both for the origins in `Bounds.allow_origins` only.
"""

import re
from collections.abc import Collection, Mapping

ANY = "*"
ORIGIN = re.compile(r"https?://(\[[0-9a-f:.]+\]|[a-z0-9._-]+)(:[0-9]{1,5})?")
MAX_AGE_S = 600  # Time for which a browser remembers the answer to a preflight request.
_METHOD = re.compile(rb"[A-Z]{1,16}")
_HEADER_NAMES = re.compile(rb"[A-Za-z0-9_, -]{1,1024}")
_EXPOSED = b"Retry-After, X-Request-Id, X-Slipway-Replica"


def is_origin(text: str) -> bool:
    """Return whether `text` can be an entry of `Bounds.allow_origins`."""
    return text == ANY or ORIGIN.fullmatch(text) is not None


def answer_lines(headers: Mapping[bytes, bytes], allowed: Collection[str]) -> bytes:
    """Return the header lines of an answer to a page of an allowed origin, else b"".

    headers: headers of the request, names in lower case.
    """
    origin = headers.get(b"origin", b"").lower()
    text = origin.decode("latin-1")
    if not ORIGIN.fullmatch(text) or text not in allowed and ANY not in allowed:
        return b""
    lines = b"Access-Control-Allow-Origin: %b\r\nVary: Origin\r\nAccess-Control-Expose-Headers: %b\r\n"
    return lines % (origin, _EXPOSED)


def preflight_lines(headers: Mapping[bytes, bytes], any_method: bool = False) -> bytes:
    """Return the further header lines of the answer to a preflight request."""
    names, asked = headers.get(b"access-control-request-headers", b""), b""
    if any_method:
        asked = headers.get(b"access-control-request-method", b"")
    methods = asked if _METHOD.fullmatch(asked) else b"GET, POST"
    lines = b"Access-Control-Allow-Methods: %b\r\nAccess-Control-Max-Age: %d\r\n" % (methods, MAX_AGE_S)
    return lines + (b"Access-Control-Allow-Headers: %b\r\n" % names if _HEADER_NAMES.fullmatch(names) else b"")
