"""SSH connection to a pod for many threads: a channel per command, with limits on channels and packets.

`Link` takes an address and the pod's own known_hosts file. `fabric_connection` opens the connection.
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

REFUSED_S = 0.02  # seconds before a refused session is requested again
SESSIONS = 8  # concurrent sessions; sshd allows ten by default, and the user's shell needs a session too
LONGEST_PACKET_BYTES = 1 << 18  # limit of OpenSSH
GREETING_BYTES = 1 << 18  # limit of the lines before the server's version
SLACK_BYTES = 1 << 16  # tolerance beyond the channel window


_LOADING = threading.Lock()


class _Port:
    """A channel with a shutdown that wakes readers, as for a socket."""

    def __init__(self, channel: Any) -> None:
        self.recv, self.sendall, self._channel = channel.recv, channel.sendall, channel

    def shutdown(self, how: int) -> None:
        if how == socket.SHUT_RDWR:
            hush(self._channel)
        else:
            self._channel.shutdown(how)


class Link:
    """An open connection. The constructor raises Unreachable, HostKeyMismatch, AuthError or UsageError."""

    def __init__(self, address: Address, known_hosts: Path) -> None:
        self._free = threading.BoundedSemaphore(SESSIONS)
        self._closed = threading.Event()
        self._connection = connection(address, known_hosts, transport_factory=_transport)
        self._connection.open()
        self.transport = self._connection.transport

    @property
    def is_silent(self) -> bool:
        """Return whether the connection was closed because the machine stopped responding."""
        return bool(self._connection.is_silent)

    @property
    def is_alive(self) -> bool:
        return not self.is_silent and self.transport.is_active()

    @contextlib.contextmanager
    def open_session(self, timeout_s: float) -> Iterator[Any]:
        """Yield a channel for a command. Raises TimeoutError, or paramiko's error for a lost connection."""
        deadline = time.monotonic() + max(0.1, timeout_s)
        if not self._free.acquire(timeout=max(0.1, timeout_s)):
            raise TimeoutError(f"all {SESSIONS} sessions of the connection are in use")
        try:
            with self._closing_channel(self._open_channel(min(deadline, time.monotonic() + OPEN_S))) as channel:
                yield channel
        finally:
            self._free.release()

    @contextlib.contextmanager
    def open_port(self, number: int) -> Iterator[Any]:
        """Yield a socket-like channel to a port on the pod's loopback interface.

        Raises paramiko's error if no server listens on the port.
        """
        here = there = ("127.0.0.1", number)
        with self._closing_channel(self.transport.open_channel("direct-tcpip", there, here, timeout=OPEN_S)) as channel:
            yield _Port(channel)

    def _open_channel(self, deadline: float) -> Any:
        from paramiko import SSHException

        while True:
            try:
                return self.transport.open_session(timeout=max(0.1, deadline - time.monotonic()))
            except SSHException as error:
                # sshd may still count a session closed just now. paramiko reports sshd's reason to a single thread of
                # several refused threads, so the error type carries no information.
                if not self.is_alive:
                    raise
                if time.monotonic() > deadline:
                    raise TimeoutError(f"no session was opened: {error}") from None
                self._closed.wait(REFUSED_S)

    @contextlib.contextmanager
    def _closing_channel(self, channel: Any) -> Iterator[Any]:
        """Send CLOSE to the pod after the channel's last user has finished: see `_transport`."""
        from paramiko import SSHException
        from paramiko.common import cMSG_CHANNEL_CLOSE

        try:
            yield channel
        finally:
            hush(channel)
            with contextlib.suppress(SSHException, EOFError, OSError):  # connection and channel are lost
                self.transport._send_user_message(_message(cMSG_CHANNEL_CLOSE, channel))
            self.transport._unlink_channel(channel.chanid)

    def send(self, channel: Any, kind: str, *fields: str) -> None:
        """Send a channel request without waiting for a reply; the channel's later behavior shows the result."""
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
    """Return an unopened Fabric connection.

    A lock serializes the imports: the libraries' modules import each other, and concurrent imports get half-initialized
    modules.
    """
    with _LOADING:
        from infra.transport.fabric_connection import PodConnection
    return PodConnection(address, known_hosts, **more)


def hush(channel: Any) -> None:
    """Wake all readers and writers of a channel, and block further traffic."""
    with channel.lock:
        channel._set_closed()


def _message(kind: bytes, channel: Any) -> Any:
    from paramiko.message import Message

    message = Message()
    message.add_byte(kind)
    message.add_int(channel.remote_chanid)
    return message


def _transport(*words: Any, **flags: Any) -> Any:
    """Return a paramiko Transport with CLOSE replies left to the channel's user and with size limits.

    By default, paramiko's own thread answers CLOSE at once. A message from a second thread on the same channel may then
    arrive after CLOSE; the message refers to a channel unknown to sshd and ends the whole connection. paramiko also
    buffers data of an untrusted machine regardless of packet length and channel window.
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
    """Pass data to a channel. Raises SSHException, which ends the connection, beyond the channel's window."""
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
            raise _rogue(f"{num_bytes} bytes before the version")
        return piece

    return bounded


def _rogue(what: str) -> Exception:
    from paramiko import SSHException

    return SSHException(f"the machine broke the protocol and sent {what}; the connection was closed")
