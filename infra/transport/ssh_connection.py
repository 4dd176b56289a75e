"""One SSH connection to a pod: opened with its own key only, pinned to one host key, watched while it lives.

In: an address and the pod's own known_hosts file. Out: channels. A dropped link gives no error of its own, so the
pod is asked for a sign of life, and a connection that stays silent is closed, which wakes whoever waits on it.
"""

import contextlib
import logging
import os
import shlex
import socket
import stat
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from infra.errors import AuthError, SlipwayError, UsageError
from infra.records import Address
from infra.transport.protocol import Unreachable
from store import local_files

OPEN_S = 10.0  # each of: TCP, banner, key exchange, authentication
PING_S = 3.0
SILENT_S = 12.0  # a verdict within 15 s, whatever the scheduler does
TICK_S = 0.5
REFUSED_S = 0.02  # until a refused session is asked for again
SESSIONS = 8  # at once; sshd allows ten by default, and a shell may want one
ALIAS = "pod"  # the one name in a pod's known_hosts: its address may change, its key may not


_LOADING = threading.Lock()


class StrangeHost(SlipwayError):
    """Another host key than the pinned one: nothing was sent."""


class _Counted(socket.socket):
    """A socket that counts what arrives, so that silence can be told from work."""

    heard = 0

    def recv(self, *words: Any) -> bytes:
        got = super().recv(*words)
        self.heard += bool(got)
        return got


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
        _load()
        self.silent = False
        self._free = threading.BoundedSemaphore(SESSIONS)
        self._closed = threading.Event()
        check_key(address)
        self._socket = _dial(address)
        try:
            self._client = _authenticate(address, known_hosts, self._socket)
        except BaseException:
            self._socket.close()
            raise
        self.transport = self._client.get_transport()
        for name, work in (("watch", self._watch), ("ask", self._ask)):
            threading.Thread(target=work, name=f"{name} {address.host}", daemon=True).start()

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
        self._client.close()

    def _ask(self) -> None:
        """Ask for an answer every PING_S, whatever else is sent.

        paramiko's own keep-alive is put off by everything that we send: who only sends would never be answered.
        """
        from paramiko import SSHException

        while self.transport.is_active() and not self._closed.wait(PING_S):
            with contextlib.suppress(SSHException, EOFError, OSError):  # the connection is gone: whoever uses it hears
                self._ping()

    def _ping(self) -> None:
        """Ask for an answer, whichever; sshd refuses the unknown request, and that is one."""
        from paramiko.common import cMSG_GLOBAL_REQUEST
        from paramiko.message import Message

        message = Message()
        message.add_byte(cMSG_GLOBAL_REQUEST)
        message.add_string("keepalive@openssh.com")
        message.add_boolean(True)
        self.transport._send_user_message(message)

    def _watch(self) -> None:
        """Close the connection after SILENT_S of silence, counted in ticks: while this process sleeps none passes."""
        heard, quiet_s = -1, 0.0
        while self.transport.is_active() and not self._closed.wait(TICK_S):
            quiet_s = quiet_s + TICK_S if self._socket.heard == heard else 0.0
            heard = self._socket.heard
            if quiet_s >= SILENT_S:
                self.silent = True
                with contextlib.suppress(OSError):  # it fell just now by itself
                    self._socket.shutdown(socket.SHUT_RDWR)


def check_key(address: Address) -> None:
    """Raise UsageError when its private key is not here, or others than its owner may read it, as `ssh` does."""
    where, key = f"ssh {address.user}@{address.host}", Path(address.key)
    if not key.is_file():
        raise UsageError(f"{where}: its key {address.key or '(none)'} is not here")
    seen = key.stat()
    if seen.st_uid == os.getuid() and seen.st_mode & 0o077:
        mode = f"{stat.S_IMODE(seen.st_mode):03o}"
        raise UsageError(
            f"{where}: others may read its private key {key} (mode {mode}), so it is not used; if nobody has: "
            f"chmod 600 {shlex.quote(str(key))}"
        )


