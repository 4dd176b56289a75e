"""Fabric connections to machines, each with the keys of its address, a pinned host key and a liveness check.

`PodConnection` takes an address and the machine's own known_hosts file, and works like any `fabric.Connection`. A
dropped link raises no error by itself, so a thread pings the machine, and a second thread closes a silent connection,
which wakes all waiting callers.
"""

import contextlib
import itertools
import logging
import os
import shutil
import socket
import subprocess
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import fabric
from fabric.transfer import Result as Transferred
from paramiko import AuthenticationException, BadAuthenticationType, BadHostKeyException, SSHConfig, SSHException
from paramiko.common import cMSG_GLOBAL_REQUEST
from paramiko.message import Message
from paramiko.pkey import PublicBlob

from infra.errors import AuthError, SlipwayError, UsageError
from infra.records import Address, bracketed
from infra.transport.host_keys import HostKeyMismatch, PinFirstKey, pinned
from infra.transport.private_keys import AGENT_S, LoginKey, login_keys
from infra.transport.protocol import OPEN_S, SILENT_S, Unreachable

PING_S = 3.0
PROXY_BYTES = 8 << 10
TICK_S = 0.5
NO_SHELLS = ("nologin", "false")
NO_ALGORITHM = "agree on a pubkey algorithm"  # of paramiko, before the key is offered


class _CountingSocket(socket.socket):
    """A socket with a counter of received data, by which the watcher detects silence."""

    heard = 0
    proxy: "subprocess.Popen[bytes] | None" = None
    proxy_errors: Any = None

    def proxy_message(self) -> str:
        """Return the last line that the proxy printed to stderr; "" without a proxy."""
        if self.proxy_errors is None:
            return ""
        self.proxy_errors.seek(0)
        lines = self.proxy_errors.read(PROXY_BYTES).decode(errors="replace").split("\n")
        return next((f"proxy: {line.strip()}" for line in reversed(lines) if line.strip()), "")

    def recv(self, *words: Any) -> bytes:
        got = super().recv(*words)
        self.heard += bool(got)
        return got


