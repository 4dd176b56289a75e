"""Listening sockets of the gateway, which accept as many connections as file descriptors permit.

asyncio's servers do not fit: without a free descriptor, uvloop's server closes the port for good, while this port
pauses for REST_S seconds. Unwanted connections are also refused before any object is made for them. `take` receives
connected sockets with the accounting address; `short` is called on every shortage.
"""

import asyncio
import errno
import logging
import socket
from collections.abc import Callable
from typing import Any

from serve.gateway.http.connection_pool import address_of

BACKLOG = 1024
AT_ONCE = 16  # per turn of the loop: accepted clients are read before newcomers fill a share
REST_S = 0.1
NOT_HERE = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)  # the host name has an address that this machine lacks

log = logging.getLogger(__name__)


class Acceptor:
    """Listening sockets of a gateway. Use within a single event loop; call `open` once."""

    def __init__(self, take: Callable[[socket.socket, str], None], short: Callable[[], object]) -> None:
        self.take, self.short = take, short
        self._loop = asyncio.get_running_loop()
        self._sockets: list[socket.socket] = []
        self._is_short = False

    async def open(self, host: str, port: int) -> int:
        """Listen on the same port at all addresses of `host`, and return the port. Raises OSError."""
        passive = socket.AI_PASSIVE
        found = await self._loop.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=passive)
        try:
            for family, _, _, _, address in dict.fromkeys(found):
                port = self._listen(family, (address[0], port, *address[2:])) or port
            if not self._sockets:
                raise OSError(errno.EADDRNOTAVAIL, f"this machine has no address {host}")
        except OSError:
            self.close()
            raise
        for one in self._sockets:
            self._loop.add_reader(one, self._accept, one)
        return port

    def close(self) -> None:
        while self._sockets:
            one = self._sockets.pop()
            self._loop.remove_reader(one)
            one.close()

    def _listen(self, family: int, address: tuple[Any, ...]) -> int:
        try:
            made = socket.create_server(address, family=family, backlog=BACKLOG)
        except OSError as error:
            if error.errno in NOT_HERE:
                return 0
            raise
        made.setblocking(False)
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # inherited by accepted connections
        self._sockets.append(made)
        return int(made.getsockname()[1])

    def _accept(self, door: socket.socket) -> None:
        for _ in range(AT_ONCE):
            try:
                near, peer = door.accept()
            except BlockingIOError:  # no more clients
                return
            except ConnectionError:  # the client has left
                continue
            except OSError as error:  # no free file descriptor or memory: transient
                self._pause(door, error)
                return
            self._is_short = False
            near.setblocking(False)
            self.take(near, address_of(peer))

    def _pause(self, door: socket.socket, error: OSError) -> None:
        if not self._is_short:  # a warning per shortage
            log.warning("gateway: no connection can be taken: %s", error)
        self._is_short = True
        self._loop.remove_reader(door)
        self._loop.call_later(REST_S, self._resume, door)
        self.short()

    def _resume(self, door: socket.socket) -> None:
        if door in self._sockets:
            self._loop.add_reader(door, self._accept, door)
