"""A machine reached by SSH: the verbs of `Transport` over one connection, for all threads.

A command that may have run is never sent again: what is raised then is `Lost`, and the caller looks before it repeats.
Values of `env` go through the channel's stdin; they are on no command line, here or there.
"""

import contextlib
import itertools
import os
import secrets
import shlex
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from infra.errors import SlipwayError, UsageError
from infra.records import Address
from infra.transport.host_keys import ALIAS
from infra.transport.port_forward import relay
from infra.transport.protocol import (
    LIMIT_BYTES,
    OPEN_S,
    READ_BYTES,
    SILENT_S,
    TAIL_BYTES,
    Lost,
    Result,
    Silent,
    TimedOut,
    TooLarge,
    Unreachable,
    tied,
)
from infra.transport.ssh_connection import Link, connection, hush
from infra.transport.streams.bounded import Exceeded, KeptStream, StreamEnd, WholeStream

FILE_S = 120.0  # to put or get one file
PULSE_S = 1.0
ENDED_S = 2.0  # time from the end of a program's output to the news of its exit
_KILL_S = 2.0
_ABSENT, _IRREGULAR = 44, 45  # exit codes
_CHUNK = 1 << 16


class Ssh:
    """The transport over SSH. It connects at the first call and again when it was lost.

    `known_hosts` is this pod's alone.
    """

    python = "python3"
    agent = "infra.agent"

    def __init__(self, address: Address, known_hosts: Path) -> None:
        self.address = address
        self.known_hosts = known_hosts
        self._link: Link | None = None
        self._opening = threading.Lock()

    def __enter__(self) -> "Ssh":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        link, self._link = self._link, None
        if link is not None:
            link.close()

    def run(
        self,
        words: Sequence[str],
        *,
        stdin: bytes | Iterable[bytes] | None = None,
        timeout_s: float,
        cwd: str | Path | None = None,
        env: Mapping[str, str] | None = None,
        limit_bytes: int = LIMIT_BYTES,
    ) -> Result:
        """Run words as in Transport.

        Raises TimedOut and TooLarge (it was killed there), Lost, Unreachable, StrangeHost, AuthError.
        """
        script, out, err = _script(words, cwd), WholeStream(limit_bytes), WholeStream(limit_bytes)
        try:
            code = self._converse(script, words[0], stdin, timeout_s, out, err, env or {})
        except Exceeded:
            raise TooLarge(self._where, shlex.join(words), limit_bytes) from None
        return Result(code, out.value().decode(errors="replace"), err.value().decode(errors="replace"))

    def put(self, content: bytes, path: str | Path, mode: int = 0o644) -> None:
        folder, name = os.path.split(str(path))
        draft = shlex.quote(os.path.join(folder, f".{name}.{secrets.token_hex(4)}.draft"))
        place = shlex.quote(str(path))
        # The count, since a connection that breaks looks like the end of the file. Not every `sync` takes a name.
        steps = [
            "umask go-w", f"mkdir -p -- {shlex.quote(folder or '.')}", "umask 077", f"cat > {draft}",
            f'[ "$(wc -c < {draft})" -eq {len(content)} ]', f"chmod {mode:o} {draft}",
            f"{{ sync {draft} 2>/dev/null || sync; }}", f"mv -f {draft} {place}",
        ]  # fmt: skip
        script = f"{' && '.join(steps)} || {{ rm -f {draft}; exit 1; }}"
        self._checked(script, f"put {path}", LIMIT_BYTES, content)

    def get(self, path: str | Path, limit_bytes: int = LIMIT_BYTES) -> bytes:
        # One byte more, by which a file of that size is told from a larger one.
        head = f"head -c {limit_bytes + 1} < {shlex.quote(str(path))}"
        return self._checked(_regular(path, head), f"get {path}", limit_bytes)

    def read(self, path: str | Path, offset: int) -> bytes:
        tail = f"tail -c +{offset + 1} < {shlex.quote(str(path))} | head -c {READ_BYTES}"
        return self._checked(_regular(path, tail), f"read {path}", READ_BYTES)

    @contextlib.contextmanager
    def forward(self, local_port: int, remote_port: int) -> Iterator[int]:
        """Forward a port. Raises UsageError when it is taken here; nothing is opened there before the first caller."""

        @contextlib.contextmanager
        def dial() -> Iterator[Any]:
            with contextlib.ExitStack() as stack:
                try:
                    channel = stack.enter_context(self._open(time.monotonic() + OPEN_S).port(remote_port))
                except _broken() as error:
                    raise Unreachable(f"{self._where}: port {remote_port} there: {error}") from None
                yield channel

        with relay(local_port, dial) as port:
            yield port

    @contextlib.contextmanager
    def alongside(self, words: Sequence[str], cwd: str | Path | None = None) -> Iterator[Callable[[], Result | None]]:
        over = threading.Event()

        def pulse() -> Iterator[bytes]:
            while not over.wait(PULSE_S):  # a write also tells whether anybody reads
                yield b"."

        def run() -> Result:
            out, err, for_days_s = StreamEnd(TAIL_BYTES), StreamEnd(TAIL_BYTES), threading.TIMEOUT_MAX / 2
            code = self._converse(_script(tied(words), cwd), words[0], pulse(), for_days_s, out, err, {})
            return Result(code, out.value().decode(errors="replace"), err.value().decode(errors="replace"))

        with ThreadPoolExecutor(1) as pool:
            ending = pool.submit(run)
            try:
                yield lambda: ending.result() if ending.done() else None
            finally:
                over.set()

    def connection(self, name: str, folder: str) -> Any:
        """Return a `fabric.Connection` of its own to this machine, not open yet; `name` and `folder` are the pod's."""
        return connection(self.address, self.known_hosts, name=name, folder=folder)

    def shell(self, words: Sequence[str] | None = None, cwd: str | Path | None = None) -> int:
        if not shutil.which("ssh"):
            raise UsageError("there is no ssh on this machine; install openssh-client")
        self._open(time.monotonic() + OPEN_S)  # it pins the host key, which the line below insists on
        return subprocess.run(self.line(words, cwd, is_terminal=sys.stdin.isatty())).returncode

    @contextlib.contextmanager
    def exchange(self, words: Sequence[str], cwd: str | Path) -> Iterator["Conversation"]:
        """Run a program that is talked with: what it reads and what it says are bytes, in any pieces.

        It is not ended with this; a program that reads its stdin sees the end of that. Raises Unreachable, Lost.
        """
        script = f"cd -- {shlex.quote(str(cwd))} && exec {shlex.join(words)}"
        with self._session(time.monotonic() + OPEN_S) as (link, channel):
            link.send(channel, "exec", "exec sh -c " + shlex.quote(script))
            yield Conversation(channel, lambda why: self._lost(link, words[0], why))

    def line(
        self, words: Sequence[str] | None = None, cwd: str | Path | None = None, is_terminal: bool = True
    ) -> list[str]:
        """Return the command of OpenSSH's that connects as we do: this key, this host key, nothing forwarded."""
        options = {**self.options, "BatchMode": "yes", "PasswordAuthentication": "no"}
        flags = [word for key, value in options.items() for word in ("-o", f"{key}={value}")]
        key = self.address.key.replace("%", "%%")
        line = ["ssh", "-F", "none", "-i", key, "-p", str(self.address.port), *flags, "-t" if is_terminal else "-T"]
        line += ["-l", self.address.user, "--", self.address.host]
        there = f"cd -- {shlex.quote(str(cwd))} && " if cwd is not None else ""
        if words is not None or there:
            line.append(there + ("exec " + shlex.join(words) if words is not None else 'exec "$SHELL" -l'))
        return line

    @property
    def options(self) -> dict[str, str]:
        """Return OpenSSH's options by which a session is with this machine and no other, and stays private."""
        pins = str(self.known_hosts.absolute()).replace("%", "%%")
        return {
            "IdentitiesOnly": "yes", "IdentityAgent": "none", "StrictHostKeyChecking": "yes", "HostKeyAlias": ALIAS,
            "UserKnownHostsFile": f'"{pins}"', "GlobalKnownHostsFile": "none", "UpdateHostKeys": "no",
            "ForwardAgent": "no", "ForwardX11": "no", "ConnectTimeout": f"{OPEN_S:.0f}", "ServerAliveInterval": "4",
            "ServerAliveCountMax": "3",
        }  # fmt: skip

    @contextlib.contextmanager
    def duplex(self, script: str) -> Iterator["Duplex"]:
        """Run a shell script, and yield its stdin and stdout. With the block its session ends."""
        with self._session(time.monotonic() + OPEN_S + SILENT_S) as (link, channel):
            try:
                link.send(channel, "exec", script)
            except _broken() as error:
                raise self._lost(link, script.split()[0], str(error)) from None
            yield Duplex(channel)

    @property
    def _where(self) -> str:
        return f"ssh {self.address.place}"

    def _checked(self, script: str, what: str, limit_bytes: int, stdin: bytes | None = None) -> bytes:
        out, err = WholeStream(limit_bytes), StreamEnd(TAIL_BYTES)
        try:
            code = self._converse(script, what, stdin, FILE_S, out, err, {})
        except Exceeded:
            raise TooLarge(self._where, what, limit_bytes) from None
        if code == _ABSENT:
            raise FileNotFoundError(f"{self._where}: {what}: it is not there")
        if code == _IRREGULAR:
            raise SlipwayError(f"{self._where}: {what}: it is no regular file")
        if code != 0:
            said = err.value().decode(errors="replace").strip()
            raise SlipwayError(f"{self._where}: {what}: {said or f'exit code {code}'}")
        return out.value()

    def _open(self, deadline: float) -> Link:
        """Return the connection, made when there is none that lives."""
        if not self._opening.acquire(timeout=max(0.0, deadline - time.monotonic())):
            raise TimedOut(f"{self._where}: no connection in time")
        try:
            if self._link is None or not self._link.is_alive:
                self.close()
                self._link = Link(self.address, self.known_hosts)
            return self._link
        finally:
            self._opening.release()

    @contextlib.contextmanager
    def _session(self, deadline: float) -> Iterator[tuple[Link, Any]]:
        """Yield a channel; a connection that was lost while nobody looked is made anew, once."""
        with contextlib.ExitStack() as stack:
            for is_last in (False, True):
                link = self._open(deadline)
                try:
                    channel = stack.enter_context(link.session(deadline - time.monotonic()))
                    break
                except TimeoutError as error:
                    raise TimedOut(f"{self._where}: {error}") from None
                except _broken() as error:
                    link.close()  # a thread of it may not have heard yet that it is gone
                    if is_last or link.silent:
                        raise Unreachable(f"{self._where}: {self._silence(link) or error}") from None
            yield link, channel

    def _silence(self, link: Link) -> str:
        return f"no sign of life for {SILENT_S:g} s" if link.silent else ""

    def _converse(
        self, script: str, name: str, stdin: bytes | Iterable[bytes] | None, timeout_s: float,
        out: KeptStream, err: KeptStream, env: Mapping[str, str],
    ) -> int:  # fmt: skip
        """Return the exit code of a shell script (negative: a signal); `out` and `err` take what the script says.

        `name` is what errors call the script. Raises Exceeded when `out` or `err` do; then the script was ended.
        """
        deadline = time.monotonic() + timeout_s
        # First its process group, by which it can be ended. The shell stays, so that it tells of a signal: sshd would,
        # but paramiko does not listen.
        script = f"echo $$; ({script}); exit $?"
        pieces: Iterable[bytes] = () if stdin is None else (stdin,) if isinstance(stdin, bytes) else stdin
        if env:
            exports = "".join(f"export {key}={shlex.quote(value)}\n" for key, value in env.items()).encode()
            # Byte by byte, so that what follows is left to the command.
            script = f'eval "$(dd bs=1 count={len(exports)} 2>/dev/null)"; {script}'
            pieces = itertools.chain([exports], pieces)
        first = _FirstLine(out)
        with self._session(deadline) as (link, channel):
            feeder = _Feeder(channel, pieces)
            try:
                link.send(channel, "exec", "exec sh -c " + shlex.quote(script))
                feeder.start()
                _listen(channel, first, err, deadline)
            except Exceeded:
                _kill(link, first.line)
                raise
            except TimeoutError:
                _kill(link, first.line)
                raise TimedOut(f"{self._where}: {name}: no end after {timeout_s:g} s") from None
            except _broken() as error:
                raise self._lost(link, name, str(error)) from None
            finally:
                hush(channel)
                feeder.stop()
            if feeder.error is not None:
                raise feeder.error
            code = channel.exit_status
            if code < 0:
                raise self._lost(link, name, "the connection was closed")
        return 128 - code if 128 < code <= 128 + 64 else code

    def _lost(self, link: Link, name: str, why: str) -> Lost:
        return (Silent if link.silent else Lost)(
            f"{self._where}: {name}: {self._silence(link) or why}; it was sent and may have run, or may still be"
            " running: check before you repeat it"
        )