class PodConnection(fabric.Connection):  # type: ignore[misc]
    """A connection to a machine, opened on first use and reopened after a loss.

    Opening raises Unreachable, HostKeyMismatch, AuthError or UsageError.
    """

    # Fabric treats an attribute without a class declaration as a setting.
    name = ""
    folder = ""
    address: Any = None
    known_hosts: Any = None
    is_silent = False
    _closed: Any = None

    def __init__(self, address: Address, known_hosts: Path, name: str = "", folder: str = "", **more: Any) -> None:
        """Store the address; `name` and `folder` belong to the pod, `more` goes to `paramiko.SSHClient.connect`."""
        super().__init__(
            address.host,
            user=address.user,
            port=address.port,
            # ignore the ssh configuration files of the user and the system
            config=fabric.Config(ssh_config=SSHConfig(), lazy=True),
            connect_timeout=OPEN_S,
            connect_kwargs={"banner_timeout": OPEN_S, "auth_timeout": OPEN_S, **more},
        )
        self.name, self.folder, self.address, self.known_hosts = name or address.host, folder, address, known_hosts
        self.client.set_log_channel("slipway.paramiko")
        logging.getLogger("slipway.paramiko").disabled = True  # paramiko logs tracebacks; relevant errors are raised
        self.client.set_missing_host_key_policy(PinFirstKey(known_hosts))

    def _identity(self) -> tuple[Any, ...]:
        return (*super()._identity(), self.name)  # two pods may share one machine

    def open(self) -> Any:
        """Open the connection unless already open."""
        unfit: dict[Path, SlipwayError] = {}
        while not self.is_connected:
            try:
                return self._open(_KeyLogin(self.address, unfit))
            except _UnfitKey as error:  # paramiko has ended the connection
                unfit[error.path] = error.why
        return None

    def _open(self, login: "_KeyLogin") -> Any:
        self.connect_kwargs["auth_strategy"] = login
        pin = pinned(self.known_hosts)
        if pin is not None:
            name = self.host if self.port == 22 else f"[{self.host}]:{self.port}"
            self.client.get_host_keys().add(name, pin.get_name(), pin)
        connected = _dial(self.address)
        self.connect_kwargs["sock"], self._sftp, self.is_silent = connected, None, False
        try:
            opened = super().open()
        except BaseException as error:
            try:
                self._raise_open_error(error)
            finally:
                connected.close()
            raise
        self._closed = threading.Event()
        for name, work in (("watch", self._watch_silence), ("ask", self._ping_loop)):
            words = (connected, self.transport, self._closed)
            threading.Thread(target=work, args=words, name=f"{name} {self.host}", daemon=True).start()
        return opened

    def close(self) -> None:
        """Close the connection and thereby end all waiting calls."""
        if self._closed is not None:
            self._closed.set()
        super().close()
        self.client.close()

    def _raise_open_error(self, error: BaseException) -> None:
        """Translate an error of opening into HostKeyMismatch or Unreachable; return for other errors."""
        where = f"ssh {self.user}@{bracketed(self.host)}:{self.port}"
        self.client.close()
        if isinstance(error, BadHostKeyException):
            raise HostKeyMismatch(
                f"{where} shows host key {error.key.fingerprint}, pinned is {error.expected_key.fingerprint}: a"
                f" different machine answers at this address; no data was sent (the pin is in {self.known_hosts})"
            ) from None
        if isinstance(error, (SSHException, EOFError, OSError)):
            said = self.connect_kwargs["sock"].proxy_message()
            raise Unreachable(f"{where}: {said or error or 'the connection was closed'}") from None

    def _ping_loop(self, connected: _CountingSocket, transport: Any, closed: threading.Event) -> None:
        """Ping the machine every PING_S, independent of other traffic.

        Outgoing traffic postpones paramiko's own keep-alive: a client with only outgoing traffic would never get a
        reply.
        """
        while transport.is_active() and not closed.wait(PING_S):
            with contextlib.suppress(SSHException, EOFError, OSError):  # connection lost: the next use raises
                self._ping(transport)

    def _ping(self, transport: Any) -> None:
        """Send a global request with a mandatory reply; sshd refuses the unknown request, which suffices."""
        message = Message()
        message.add_byte(cMSG_GLOBAL_REQUEST)
        message.add_string("keepalive@openssh.com")
        message.add_boolean(True)
        transport._send_user_message(message)

    def _watch_silence(self, connected: _CountingSocket, transport: Any, closed: threading.Event) -> None:
        """Close the connection after SILENT_S without received data.

        The loop counts ticks instead of clock time, so a suspended process does not count the suspension as silence.
        """
        heard, quiet_s = -1, 0.0
        while transport.is_active() and not closed.wait(TICK_S):
            quiet_s = quiet_s + TICK_S if connected.heard == heard else 0.0
            heard = connected.heard
            if quiet_s >= SILENT_S:
                self.is_silent = True
                with contextlib.suppress(OSError):  # the connection broke meanwhile
                    connected.shutdown(socket.SHUT_RDWR)


class _UnfitKey(Exception):
    """A key that ended a connection, for a reason of this key alone."""

    def __init__(self, path: Path, why: SlipwayError) -> None:
        super().__init__(str(why))
        self.path, self.why = path, why


class _Signing:
    """Signatures of a key; `problem`: why the key did not sign, in the thread of the transport."""

    def __init__(self, one: LoginKey) -> None:
        self.problem = ""
        sign = type(one.key).sign_ssh_data  # not the signature of an earlier offer of this key

        def watched(*words: Any) -> Any:
            try:
                return sign(one.key, *words)
            except Exception as error:
                said = f"the key {one.path} does not sign: {error}"
                if one.is_of_agent:
                    verb = "does not answer in time to sign" if isinstance(error, OSError) else "refuses to sign"
                    said = (
                        f"the ssh-agent {verb} with the key {one.path}: confirm the use of the key, or unlock the "
                        "agent (ssh-add -X), then run the command again"
                    )
                self.problem = said
                raise SSHException(said) from None  # the transport cannot report a timeout of an agent

        one.key.sign_ssh_data = watched


