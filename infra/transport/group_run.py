"""Parallel execution of a command on many machines, through Fabric groups.

`run` takes connections and a command line, passes the output of each machine to a callback piece by piece, and returns
a `CommandOutcome` per machine. The remote command is tied to the stdin of the SSH session: a wrapper kills the process
group when stdin closes, which happens on request, at the timeout, or when the calling process is gone. Background
processes of a completed command keep running.
"""

import contextlib
import functools
import shlex
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import fabric
from fabric.exceptions import GroupException
from fabric.runners import Remote
from invoke.exceptions import CommandTimedOut
from invoke.runners import Local

from infra.errors import describe
from infra.transport.channels import wait_for_begin
from infra.transport.fabric_connection import LocalConnection, PodConnection
from infra.transport.framing import Frame, FramedStream, login_line
from infra.transport.protocol import SILENT_S
from infra.units import size

Listen = Callable[[str, bool, str], None]  # machine name, is stderr, piece of text

GRACE_S = 2  # seconds from SIGTERM to SIGKILL, on the machine
READ_BYTES = 1 << 16
KEPT_BYTES = 16 << 20  # limit of kept output per machine (stdout and stderr)
END_S = 8.0  # seconds to wait for a machine's confirmation of the command's end
TIMED_OUT, KILLED, FAILED = 124, 137, 255  # exit codes of timeout(1), of a shell for SIGKILL, and of ssh(1)
# $1: the command; $2: the working folder, "" for the home. The shell survives the first signal in order to report the
# command's exit code, and prints nothing by itself. Background processes survive a completed command, and are killed
# with a terminated command. The code appended to this script reports `$code`.
TIED = f"""
[ -z "$2" ] || cd -- "$2" || exit 1
exec 3<&0 </dev/null 4>&2 2>/dev/null
( trap '' TERM INT HUP; read -r _ <&3; kill -TERM 0; sleep {GRACE_S}; kill -KILL 0 ) >/dev/null 4>&1 &
watch=$!
exec 3<&-
trap told=1 TERM
sh -c "$1" 2>&4 4>&-
code=$?
[ "$told" ] || kill -KILL $watch
"""
AS_ROOT = '[ "$(id -u)" = 0 ] || exec sudo -n -- "$@"; exec "$@"'


@dataclass(frozen=True, kw_only=True)
class CommandOutcome:
    """The result of a command on a machine."""

    name: str
    exit_code: int | None = None
    """Exit code; over 128: killed by signal (code - 128). None: not started, or unknown."""
    problem: str = ""
    """Reason for an unknown exit code or for a termination; "" = the command exited by itself."""
    seconds: float = 0.0
    stdout: str = ""
    stderr: str = ""

    @property
    def code(self) -> int:
        """Return the effective exit code: FAILED if unknown, TIMED_OUT after a termination, else `exit_code`."""
        return FAILED if self.exit_code is None else TIMED_OUT if self.problem else self.exit_code


class _Work:
    """The state of the command on a machine."""

    def __init__(self, name: str, line: str, frame: Frame, listen: Listen, keeps: bool) -> None:
        self.name, self.line, self.frame, self.keeps = name, line, frame, keeps
        self.out = _Stream(functools.partial(listen, name, False))
        self.err = _Stream(functools.partial(listen, name, True))
        self.began_at = self.ended_at = time.monotonic()
        self.is_end_requested = self.has_timed_out = self.is_given_up = self.exceeds_output_limit = False
        self.num_kept = 0
        self.is_over = threading.Event()
        self.exit_code: int | None = None
        self.close_stdin: Callable[[], object] | None = None  # None: not started

    def count_output(self, piece: str) -> bool:
        """Count a piece of output and return whether the total is within KEPT_BYTES."""
        self.num_kept += len(piece.encode(errors="replace"))
        return self.num_kept <= KEPT_BYTES

    def request_end(self) -> None:
        """Close the command's stdin, which terminates the command; prevent the start of a pending command."""
        self.is_end_requested = True
        if self.close_stdin is not None:
            with contextlib.suppress(OSError, EOFError):  # the command or the connection has ended
                self.close_stdin()