class Conversation:
    """A program on the other machine, and the two ends of what it reads and says."""

    def __init__(self, channel: Any, lost: Callable[[str], Lost]) -> None:
        self._channel, self._lost = channel, lost
        self.errors = bytearray()  # the end of what it said on stderr

    def send(self, content: bytes) -> None:
        """Raise Lost when it does not read any more."""
        try:
            self._channel.sendall(content)
        except _broken() as error:
            raise self._lost(str(error)) from None

    def receive(self) -> bytes:
        """Return its next output, b"" when it has ended. Raises Lost when the connection has."""
        try:
            piece: bytes = self._channel.recv(_CHUNK)
            while self._channel.recv_stderr_ready():
                self.errors = (self.errors + self._channel.recv_stderr(_CHUNK))[-_CHUNK:]
        except _broken() as error:
            raise self._lost(str(error)) from None
        if not piece and not self._channel.status_event.is_set():
            self._channel.status_event.wait(_KILL_S)
        if not piece and self._channel.exit_status < 0:
            raise self._lost("the connection was closed")
        return piece

    @property
    def exited(self) -> int:
        """Return the exit code of a program that has ended."""
        return int(self._channel.exit_status)


def _broken() -> tuple[type[BaseException], ...]:
    """Return the errors of paramiko when a connection is gone."""
    from paramiko import SSHException

    return SSHException, EOFError, OSError


