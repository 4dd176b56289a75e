"""Connections of a service whose replicas run a program of the user: all header fields are kept, and tunnels are open.

A ProgramConnection collects the header fields of a request in order, with repeats, and turns a WebSocket handshake into
a tunnel. A ProgramLine does the same for the answer of the program. The connections of a model service keep neither
(savings: bench/RESULTS.md).
"""

from serve.gateway.http.connections import EngineReply, Home, Line
from serve.gateway.http.listener import Connection
from serve.gateway.http.wire import Message

IDLE_S = 1.0  # programs may close an idle connection earlier than engines: gunicorn after 2 s
WEBSOCKET = b"websocket"


class ProgramConnection(Connection):
    """Connection of a client."""

    __slots__ = ("_fields", "_tunnel")

    def __init__(self, *words: object) -> None:
        super().__init__(*words)  # type: ignore[arg-type]
        self._fields: list[tuple[bytes, bytes]] = []
        self._tunnel: Message | None = None  # receives all further bytes

    def data_received(self, data: bytes) -> None:
        if self._tunnel is None:
            super().data_received(data)
        else:
            self._tunnel.feed(data)
            self.received.set()

    def _switch(self, rest: bytes) -> bytes:
        request = self._pending[-1] if self._pending else None
        if request is None or request.tunnel is None or self._ignores_input:
            return super()._switch(rest)
        self._tunnel = request.tunnel
        if rest:
            self._tunnel.feed(rest)
        return b""

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._fields = []

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._incoming is None:
            self._fields.append((name, value.strip()))
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        super().on_headers_complete()
        request = self._incoming
        if request is not None and request.fields is None:
            request.fields = self._fields
            asked = request.headers.get(b"upgrade", b"").lower()
            if asked == WEBSOCKET and request.method == b"GET" and self._parser.should_upgrade() and not self._framing:
                request.tunnel = Message(self)


class ProgramReply(EngineReply):
    """Answer of a program while the bytes arrive."""

    reason = b""
    length: bytes | None = None  # Content-Length
    is_head = False  # the request was HEAD, so no body follows
    wants_tunnel = False  # the request was a WebSocket handshake

    def __init__(self, line: "ProgramLine", home: Home) -> None:
        super().__init__(line, home)
        self.fields: list[tuple[bytes, bytes]] = []

    @property
    def is_tunnel(self) -> bool:
        """Return whether the program has accepted the handshake: the bytes after the headers are a tunnel."""
        return self.status == 101


class ProgramLine(Line):
    """Connection to a program."""

    __slots__ = ()
    _reply: ProgramReply | None

    def send_request(self, request: bytes, home: Home) -> ProgramReply:
        self.send(request)
        self._reply = reply = ProgramReply(self, home)
        return reply

    def data_received(self, data: bytes) -> None:
        if self._reply is not None and self._reply.is_tunnel:
            self._reply.feed(data)
            self.received.set()
        else:
            super().data_received(data)

    def _switch(self, rest: bytes) -> None:
        if self._reply is None or not self._reply.is_tunnel:
            super()._switch(rest)
        elif rest:
            self._reply.feed(rest)

    def on_status(self, part: bytes) -> None:
        if self._reply is not None:
            self._reply.reason += part

    def on_header(self, name: bytes, value: bytes) -> None:
        reply, low = self._reply, name.lower()
        if reply is None or reply.status:
            return  # a trailer after the body
        reply.fields.append((name, value))
        if low == b"content-length":
            reply.length, reply.has_length = value, True
        elif low == b"transfer-encoding":
            reply.has_length = True
        elif low == b"content-type":
            reply.is_events = value.lower().startswith(b"text/event-stream")

    def on_headers_complete(self) -> None:
        self._head_bytes = 0
        status, reply = self._parser.get_status_code(), self._reply
        assert reply is not None
        if status < 200 and not (status == 101 and reply.wants_tunnel):
            reply.fields, reply.reason, reply.is_events, reply.has_length, reply.length = [], b"", False, False, None
            return  # an interim response
        reply.status = status
        self.is_spent = self.is_spent or status == 101 or not self._parser.should_keep_alive()
        if reply.is_head:  # the parser expects the body that Content-Length announces
            reply.is_whole = self.is_spent = True
            self._reply = None

    def on_message_complete(self) -> None:
        if self._reply is not None and not self._reply.is_tunnel:
            super().on_message_complete()


class ProgramHome(Home):
    """Pool of connections to a program."""

    kind = ProgramLine
    idle_s = IDLE_S
