"""Access rule without API keys: local programs only, and no page of a different site in a local browser.

A page may point a host name at 127.0.0.1 (DNS rebinding) and then read answers, so the requested host must be a name of
this machine. A page may send a form anywhere without a preflight request, so a body must be declared as JSON, which
requires a preflight. Pure. Raises RequestRefused.
"""

import re
from collections.abc import Collection

from serve.gateway.http.listener import ClientRequest
from serve.gateway.request_body import RequestRefused

NAMES = frozenset((b"localhost", b"127.0.0.1", b"[::1]", b"::1"))  # the last form comes from a parsed URL
_ORIGIN = re.compile(rb"https?://(\[[^\]]*\]|[^:/@]+)(?::[0-9]+)?")


def require_local(request: ClientRequest, own: bytes, origins: Collection[str]) -> None:
    """Raise RequestRefused unless the request comes from this machine.

    `own`: listen address of the gateway, which may be a different loopback address. `origins`: pages of other sites
    that may send requests; here `*` allows none, because no key protects the gateway.
    """
    if request.host not in NAMES and request.host != own:
        raise RequestRefused(
            403, "Forbidden", "without an API key the gateway answers only to localhost, 127.0.0.1 and [::1]"
        )
    headers = request.headers
    if b"origin" in headers:
        origin = headers[b"origin"].lower()
        found = _ORIGIN.fullmatch(origin)
        is_local = found is not None and (found[1] in NAMES or found[1] == own)
        if not is_local and origin.decode("latin-1") not in origins:
            raise RequestRefused(403, "Forbidden", "without an API key the gateway answers no page of a different site")
    if request.method == b"POST":
        kind = headers.get(b"content-type", b"")
        if kind != b"application/json" and kind.partition(b";")[0].strip().lower() != b"application/json":
            raise RequestRefused(415, "BadRequestError", "a body must be sent with Content-Type: application/json")