class _Stream:
    """A file object for Fabric with a callback for all writes."""

    def __init__(self, write: Callable[[str], None]) -> None:
        self.write = write

    def flush(self) -> None:
        """Do nothing, since writes are passed on immediately."""


class _Tied:
    """The mixin shared by `_Remote` and `_Local`, the Fabric runners for remote machines and this machine."""

    work: _Work
    exit_code_of: Callable[[int], int | None]
    """Returns the exit code for Fabric's exit status, or None if the code is unknown."""

    def run(self, command: str, **kwargs: Any) -> Any:
        work = self.work
        ours = {"in_stream": False, "out_stream": work.out, "err_stream": work.err, "encoding": "utf-8"}
        try:
            if work.is_end_requested:
                raise EOFError("interrupted before the start")
            result = super().run(work.line, **{**kwargs, **ours})  # type: ignore[misc]
            work.exit_code = self.exit_code_of(result.exited)
            return result
        except CommandTimedOut as error:
            work.exit_code = self.exit_code_of(error.result.exited)
            raise
        finally:
            work.ended_at = time.monotonic()
            work.is_over.set()

    def on_started(self, close_stdin: Callable[[], object]) -> None:
        self.work.close_stdin = close_stdin
        if self.work.is_end_requested:  # termination was requested during the start
            self.work.request_end()

    def _handle_output(self, buffer_: list[str], hide: bool, output: Any, reader: Any) -> None:
        for piece in self.read_proc_output(reader):  # type: ignore[attr-defined]
            output.write(piece)
            if not self.work.keeps:  # unbounded output would fill the memory
                continue
            if self.work.count_output(piece):
                buffer_.append(piece)
            elif not self.work.exceeds_output_limit:
                self.work.exceeds_output_limit = True
                self._end_work()

    def kill(self) -> None:
        """Terminate the command at its timeout."""
        self.work.has_timed_out = True
        self._end_work()

    def _end_work(self) -> None:
        self.work.request_end()
        threading.Thread(target=self._kill_after_grace, daemon=True).start()

    @property
    def timed_out(self) -> bool:
        return self.work.has_timed_out

    def _kill_after_grace(self) -> None:
        if not self.work.is_over.wait(END_S):
            self.work.is_given_up = True
            super().kill()  # type: ignore[misc]