class Duplex:
    """The stdin and stdout of a program on another machine."""

    def __init__(self, channel: Any) -> None:
        self._channel = channel
        self.shutdown_write = channel.shutdown_write

    def recv(self, num_bytes: int) -> bytes:
        """Return received bytes; b"" at the end, also when that is the end of the connection."""
        try:
            return bytes(self._channel.recv(num_bytes))
        except _broken():  # it tells the machine that there is room again
            return b""

    def sendall(self, piece: bytes) -> None:
        """Send it all. Raises OSError when nobody takes it."""
        try:
            self._channel.sendall(piece)
        except _broken() as error:
            raise BrokenPipeError(str(error)) from None

    def hush(self) -> None:
        """Wake whoever reads from it or writes to it; nothing more goes through."""
        hush(self._channel)

    def has_ended(self) -> bool:
        """Return whether the program has left by itself, as far as the machine has said so within a moment."""
        return bool(self._channel.status_event.wait(ENDED_S) and self._channel.exit_status >= 0)

    def stderr(self) -> str:
        """Return the end of the received stderr."""
        said = StreamEnd(TAIL_BYTES)
        while self._channel.recv_stderr_ready():
            said.add(self._channel.recv_stderr(_CHUNK))
        return said.value().decode(errors="replace")


class _Feeder:
    """A writer of a channel's stdin while its output is read; then it ends it."""

    def __init__(self, channel: Any, pieces: Iterable[bytes]) -> None:
        self.error: BaseException | None = None
        self._channel = channel
        self._pieces = pieces
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        if self._pieces == ():
            self._channel.shutdown_write()
            return
        self._thread = threading.Thread(target=self._feed, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        if self._thread is not None:
            self._thread.join()

    def _feed(self) -> None:
        pieces = iter(self._pieces)
        while True:
            try:
                piece = next(pieces, None)
            except Exception as error:  # an error of the producer: it is raised where the command was run
                self.error = error
                hush(self._channel)
                return
            try:
                if piece is None:
                    self._channel.shutdown_write()
                    return
                self._channel.sendall(piece)
            except _broken():  # the command left without reading all, or the connection is gone: its exit code tells
                return


class _Wake(threading.Event):
    """An event set by paramiko when anything arrives, cleared by us alone.

    The pipe behind `channel.fileno()` loses wake-ups when stdout and stderr arrive at once.
    """

    def clear(self) -> None:
        pass

    forget = threading.Event.clear


class _FirstLine:
    """The first line of a stream, the rest of which goes to `rest`."""

    def __init__(self, rest: KeptStream) -> None:
        self.line = b""
        self._is_whole = False
        self._rest = rest

    def add(self, piece: bytes) -> None:
        """Take the next piece. Raises Exceeded."""
        if not self._is_whole:
            start, mark, piece = piece.partition(b"\n")
            self.line, self._is_whole = self.line + start, bool(mark)
            if len(self.line) > _CHUNK:
                raise Exceeded
        if piece:
            self._rest.add(piece)

    def value(self) -> bytes:
        """Return what is kept of the rest."""
        return self._rest.value()


def _script(words: Sequence[str], cwd: str | Path | None) -> str:
    """Return the line of a shell that runs a program in a folder."""
    return shlex.join(words) if cwd is None else f"cd -- {shlex.quote(str(cwd))} && {shlex.join(words)}"


def _regular(path: str | Path, script: str) -> str:
    """Return a script that reads a file, and leaves before that where the path leads to nothing, or to a pipe."""
    place = shlex.quote(str(path))
    return f"[ -e {place} ] || exit {_ABSENT}; [ -f {place} ] || exit {_IRREGULAR}; {script}"


def _listen(channel: Any, out: KeptStream, err: KeptStream, deadline: float) -> None:
    """Gather stdout and stderr until the command has ended. Raises TimeoutError, Exceeded."""
    arrived = _Wake()
    channel.in_buffer.set_event(arrived)
    channel.in_stderr_buffer.set_event(arrived)
    while True:
        arrived.forget()
        is_over = channel.eof_received or channel.closed  # asked before reading: what came before it is there
        while channel.recv_ready():
            out.add(channel.recv(_CHUNK))
        while channel.recv_stderr_ready():
            err.add(channel.recv_stderr(_CHUNK))
        if not (channel.status_event if is_over else arrived).wait(max(0.0, deadline - time.monotonic())):
            raise TimeoutError
        if is_over:
            return


def _kill(link: Link, group: bytes) -> None:
    """End the process group of a command that took too long, if its machine still listens."""
    if group.isdigit():
        with contextlib.suppress(TimeoutError, *_broken()), link.session(_KILL_S) as channel:
            link.send(channel, "exec", f"kill -s KILL -- -{group.decode()}")
            channel.status_event.wait(_KILL_S)
