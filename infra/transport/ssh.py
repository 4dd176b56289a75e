"""`Ssh`, the `Transport` to a machine over one SSH connection shared by all threads.

A command that may have run is never sent again: `ConnectionLost` is raised, and the caller checks before a retry.
Values of `env` travel through the channel's stdin and appear on no command line of either machine.
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
from infra.transport import channels
from infra.transport.channels import Duplex, Framed, NoExitCode, StdinWriter, connection_loss_errors, says, silence
from infra.transport.framing import Frame, NoFrame, login_line
from infra.transport.host_keys import ALIAS
from infra.transport.private_keys import certificates_of, keys_of, why_agent
from infra.transport.protocol import (
    LIMIT_BYTES,
    OPEN_S,
    READ_BYTES,
    SILENT_S,
    TAIL_BYTES,
    ConnectionLost,
    Result,
    TimedOut,
    TooLarge,
    Unreachable,
    end_with_stdin,
)
from infra.transport.ssh_connection import Link, connection, hush
from infra.transport.streams import KeptStream, SizeExceeded, StreamEnd, WholeStream, relay

FILE_S = 120.0  # timeout to put or get a file
PULSE_S = 1.0
_ABSENT, _IRREGULAR = 44, 45  # exit codes of the scripts below


class Ssh:
    """The SSH transport; connects at the first call and reconnects after a loss.

    `known_hosts` is a file for this pod only.
    """

    python = "python3"
    agent = "infra.agent"

    def __init__(self, address: Address, known_hosts: Path) -> None:
        self.address = address
        self.known_hosts = known_hosts
        self.shell_banner = b""
        """Beginning of the login shell's own output around the last command."""
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
        """Run words as `Transport.run` does.

        Raises TimedOut and TooLarge (both after killing the command), ConnectionLost, Unreachable, HostKeyMismatch,
        AuthError.
        """
        script, out, err = _script(words, cwd), WholeStream(limit_bytes), WholeStream(limit_bytes)
        try:
            code = self._run_script(script, words[0], stdin, timeout_s, out, err, env or {})
        except SizeExceeded:
            raise TooLarge(self._label, shlex.join(words), limit_bytes) from None
        return Result(code, out.value().decode(errors="replace"), err.value().decode(errors="replace"))

    def put(self, content: bytes, path: str | Path, mode: int = 0o644) -> None:
        folder, name = os.path.split(str(path))
        draft = shlex.quote(os.path.join(folder, f".{name}.{secrets.token_hex(4)}.draft"))
        place = shlex.quote(str(path))
        # The byte count detects a broken connection, which looks like the end of the file. Some versions of `sync` take
        # no file name.
        steps = [
            "umask go-w",
            f"mkdir -p -- {shlex.quote(folder or '.')}",
            "umask 077",
            f"cat > {draft}",
            f'[ "$(wc -c < {draft})" -eq {len(content)} ]',
            f"chmod {mode:o} {draft}",
            f"{{ sync {draft} 2>/dev/null || sync; }}",
            f"mv -f {draft} {place}",
        ]
        script = f"{' && '.join(steps)} || {{ rm -f {draft}; exit 1; }}"
        self._run_checked(script, f"put {path}", LIMIT_BYTES, content)

    def get(self, path: str | Path, limit_bytes: int = LIMIT_BYTES) -> bytes:
        # One byte beyond the limit distinguishes a file at the limit from a larger file.
        head = f"head -c {limit_bytes + 1} < {shlex.quote(str(path))}"
        return self._run_checked(_regular(path, head), f"get {path}", limit_bytes)

    def read(self, path: str | Path, offset: int) -> bytes:
        tail = f"tail -c +{offset + 1} < {shlex.quote(str(path))} | head -c {READ_BYTES}"
        return self._run_checked(_regular(path, tail), f"read {path}", READ_BYTES)

    @contextlib.contextmanager
    def forward(self, local_port: int, remote_port: int) -> Iterator[int]:
        """Forward a port; connect to the remote port per caller. Raises UsageError if the local port is in use."""

        @contextlib.contextmanager
        def dial() -> Iterator[Any]:
            with contextlib.ExitStack() as stack:
                try:
                    channel = stack.enter_context(self._open(time.monotonic() + OPEN_S).open_port(remote_port))
                except connection_loss_errors() as error:
                    raise Unreachable(f"{self._label}: port {remote_port} there: {error}") from None
                yield channel

        with relay(local_port, dial) as port:
            yield port

    @contextlib.contextmanager
    def run_in_background(
        self, words: Sequence[str], cwd: str | Path | None = None
    ) -> Iterator[Callable[[], Result | None]]:
        over = threading.Event()

        def pulse() -> Iterator[bytes]:
            while not over.wait(PULSE_S):  # each write also detects a closed reader
                yield b"."

        def run() -> Result:
            out, err, for_days_s = StreamEnd(TAIL_BYTES), StreamEnd(TAIL_BYTES), threading.TIMEOUT_MAX / 2
            code = self._run_script(_script(end_with_stdin(words), cwd), words[0], pulse(), for_days_s, out, err, {})
            return Result(code, out.value().decode(errors="replace"), err.value().decode(errors="replace"))

        with ThreadPoolExecutor(1) as pool:
            ending = pool.submit(run)
            try:
                yield lambda: ending.result() if ending.done() else None
            finally:
                over.set()

    def connection(self, name: str, folder: str) -> Any:
        """Return a separate, unopened `fabric.Connection` to this machine; `name` and `folder` belong to the pod."""
        return connection(self.address, self.known_hosts, name=name, folder=folder)

    def shell(self, words: Sequence[str] | None = None, cwd: str | Path | None = None) -> int:
        if not shutil.which("ssh"):
            raise UsageError("ssh is not installed on this machine; install openssh-client")
        self._open(time.monotonic() + OPEN_S)  # pins the host key, which `line` requires
        return subprocess.run(self.openssh_command(words, cwd, is_terminal=sys.stdin.isatty())).returncode

    def openssh_command(
        self, words: Sequence[str] | None = None, cwd: str | Path | None = None, is_terminal: bool = True
    ) -> list[str]:
        """Return the OpenSSH command for this machine: same private keys, same host key, no forwarding."""
        options = [*self.openssh_options, ("BatchMode", "yes"), ("PasswordAuthentication", "no")]
        flags = [word for key in keys_of(self.address) for word in ("-i", str(key).replace("%", "%%"))]
        flags += [word for key, value in options for word in ("-o", f"{key}={value}")]
        line = ["ssh", "-F", "none", "-p", str(self.address.port), *flags, "-t" if is_terminal else "-T"]
        line += ["-l", self.address.user, "--", self.address.host]
        there = f"cd -- {shlex.quote(str(cwd))} && " if cwd is not None else ""
        if words is None and not there:
            return line
        begun = login_line(there + ("exec " + shlex.join(words) if words is not None else 'exec "$SHELL" -l'))
        if begun.head:
            raise UsageError(f"the command {words[0] if words else ''} is too long for one line")
        return [*line, begun.line]

    @property
    def openssh_options(self) -> list[tuple[str, str]]:
        """Return the OpenSSH options to restrict a session to this machine, without forwarding."""
        pins = str(self.known_hosts.absolute()).replace("%", "%%")
        keys = keys_of(self.address)
        certificates = [one for key in keys for one in certificates_of(key, self.address)]
        agent = self.address.agent.replace("%", "%%") if any(map(why_agent, keys)) else "none"
        return [
            ("ProxyCommand", self.address.proxy.replace("%", "%%") or "none"),
            ("IdentitiesOnly", "yes"),
            *(("CertificateFile", f'"{one}"'.replace("%", "%%")) for one in dict.fromkeys(certificates)),
            *([("IdentityAgent", f'"{agent}"')] if agent else []),
            ("StrictHostKeyChecking", "yes"),
            ("HostKeyAlias", ALIAS),
            ("UserKnownHostsFile", f'"{pins}"'),
            ("GlobalKnownHostsFile", "none"),
            ("UpdateHostKeys", "no"),
            ("ForwardAgent", "no"),
            ("ForwardX11", "no"),
            ("ConnectTimeout", f"{OPEN_S:.0f}"),
            ("ServerAliveInterval", "4"),
            ("ServerAliveCountMax", "3"),
        ]

    @contextlib.contextmanager
    def open_duplex(self, script: str) -> Iterator["Duplex"]:
        """Run a shell script and yield its stdin and stdout; the session ends with the block."""
        with self._session(time.monotonic() + OPEN_S + SILENT_S) as (link, channel):
            frame = Frame()
            try:
                for piece in channels.begin(link, channel, frame, script):
                    channel.sendall(piece)
            except connection_loss_errors() as error:
                raise self._loss_error(link, script.split()[0], str(error)) from None
            yield Duplex(channel, frame)

    @property
    def _label(self) -> str:
        return f"ssh {self.address.place}"

    def _run_checked(self, script: str, what: str, limit_bytes: int, stdin: bytes | None = None) -> bytes:
        out, err = WholeStream(limit_bytes), StreamEnd(TAIL_BYTES)
        try:
            code = self._run_script(script, what, stdin, FILE_S, out, err, {})
        except SizeExceeded:
            raise TooLarge(self._label, what, limit_bytes) from None
        if code == _ABSENT:
            raise FileNotFoundError(f"{self._label}: {what}: no such file")
        if code == _IRREGULAR:
            raise SlipwayError(f"{self._label}: {what}: not a regular file")
        if code != 0:
            said = err.value().decode(errors="replace").strip()
            raise SlipwayError(f"{self._label}: {what}: {said or f'exit code {code}'}")
        return out.value()

    def _open(self, deadline: float) -> Link:
        """Return the live connection; reconnect if necessary."""
        if not self._opening.acquire(timeout=max(0.0, deadline - time.monotonic())):
            raise TimedOut(f"{self._label}: no connection in time")
        try:
            if self._link is None or not self._link.is_alive:
                self.close()
                self._link = Link(self.address, self.known_hosts)
            return self._link
        finally:
            self._opening.release()

    @contextlib.contextmanager
    def _session(self, deadline: float) -> Iterator[tuple[Link, Any]]:
        """Yield a channel; reconnect once if the connection was lost while idle."""
        with contextlib.ExitStack() as stack:
            for is_last in (False, True):
                link = self._open(deadline)
                try:
                    channel = stack.enter_context(link.open_session(deadline - time.monotonic()))
                    break
                except TimeoutError as error:
                    raise TimedOut(f"{self._label}: {error}") from None
                except connection_loss_errors() as error:
                    link.close()  # a reader thread may not have noticed the loss
                    if is_last or link.is_silent:
                        raise Unreachable(f"{self._label}: {silence(link) or error}") from None
            yield link, channel

    def _run_script(
        self,
        script: str,
        name: str,
        stdin: bytes | Iterable[bytes] | None,
        timeout_s: float,
        out: KeptStream,
        err: KeptStream,
        env: Mapping[str, str],
    ) -> int:
        """Return the exit code of a shell script (negative: a signal); `out` and `err` collect the output.

        `name` identifies the script in errors. Raises SizeExceeded when `out` or `err` does; the script is killed
        first.
        """
        deadline, frame = time.monotonic() + timeout_s, Frame()
        pieces: Iterable[bytes] = () if stdin is None else (stdin,) if isinstance(stdin, bytes) else stdin
        if env:
            exports = "".join(f"export {key}={shlex.quote(value)}\n" for key, value in env.items()).encode()
            # dd reads byte by byte and leaves the rest of stdin to the command.
            script = f'eval "$(dd bs=1 count={len(exports)} 2>/dev/null)"; {script}'
            pieces = itertools.chain([exports], pieces)
        with self._session(deadline) as (link, channel):
            framed, feeder = Framed(channel, frame), StdinWriter(channel)
            try:
                feeder.start(channels.begin(link, channel, frame, script, pieces))
                framed.read_until_exit(out, err, deadline)
            except SizeExceeded:
                channels.kill(link, framed.out.shell_pid)
                raise
            except TimeoutError:
                channels.kill(link, framed.out.shell_pid)
                raise TimedOut(f"{self._label}: {name}: no end after {timeout_s:g} s") from None
            except NoFrame:
                raise SlipwayError(
                    f"{self._label}: {name}: the login shell prints without end{says(framed.shell_banner)}; let "
                    "the start-up files of that shell print only on a terminal"
                ) from None
            except connection_loss_errors() as error:
                raise self._loss_error(link, name, str(error)) from None
            finally:
                self.shell_banner = framed.shell_banner
                hush(channel)
                feeder.stop()
            if feeder.error is not None:
                raise feeder.error
            try:
                code = framed.exit_code
            except NoExitCode:
                if why := framed.start_problem():
                    raise SlipwayError(f"{self._label}: {name}: {why}") from None
                raise self._loss_error(link, name, "the connection was closed") from None
        return 128 - code if 128 < code <= 128 + 64 else code

    def _loss_error(self, link: Link, name: str, why: str) -> ConnectionLost:
        return channels.loss_error(link, self._label, name, why)


def _script(words: Sequence[str], cwd: str | Path | None) -> str:
    """Return the shell line to run a program in a folder."""
    return shlex.join(words) if cwd is None else f"cd -- {shlex.quote(str(cwd))} && {shlex.join(words)}"


def _regular(path: str | Path, script: str) -> str:
    """Return a script to read a regular file; other paths exit with _ABSENT or _IRREGULAR."""
    place = shlex.quote(str(path))
    return f"[ -e {place} ] || exit {_ABSENT}; [ -f {place} ] || exit {_IRREGULAR}; {script}"
