"""One SSH connection to a pod, for many threads: a channel for each command, and a bound on how many there are.

In: an address and the pod's own known_hosts file. Out: channels. See `fabric_connection` for how it is opened.
"""

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from infra.records import Address
from infra.transport.protocol import OPEN_S

REFUSED_S = 0.02  # time until a refused session is requested again
SESSIONS = 8  # at once; sshd allows ten by default, and a shell may want one
LONGEST_PACKET_BYTES = 1 << 18  # as OpenSSH takes
GREETING_BYTES = 1 << 18  # of lines in front of the version of the other side
SLACK_BYTES = 1 << 16  # beyond the window of a channel


_LOADING = threading.Lock()


class _Port:
    """A channel whose shutdown wakes who reads from it, as a socket's does."""

    def __init__(self, channel: Any) -> None:
        self.recv, self.sendall, self._channel = channel.recv, channel.sendall, channel

    def shutdown(self, how: int) -> None:
        if how == socket.SHUT_RDWR:
            hush(self._channel)
        else:
            self._channel.shutdown(how)


class Link:
    """An open connection. Raises Unreachable, StrangeHost, AuthError, UsageError when it cannot be made."""

    def __init__(self, address: Address, known_hosts: Path) -> None:
        self._free = threading.BoundedSemaphore(SESSIONS)
        self._closed = threading.Event()
        self._connection = connection(address, known_hosts, transport_factory=_transport)
        self._connection.open()
        self.transport = self._connection.transport

    @property
    def silent(self) -> bool:
        """Return whether it was closed since the machine gave no sign of life."""
        return bool(self._connection.silent)

    @property
    def is_alive(self) -> bool:
        return not self.silent and self.transport.is_active()

    @contextlib.contextmanager
    def session(self, timeout_s: float) -> Iterator[Any]:
        """Yield a channel for one command. Raises TimeoutError, or what paramiko raises when the connection is gone."""
        deadline = time.monotonic() + max(0.1, timeout_s)
        if not self._free.acquire(timeout=max(0.1, timeout_s)):
            raise TimeoutError(f"all {SESSIONS} sessions of the connection are in use")
        try:
            with self._closing(self._opened(min(deadline, time.monotonic() + OPEN_S))) as channel:
                yield channel
        finally:
            self._free.release()

    @contextlib.contextmanager
    def port(self, number: int) -> Iterator[Any]:
        """Yield a port of the pod's loopback, used as a socket.

        Raises what paramiko raises when nothing answers there.
        """
        here = there = ("127.0.0.1", number)
        with self._closing(self.transport.open_channel("direct-tcpip", there, here, timeout=OPEN_S)) as channel:
            yield _Port(channel)

    def _opened(self, deadline: float) -> Any:
        from paramiko import SSHException

        while True:
            try:
                return self.transport.open_session(timeout=max(0.1, deadline - time.monotonic()))
            except SSHException as error:
                # sshd has not yet counted off a session that was closed just now. Its reason is told to one thread of
                # those refused at once, so that the kind of the error says nothing.
                if not self.is_alive:
                    raise
                if time.monotonic() > deadline:
                    raise TimeoutError(f"no session was opened: {error}") from None
                self._closed.wait(REFUSED_S)

    @contextlib.contextmanager
    def _closing(self, channel: Any) -> Iterator[Any]:
        """Tell the pod that the channel is closed, once nobody sends on it any more: see `_transport`."""
        from paramiko import SSHException
        from paramiko.common import cMSG_CHANNEL_CLOSE

        try:
            yield channel
        finally:
            hush(channel)
            with contextlib.suppress(SSHException, EOFError, OSError):  # the connection is gone, and the channel too
                self.transport._send_user_message(_message(cMSG_CHANNEL_CLOSE, channel))
            self.transport._unlink_channel(channel.chanid)

    def send(self, channel: Any, kind: str, *fields: str) -> None:
        """Send a request about a channel without waiting: the answer is in what the channel does next."""
        from paramiko.common import cMSG_CHANNEL_REQUEST

        message = _message(cMSG_CHANNEL_REQUEST, channel)
        message.add_string(kind)
        message.add_boolean(False)
        for field in fields:
            message.add_string(field)
        self.transport._send_user_message(message)

    def close(self) -> None:
        self._closed.set()
        self._connection.close()


def connection(address: Address, known_hosts: Path, **more: Any) -> Any:
    """Return a connection of Fabric's, not open yet.

    The libraries are imported in one thread: their modules import each other, and two at once get halves of them.
    """
    with _LOADING:
        from infra.transport.fabric_connection import PodConnection
    return PodConnection(address, known_hosts, **more)


def hush(channel: Any) -> None:
    """Wake whoever reads from a channel or writes to it; nothing more goes through."""
    with channel.lock:
        channel._set_closed()


def _message(kind: bytes, channel: Any) -> Any:
    from paramiko.message import Message

    message = Message()
    message.add_byte(kind)
    message.add_int(channel.remote_chanid)
    return message


def _transport(*words: Any, **flags: Any) -> Any:
    """Return a paramiko Transport that leaves the last word on a channel to the channel's user, and holds to bounds.

    By itself it answers a CLOSE at once, from its own thread; what another thread sends at that moment on the same
    channel comes after it, is about a channel that sshd no longer knows, and costs the whole connection. And it keeps
    what an untrusted machine sends, however long a packet is, and whatever window the machine was given.
    """
    from paramiko import Transport
    from paramiko.common import MSG_CHANNEL_CLOSE, MSG_CHANNEL_DATA, MSG_CHANNEL_EXTENDED_DATA

    transport = Transport(*words, **flags)
    transport._channel_handler_table = {
        **Transport._channel_handler_table,
        MSG_CHANNEL_CLOSE: lambda channel, message: hush(channel),
        MSG_CHANNEL_DATA: lambda channel, message: _feed(channel, channel._feed, message),
        MSG_CHANNEL_EXTENDED_DATA: lambda channel, message: _feed(channel, channel._feed_extended, message),
    }
    packets = transport.packetizer
    packets.read_all = _bounded_packets(packets.read_all)
    packets._read_timeout = _bounded_greeting(packets._read_timeout)
    return transport


def _feed(channel: Any, feed: Callable[[Any], None], message: Any) -> None:
    """Hand data to a channel. Raises SSHException, which ends the connection, beyond the window of the channel."""
    feed(message)
    if len(channel.in_buffer) + len(channel.in_stderr_buffer) > channel.in_window_size + SLACK_BYTES:
        raise _rogue("more than the window of the channel")


def _bounded_packets(read_all: Callable[..., bytes]) -> Callable[..., bytes]:
    def bounded(num_bytes: int, check_rekey: bool = False) -> bytes:
        if num_bytes > LONGEST_PACKET_BYTES:
            raise _rogue(f"a packet of {num_bytes} bytes")
        return read_all(num_bytes, check_rekey)

    return bounded


def _bounded_greeting(read: Callable[[float], bytes]) -> Callable[[float], bytes]:
    num_bytes = 0

    def bounded(timeout_s: float) -> bytes:
        nonlocal num_bytes
        piece = read(timeout_s)
        num_bytes += len(piece)
        if num_bytes > GREETING_BYTES:
            raise _rogue(f"{num_bytes} bytes before its version")
        return piece

    return bounded


def _rogue(what: str) -> Exception:
    from paramiko import SSHException

    return SSHException(f"the machine breaks the protocol: it sent {what}; the connection was closed")