class _Remote(_Tied, Remote):  # type: ignore[misc]
    def __init__(self, *args: Any, work: _Work, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.work, self.read_chunk_size = work, READ_BYTES
        self._out, self._err = work.frame.stdout, work.frame.stderr

    def start(self, command: str, shell: str, env: Any, timeout: float | None = None) -> None:
        frame = self.work.frame
        line = login_line(command.removeprefix(frame.opening), frame.opening)
        super().start(line.line, shell, env, timeout)
        if line.head:  # sent when the threads that read have started
            threading.Thread(target=self._send, args=(line.head,), daemon=True).start()
        self.on_started(self.channel.shutdown_write)

    def _send(self, head: bytes) -> None:
        wait_for_begin(self.work.frame, self.channel)
        with contextlib.suppress(OSError):  # the channel is closed
            self.channel.sendall(head)

    def read_proc_stdout(self, num_bytes: int) -> bytes:
        return _between(self._out, lambda: super(_Remote, self).read_proc_stdout(num_bytes))

    def read_proc_stderr(self, num_bytes: int) -> bytes:
        return _between(self._err, lambda: super(_Remote, self).read_proc_stderr(num_bytes))

    def exit_code_of(self, exited: int) -> int | None:
        if self._out.exit_code is not None:  # a wrapper may change the exit status
            return self._out.exit_code
        if exited != -1:
            return exited
        is_told = self.context.is_connected and not self.work.is_given_up  # sshd reports a killed shell
        return KILLED if is_told else None


def _between(stream: FramedStream, read: Callable[[], bytes]) -> bytes:
    """Return the next bytes between the marks of a stream, or b"" at the end of the stream."""
    while piece := read():
        if found := stream.feed(piece):
            return found
    return b""


class _Local(_Tied, Local):
    def __init__(self, *args: Any, work: _Work, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.work, self.read_chunk_size = work, READ_BYTES

    def start(self, command: str, shell: str, env: Any) -> None:
        # A separate session isolates the process groups: signals to either group do not reach the other.
        self.process = subprocess.Popen(
            ["sh", "-c", command],
            env=env,
            start_new_session=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        assert self.process.stdin is not None
        self.on_started(self.process.stdin.close)

    def exit_code_of(self, exited: int) -> int | None:
        return 128 - exited if exited < 0 else exited

    def stop(self) -> None:
        super().stop()
        for pipe in (self.process.stdin, self.process.stdout, self.process.stderr):
            if pipe:
                pipe.close()


def run(
    machines: Sequence[PodConnection | LocalConnection],
    command: str,
    listen: Listen,
    *,
    sudo: bool = False,
    timeout_s: float | None = None,
    keeps: bool = False,
    interrupted: Callable[[Sequence[str]], None] = lambda _: None,
) -> list[CommandOutcome]:
    """Run a command line on all machines in parallel and return the outcomes in machine order.

    The command starts without stdin, in the folder of each connection. `sudo` runs the command as root and requires
    passwordless sudo. Several threads call `listen` with output as it arrives. `keeps` also stores the output in the
    outcomes. On an interrupt, the function first terminates the command on all machines and passes the names of
    machines without confirmation to `interrupted`.
    """
    works = {machine: _work(machine, command, listen, sudo=sudo, keeps=keeps) for machine in machines}
    for machine, work in works.items():
        machine.config.runners.remote = functools.partial(_Remote, work=work)
        machine.config.runners.local = functools.partial(_Local, work=work)
    with fabric.ThreadingGroup.from_connections(machines) as group:
        with _ending(list(works.values()), interrupted):
            try:
                found = group.run(command, hide=False, warn=True, pty=False, timeout=timeout_s)
            except GroupException as error:
                found = error.result
        return [_outcome(machine, work, found[machine], timeout_s) for machine, work in works.items()]


def _work(machine: PodConnection | LocalConnection, command: str, listen: Listen, *, sudo: bool, keeps: bool) -> _Work:
    """Return the `_Work` of a machine; only remote output is framed by marks."""
    frame = Frame()
    is_here = isinstance(machine, LocalConnection)
    opening, closing = ("", "exit $code") if is_here else (frame.opening, frame.closing(stderr=4))
    words = ["sh", "-c", TIED + closing, "sh", command, machine.folder]
    line = f"{opening}exec {shlex.join(['sh', '-c', AS_ROOT, 'sh', *words] if sudo else words)}"
    return _Work(machine.name, line, frame, listen, keeps)


@contextlib.contextmanager
def _ending(works: Sequence[_Work], interrupted: Callable[[Sequence[str]], None]) -> Iterator[None]:
    """Terminate the command on all machines when an exception leaves the block."""
    try:
        yield
    except BaseException:
        for work in works:
            work.request_end()
        deadline = time.monotonic() + END_S
        begun = [work for work in works if work.close_stdin is not None]
        for work in begun:
            work.is_over.wait(max(0.0, deadline - time.monotonic()))
        interrupted([work.name for work in begun if work.exit_code is None])
        raise


def _outcome(machine: Any, work: _Work, found: Any, timeout_s: float | None) -> CommandOutcome:
    problem, result = "", found
    if isinstance(found, CommandTimedOut):
        result = found.result
        how = "the command was ended" if work.exit_code is not None else "the command may still run there"
        problem = f"no end after {timeout_s:g} s; {how}"
    elif isinstance(found, Exception):
        return CommandOutcome(name=work.name, problem=describe(found))
    elif work.exit_code is None:
        why = f"no sign of life for {SILENT_S:g} s" if machine.is_silent else "the connection was lost"
        problem = f"{why}; the command may still run there"
    if work.exceeds_output_limit and not problem:
        problem = f"the output exceeded {size(KEPT_BYTES)}, the limit for kept output; the command was ended"
    seconds = work.ended_at - work.began_at
    return CommandOutcome(
        name=work.name,
        exit_code=work.exit_code,
        problem=problem,
        seconds=seconds,
        stdout=result.stdout,
        stderr=result.stderr,
    )
