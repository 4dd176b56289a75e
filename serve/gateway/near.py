"""The access rule where no key is asked for: programs of this machine, and no page of another site in its browser.

A page may give its own name the address 127.0.0.1 (DNS rebinding), and then reads what it likes: so the host that is
asked must be this machine by name. It may send forms anywhere without asking: so a body must be called JSON, which it
may not send without asking first. Pure. Raises RequestRefused.
"""

import re

from serve.gateway.http.listener import ClientRequest
from serve.gateway.request_body import RequestRefused

NAMES = frozenset((b"localhost", b"127.0.0.1", b"[::1]", b"::1"))  # the last: in a URL, once it was parsed
_ORIGIN = re.compile(rb"https?://(\[[^\]]*\]|[^:/@]+)(?::[0-9]+)?")


def check(request: ClientRequest, own: bytes) -> None:
    """Raise RequestRefused unless the request comes from this machine.

    own: the address that is listened on, which may be another loopback address.
    """
    if request.host not in NAMES and request.host != own:
        raise RequestRefused(403, "Forbidden", "without an API key this answers only to localhost, 127.0.0.1 and [::1]")
    headers = request.headers
    if b"origin" in headers:
        found = _ORIGIN.fullmatch(headers[b"origin"].lower())
        if found is None or found[1] not in NAMES and found[1] != own:
            raise RequestRefused(403, "Forbidden", "without an API key this answers no page of another site")
    if request.method == b"POST":
        kind = headers.get(b"content-type", b"")
        if kind != b"application/json" and kind.partition(b";")[0].strip().lower() != b"application/json":
            raise RequestRefused(415, "BadRequestError", "a body must be sent with Content-Type: application/json")
