"""Intake of the body of a request within the limits of the gateway. Raises RequestRefused, which is the answer."""

from serve.gateway.charges import Charge
from serve.gateway.http.deadline import Deadline
from serve.gateway.http.limits import GatewayLimits
from serve.gateway.http.listener import ClientRequest
from serve.gateway.http.wire import MOST_PIECES, MalformedMessage
from serve.gateway.request_body import RequestRefused


def require_size(size: int, limits: GatewayLimits) -> None:
    """Raise RequestRefused for a body of more bytes than the limit."""
    if size > limits.max_body_bytes:
        more = (
            "; the service file may raise the limit: `slipway: {limits: {max_body_bytes: N}}`"
            if limits.any_route
            else ""
        )
        raise RequestRefused(413, "BadRequestError", f"the body is larger than {limits.max_body_bytes} bytes{more}")


async def receive(request: ClientRequest, charge: Charge, deadline: Deadline, limits: GatewayLimits) -> bytes:
    """Receive and return the whole body of a request, charged to the client."""
    if request.is_whole:
        body = request.take_unread()
        require_size(len(body), limits)
        charge.grow_to(len(body), limits)
        return body
    size = int(request.headers.get(b"content-length", 0))
    require_size(size, limits)
    charge.grow_to(size, limits)
    if request.headers.get(b"expect", b"").lower() == b"100-continue":
        request.send_continue()
    parts, size = [], 0
    while True:
        deadline.set("body", limits.client_idle_s)
        try:
            part = await request.readany()
        except MalformedMessage:
            raise RequestRefused(400, "BadRequestError", "the body is malformed") from None
        if not part:
            break
        parts.append(part)
        size += len(part)
        require_size(size, limits)
        charge.grow_to(size, limits)
        if request.has_too_many_pieces:
            raise RequestRefused(
                400, "BadRequestError", f"the body came in more than {MOST_PIECES} pieces; send longer pieces"
            )
    deadline.set("total", limits.total_s)
    return b"".join(parts)