class _KeyLogin:
    """Login with the keys of an address: a strategy of paramiko, which by itself loses the reason of a refusal."""

    def __init__(self, address: Address, unfit: Mapping[Path, SlipwayError]) -> None:
        """Load the first key; `unfit`: keys that are not offered. Raises SlipwayError if no key can be used."""
        self._address, self._where, self._unfit = address, f"ssh {address.place}", unfit
        self._left_out = [str(one) for one in unfit.values()]
        keys = (one for one in login_keys(address, self._left_out) if one.path not in unfit)
        first = next(keys, None)
        if first is None:
            kind = type(next(iter(unfit.values()), UsageError()))
            raise kind(f"{self._where}: {'; '.join(self._left_out) or 'the address names no key'}")
        self._keys = itertools.chain((first,), keys)

    def authenticate(self, transport: Any) -> None:
        """Offer the keys one after the other, each with its certificates first, as ssh does.

        Raises AuthError if the machine refuses all keys, and _UnfitKey for a key that cannot sign.
        """
        farewells, refused = _farewells(transport), list[str]()
        why, further = "", list[str]()
        for one, certificate in self._offers():
            one.key.public_blob = PublicBlob.from_file(str(certificate)) if certificate else None
            transport.auth_timeout = OPEN_S + (AGENT_S if one.is_of_agent else 0.0)
            signing = _Signing(one)
            try:
                further = transport.auth_publickey(self._address.user, one.key)
            except AuthenticationException as error:
                if NO_ALGORITHM in str(error):
                    why = f"the machine accepts no signature of the key {one.path}: {error}"
                    raise _UnfitKey(one.path, AuthError(why)) from None
                is_refusal = transport.is_active() or any("authentication" in one.lower() for one in farewells)
                if not is_refusal or "timeout" in str(error):
                    raise
                refused, why = [*refused, str(one.path)], farewells[-1] if farewells else str(error)
                if isinstance(error, BadAuthenticationType) or farewells:
                    break
                continue
            except Exception:
                if signing.problem:
                    raise _UnfitKey(one.path, UsageError(signing.problem)) from None
                raise
            if "publickey" not in further:  # the machine may ask for a second key
                break
        if further:
            self._answer(transport, further)
        elif not transport.is_authenticated():
            names = list(dict.fromkeys(refused))
            said = f"the key {names[0]} was refused" if len(names) == 1 else f"the keys {', '.join(names)} were refused"
            raise AuthError("; ".join((f"{self._where}: {said}: {why}", *self._left_out)))

    def _offers(self) -> Iterator[tuple[LoginKey, Path | None]]:
        for one in self._keys:
            for certificate in (*one.certificates, None):
                yield one, certificate

    def _answer(self, transport: Any, further: Sequence[str]) -> None:
        """Answer the questions of a machine that accepts a key and asks for more. Raises AuthError."""
        try:
            transport.auth_interactive_dumb(self._address.user)
        except AuthenticationException as error:
            raise AuthError(
                f"{self._where}: a key was accepted, but the machine also asks for {' or '.join(further)}: {error}"
            ) from None


def _farewells(transport: Any) -> list[str]:
    """Return a list that receives the reason with which the machine closes the connection."""
    heard: list[str] = []

    def hear(message: Any) -> None:
        message.get_int()
        heard.append(message.get_text())

    transport._parse_disconnect = hear
    return heard