def _load() -> None:
    """Import the libraries in one thread: their modules import each other, and two at once get halves of them."""
    with _LOADING:
        import fabric  # noqa: F401


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
    """Return a paramiko Transport that leaves the last word on a channel to the channel's user.

    By itself it answers a CLOSE at once, from its own thread; what another thread sends at that moment on the same
    channel
    comes after it, is about a channel that sshd no longer knows, and costs the whole connection.
    """
    from paramiko import Transport
    from paramiko.common import MSG_CHANNEL_CLOSE

    transport = Transport(*words, **flags)
    transport._channel_handler_table = {
        **Transport._channel_handler_table, MSG_CHANNEL_CLOSE: lambda channel, message: hush(channel)
    }  # fmt: skip
    return transport


def _dial(address: Address) -> _Counted:
    try:
        plain = socket.create_connection((address.host, address.port), timeout=OPEN_S)
    except OSError as error:
        raise Unreachable(f"ssh {address.host}:{address.port}: {error}") from None
    counted = _Counted(plain.family, plain.type, plain.proto, fileno=plain.detach())
    counted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # paramiko writes small packets and leaves it off
    return counted


def _authenticate(address: Address, known_hosts: Path, connected: socket.socket) -> Any:
    """Return a client whose host is the pinned one and which let our key in."""
    import fabric
    from paramiko import AuthenticationException, BadHostKeyException, SSHConfig, SSHException

    where = f"ssh {address.user}@{address.host}:{address.port}"
    connection = fabric.Connection(
        address.host,
        user=address.user,
        port=address.port,
        config=fabric.Config(ssh_config=SSHConfig(), lazy=True),  # no file of the user or the system has a say
        connect_timeout=OPEN_S,
        connect_kwargs={
            "sock": connected, "key_filename": address.key, "allow_agent": False, "look_for_keys": False,
            "banner_timeout": OPEN_S, "auth_timeout": OPEN_S, "transport_factory": _transport,
        },
    )  # fmt: skip
    client = connection.client
    client.set_log_channel("slipway.paramiko")
    logging.getLogger("slipway.paramiko").disabled = True  # it prints tracebacks; what matters is raised
    client.set_missing_host_key_policy(_PinFirst(known_hosts))
    pin = pinned(known_hosts)
    if pin is not None:
        name = address.host if address.port == 22 else f"[{address.host}]:{address.port}"
        client.get_host_keys().add(name, pin.get_name(), pin)
    try:
        connection.open()
    except BaseException as error:
        alive = client.get_transport() is not None and client.get_transport().is_active()
        client.close()
        if isinstance(error, BadHostKeyException):
            raise StrangeHost(
                f"{where} shows host key {error.key.fingerprint}, pinned is {error.expected_key.fingerprint}: another"
                f" machine answers at this address; nothing was sent (the pin is in {known_hosts})"
            ) from None
        if isinstance(error, AuthenticationException) and alive and "timeout" not in str(error):
            raise AuthError(f"{where}: the key {address.key} was not let in: {error}") from None
        if isinstance(error, (SSHException, EOFError, OSError)):
            raise Unreachable(f"{where}: {error or 'the connection was closed'}") from None
        raise
    return client


class _PinFirst:
    """The policy of paramiko for a host that has no pin yet."""

    def __init__(self, known_hosts: Path) -> None:
        self.known_hosts = known_hosts

    def missing_host_key(self, client: Any, hostname: str, key: Any) -> None:
        from paramiko import BadHostKeyException

        expected = pin_first(self.known_hosts, key)
        if expected != key:
            raise BadHostKeyException(hostname, key, expected)


def pinned(known_hosts: Path) -> Any:
    """Return the host key in a pod's known_hosts; None when there is no file yet.

    Raises UsageError when it is damaged.
    """
    from paramiko.hostkeys import HostKeyEntry, InvalidHostKey

    try:
        entry = HostKeyEntry.from_line(known_hosts.read_text())
    except FileNotFoundError:
        return None
    except (InvalidHostKey, ValueError):
        entry = None
    if entry is None:
        raise UsageError(f"{known_hosts} holds no host key; nothing is sent to a host that cannot be told")
    return entry.key


def pin_first(known_hosts: Path, key: Any) -> Any:
    """Pin `key` unless there is a pin; of two that do so at once, one wins. Returns the pin."""
    known_hosts.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with contextlib.suppress(FileExistsError):  # someone else was first
        local_files.create(known_hosts, f"{ALIAS} {key.get_name()} {key.get_base64()}\n".encode(), mode=0o600)
    return pinned(known_hosts)
