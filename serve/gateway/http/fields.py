"""Header fields that pass the gateway between a client and a program of the user. Pure.

The fields of one connection end here (RFC 9110, 7.6.1). The gateway writes the fields that name the client, so that a
program can rely on them, and drops every other spelling of these fields.
"""

from collections.abc import Callable, Iterable, Sequence
from http import HTTPStatus

from serve.gateway.http.heads import SERVER, STATUS_LINES, date

Fields = Sequence[tuple[bytes, bytes]]

OF_A_CONNECTION = frozenset((
    b"connection", b"keep-alive", b"proxy-authenticate", b"proxy-authorization", b"proxy-connection", b"te", b"trailer",
    b"transfer-encoding", b"upgrade",
))  # fmt: skip
KEY = b"slipway-key"  # a key of the gateway from a client whose Authorization header is for the program
# Written by the gateway. A WSGI program reads `X_Real_IP` and `X-Real-IP` under one name.
OF_A_REQUEST = frozenset((
    b"host", b"content-length", b"expect", b"forwarded", b"x-forwarded-for", b"x-forwarded-host", b"x-forwarded-proto",
    b"x-real-ip", b"x-request-id", KEY,
))  # fmt: skip
OF_AN_ANSWER = frozenset((b"content-length", b"x-slipway-replica"))
UPGRADE = b"Connection: Upgrade\r\nUpgrade: websocket\r\n"


def request_lines(
    fields: Fields, host: bytes, peer: bytes, is_tls: bool, request_id: bytes, is_key: Callable[[bytes], bool]
) -> bytes:
    """Return the header lines for a program, without the lines of the body.

    host: Host header of the client. peer: IP address of the client. is_key: True for an Authorization header with a key
    of the gateway, which the program must not see.
    """
    passed, before = [], b""
    for name, value in _end_to_end(fields):
        low = name.lower()
        if low == b"x-forwarded-for":
            before += b"%b, " % value
        elif low.replace(b"_", b"-") not in OF_A_REQUEST and not (low == b"authorization" and is_key(value)):
            passed.append(b"%b: %b\r\n" % (name, value))
    scheme = b"https" if is_tls else b"http"
    said = (b"".join(passed), host, host, scheme, before, peer, peer, request_id)
    return (
        b"%bHost: %b\r\nX-Forwarded-Host: %b\r\nX-Forwarded-Proto: %b\r\nX-Forwarded-For: %b%b\r\nX-Real-IP: %b\r\n"
        b"X-Request-Id: %b\r\n" % said
    )


def answer_head(status: int, reason: bytes, fields: Fields, cors_lines: bytes, request_id: bytes, by: bytes) -> bytes:
    """Return the first line and the header lines for a client, without the lines of the body. by: name of the replica.

    `cors_lines` apply unless the program itself has answered the web page.
    """
    usual = STATUS_LINES.get(status) or b"HTTP/1.1 %d \r\n" % status
    first = b"HTTP/1.1 %d %b\r\n" % (status, reason) if reason else usual
    passed = [(name, value) for name, value in _end_to_end(fields) if name.lower() not in OF_AN_ANSWER]
    said = {name.lower() for name, _ in passed}
    lines = b"".join(b"%b: %b\r\n" % one for one in passed)
    if b"access-control-allow-origin" not in said:
        lines += cors_lines
    if b"x-request-id" not in said:
        lines += b"X-Request-Id: %b\r\n" % request_id
    if b"server" not in said:
        lines += b"Server: %b\r\n" % SERVER
    if b"date" not in said:
        lines += date()
    switch = UPGRADE if status == HTTPStatus.SWITCHING_PROTOCOLS else b""
    return b"%b%bX-Slipway-Replica: %b\r\n%b" % (first, lines, by, switch)


def _end_to_end(fields: Fields) -> Iterable[tuple[bytes, bytes]]:
    """Yield the fields that are not of one connection, nor named in a Connection header."""
    named = b",".join(value for name, value in fields if name.lower() == b"connection").lower()
    dropped = OF_A_CONNECTION | {one.strip() for one in named.split(b",")} if named else OF_A_CONNECTION
    return ((name, value) for name, value in fields if name.lower() not in dropped)
