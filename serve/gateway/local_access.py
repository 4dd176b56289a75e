"""Access rules without API keys: local programs only, and no page of a different site in a local browser.

A page may point a host name at 127.0.0.1 (DNS rebinding) and then read answers, so the requested host must be a name of
this machine. A page may send a form anywhere without a preflight request, so the body of a model route must be declared
as JSON, which requires a preflight. A program of the user accepts every type of body, and a GET may change the state of
the program, so the browser's words about the page decide (dev/decisions/0086-programs-behind-the-gateway.md). Pure.
Raises RequestRefused.
"""

import re
from collections.abc import Collection

from serve.gateway.http.listener import ClientRequest
from serve.gateway.request_body import RequestRefused

NAMES = frozenset((b"localhost", b"127.0.0.1", b"[::1]", b"::1"))  # the last form comes from a parsed URL
_ORIGIN = re.compile(rb"https?://(\[[^\]]*\]|[^:/@]+)(?::[0-9]+)?")
_FOREIGN_PAGE = "without an API key the gateway answers no page of a different site"


def require_local(request: ClientRequest, own: bytes, origins: Collection[str]) -> None:
    """Raise RequestRefused unless the request comes from this machine.

    `own`: listen address of the gateway, which may be a different loopback address. `origins`: pages of other sites
    that may send requests; here `*` allows none, because no key protects the gateway.
    """
    _require_local_name(request, own)
    headers = request.headers
    if b"origin" in headers and not _is_allowed(headers[b"origin"].lower(), own, origins):
        raise RequestRefused(403, "Forbidden", _FOREIGN_PAGE)
    if request.method == b"POST":
        kind = headers.get(b"content-type", b"")
        if kind != b"application/json" and kind.partition(b";")[0].strip().lower() != b"application/json":
            raise RequestRefused(415, "BadRequestError", "a body must be sent with Content-Type: application/json")


def require_own_page(request: ClientRequest, own: bytes, origins: Collection[str]) -> None:
    """Raise RequestRefused for a request to a program of the user that a page of a different site has caused.

    Browsers state the relation of page and address in Sec-Fetch-Site, which no page can set, and the origin of each
    page that sends a form or a WebSocket handshake. A link in a page of a different site may open a page here.
    """
    _require_local_name(request, own)
    headers = request.headers
    site = headers.get(b"sec-fetch-site", b"")
    if site in (b"same-origin", b"none"):  # the user's own click or address also has no foreign page
        return
    if b"origin" in headers:
        is_allowed = _is_allowed(headers[b"origin"].lower(), own, origins)
    else:
        opens = headers.get(b"sec-fetch-mode") == b"navigate" and headers.get(b"sec-fetch-dest") == b"document"
        is_allowed = site != b"cross-site" or (opens and request.method in (b"GET", b"HEAD"))
    if not is_allowed:
        raise RequestRefused(403, "Forbidden", _FOREIGN_PAGE)


def _require_local_name(request: ClientRequest, own: bytes) -> None:
    if request.host not in NAMES and request.host != own:
        raise RequestRefused(
            403, "Forbidden", "without an API key the gateway answers only to localhost, 127.0.0.1 and [::1]"
        )


def _is_allowed(origin: bytes, own: bytes, origins: Collection[str]) -> bool:
    """Return whether pages of an origin may send requests: pages of this machine, and the listed origins."""
    found = _ORIGIN.fullmatch(origin)
    is_local = found is not None and (found[1] in NAMES or found[1] == own)
    return is_local or origin.decode("latin-1") in origins