class LocalConnection(fabric.Connection):  # type: ignore[misc]
    """A pod on this machine with the interface of a remote pod; commands start in the user's home folder."""

    name = ""
    folder = ""

    def __init__(self, name: str, folder: str) -> None:
        super().__init__("localhost", config=fabric.Config(ssh_config=SSHConfig(), lazy=True))
        self.name, self.folder = name, folder

    def _identity(self) -> tuple[Any, ...]:
        return (*super()._identity(), self.name)

    @property
    def is_connected(self) -> bool:
        return True

    def open(self) -> None:
        """Do nothing, since a local pod needs no connection."""

    def close(self) -> None:
        """Do nothing, since a local pod needs no connection."""

    def run(self, command: str, **kwargs: Any) -> Any:
        """Run a command on this machine; the counterpart of `PodConnection.run`."""
        with self.cd(str(Path.home())) if not self.command_cwds else contextlib.nullcontext():
            return self._run(self.config.runners.local(self), command, **kwargs)

    def sudo(self, command: str, **kwargs: Any) -> Any:
        """Run a command on this machine as root; the counterpart of `PodConnection.sudo`."""
        return self._sudo(self.config.runners.local(self), command, **kwargs)

    def put(self, local: Any, remote: str | None = None, preserve_mode: bool = True) -> Any:
        """Copy a file or the content of a file-like object to `remote`, relative to the home folder."""
        return self._copy(local, remote, local, os.path.join(Path.home(), remote or ""), preserve_mode)

    def get(self, remote: str, local: Any = None, preserve_mode: bool = True) -> Any:
        """Copy the file `remote`, relative to the home folder, to a local path or into a file-like object."""
        return self._copy(local, remote, os.path.join(Path.home(), remote), local or "", preserve_mode)

    def _copy(self, local: Any, remote: Any, source: Any, target: Any, preserve_mode: bool) -> Any:
        """Copy as paramiko's transfers do: into a target folder under the source's file name."""
        if hasattr(target, "write"):
            target.write(Path(source).read_bytes())
        elif hasattr(source, "read"):
            content = source.read()
            Path(target).write_bytes(content.encode() if isinstance(content, str) else content)
        else:
            target = os.path.abspath(target)
            target = os.path.join(target, os.path.basename(source)) if os.path.isdir(target) else target
            os.makedirs(os.path.dirname(target), exist_ok=True)
            (shutil.copy if preserve_mode else shutil.copyfile)(source, target)
        is_put = target is not local and source is local
        there, here = (target, source) if is_put else (source, target)
        return Transferred(orig_local=local, orig_remote=remote, local=here, remote=there, connection=self)


def _dial(address: Address) -> _CountingSocket:
    if address.proxy:
        return _dial_proxy(address.proxy)
    try:
        plain = socket.create_connection((address.host, address.port), timeout=OPEN_S)
    except OSError as error:
        raise Unreachable(f"ssh {address.host}:{address.port}: {error}") from None
    counted = _CountingSocket(plain.family, plain.type, plain.proto, fileno=plain.detach())
    counted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # paramiko sends small packets without it
    return counted


def _dial_proxy(command: str) -> _CountingSocket:
    """Return a socket to the stdin and stdout of a proxy, which ends when the socket is closed.

    The command runs in the shell of the user, as ssh runs a ProxyCommand. An account of a service may have no shell.
    """
    shell = os.environ.get("SHELL", "")
    if not shutil.which(shell) or os.path.basename(shell) in NO_SHELLS:
        shell = "/bin/sh"
    ours, theirs = socket.socketpair()
    counted = _CountingSocket(ours.family, ours.type, ours.proto, fileno=ours.detach())
    counted.proxy_errors = tempfile.TemporaryFile()  # noqa: SIM115 (closed with the socket)
    with theirs:
        counted.proxy = subprocess.Popen(
            [shell, "-c", f"exec {command}"],
            stdin=theirs.fileno(),
            stdout=theirs.fileno(),
            stderr=counted.proxy_errors,
            env={**os.environ, "SHELL": shell},  # for the commands of further jump hosts
            start_new_session=True,  # Ctrl-C ends the command and leaves the machine reachable for its last calls
        )
    return counted
