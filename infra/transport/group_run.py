"""One command on many machines at the same time, through Fabric's groups.

In: connections, a command line. Out: what each machine says, piece by piece, and how the command ended there.

The command is tied to us: it ends, with its process group, when its stdin does, which is when it is told to, when its
time is up, or when whoever began it is gone. What it has left in the background when it ended by itself goes on.
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

from infra.errors import in_words
from infra.transport.fabric_connection import LocalConnection, PodConnection
from infra.transport.protocol import SILENT_S
from infra.transport.streams.framing import Frame, FramedStream, login_line
from infra.units import size

Listen = Callable[[str, bool, str], None]  # name of the machine, whether it is stderr, a piece of text

GRACE_S = 2  # seconds from SIGTERM to SIGKILL, on the machine
READ_BYTES = 1 << 16
KEPT_BYTES = 16 << 20  # of what a command says on one machine, where outcomes hold it
END_S = 8.0  # time until a machine has confirmed that the command has ended there
TIMED_OUT, KILLED, FAILED = 124, 137, 255  # exit codes: as of timeout(1), of a shell, and of ssh(1)
# $1: the command; $2: the folder it begins in, "" for the home. The shell outlives the first signal, so that it can
# tell how the command ended, and says nothing of it itself. What a command that ended by itself has left in the
# background is left alone; of one that was told to end, nothing is.
# The end that is added tells `$code`.
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
    """The end of a command on one machine."""

    name: str
    exit_code: int | None = None
    """Exit code; over 128: killed by that signal. None: the command did not begin there, or its end is not known."""
    problem: str = ""
    """Reason why the end is not known, or why it was ended; "" = the command ended by itself."""
    seconds: float = 0.0
    stdout: str = ""
    stderr: str = ""

    @property
    def code(self) -> int:
        """Return the exit code that it counts as."""
        return FAILED if self.exit_code is None else TIMED_OUT if self.problem else self.exit_code


class _Work:
    """The command on one machine."""

    def __init__(self, name: str, line: str, frame: Frame, listen: Listen, keeps: bool) -> None:
        self.name, self.line, self.frame, self.keeps = name, line, frame, keeps
        self.out = _Stream(functools.partial(listen, name, False))
        self.err = _Stream(functools.partial(listen, name, True))
        self.began_at = self.ended_at = time.monotonic()
        self.is_told = self.has_timed_out = self.is_given_up = self.says_too_much = False
        self.num_kept = 0
        self.is_over = threading.Event()
        self.exit_code: int | None = None
        self.close_stdin: Callable[[], object] | None = None  # None: it has not begun

    def fits(self, piece: str) -> bool:
        """Count a piece of output that is to be kept, and return whether all of them are within KEPT_BYTES."""
        self.num_kept += len(piece.encode(errors="replace"))
        return self.num_kept <= KEPT_BYTES

    def end(self) -> None:
        """Tell the machine to end the command. When it has not begun, it does not begin any more."""
        self.is_told = True
        if self.close_stdin is not None:
            with contextlib.suppress(OSError, EOFError):  # it has ended, or the connection has
                self.close_stdin()


class _Stream:
    """A file object for Fabric that passes on what is written."""

    def __init__(self, write: Callable[[str], None]) -> None:
        self.write = write

    def flush(self) -> None:
        """Do nothing: what is written is handed over at once."""


class _Tied:
    """The common part of runners here and elsewhere: `_Remote` and `_Local` mix it into Fabric's."""

    work: _Work
    code: Callable[[int], int | None]
    """Returns the exit code of what Fabric gives; None when it is not known."""

    def run(self, command: str, **kwargs: Any) -> Any:
        work = self.work
        ours = {"in_stream": False, "out_stream": work.out, "err_stream": work.err, "encoding": "utf-8"}
        try:
            if work.is_told:
                raise EOFError("interrupted before it began")
            result = super().run(work.line, **{**kwargs, **ours})  # type: ignore[misc]
            work.exit_code = self.code(result.exited)
            return result
        except CommandTimedOut as error:
            work.exit_code = self.code(error.result.exited)
            raise
        finally:
            work.ended_at = time.monotonic()
            work.is_over.set()

    def began(self, close_stdin: Callable[[], object]) -> None:
        self.work.close_stdin = close_stdin
        if self.work.is_told:  # meanwhile
            self.work.end()

    def _handle_output(self, buffer_: list[str], hide: bool, output: Any, reader: Any) -> None:
        for piece in self.read_proc_output(reader):  # type: ignore[attr-defined]
            output.write(piece)
            if not self.work.keeps:  # a command that talks for days would fill the memory
                continue
            if self.work.fits(piece):
                buffer_.append(piece)
            elif not self.work.says_too_much:
                self.work.says_too_much = True
                self._end_it()

    def kill(self) -> None:
        """End it when its time is up."""
        self.work.has_timed_out = True
        self._end_it()

    def _end_it(self) -> None:
        self.work.end()
        threading.Thread(target=self._give_up, daemon=True).start()

    @property
    def timed_out(self) -> bool:
        return self.work.has_timed_out

    def _give_up(self) -> None:
        if not self.work.is_over.wait(END_S):
            self.work.is_given_up = True
            super().kill()  # type: ignore[misc]


class _Remote(_Tied, Remote):  # type: ignore[misc]
    def __init__(self, *args: Any, work: _Work, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.work, self.read_chunk_size = work, READ_BYTES
        self._out, self._err = work.frame.stdout, work.frame.stderr

    def start(self, command: str, shell: str, env: Any, timeout: float | None = None) -> None:
        line = login_line(command)
        super().start(line.line, shell, env, timeout)
        if line.head:
            self.channel.sendall(line.head)
        self.began(self.channel.shutdown_write)

    def read_proc_stdout(self, num_bytes: int) -> bytes:
        return _between(self._out, lambda: super(_Remote, self).read_proc_stdout(num_bytes))

    def read_proc_stderr(self, num_bytes: int) -> bytes:
        return _between(self._err, lambda: super(_Remote, self).read_proc_stderr(num_bytes))

    def code(self, exited: int) -> int | None:
        if self._out.code is not None:  # a wrapper may leave with another one
            return self._out.code
        if exited != -1:
            return exited
        is_told = self.context.is_connected and not self.work.is_given_up  # its shell was killed, sshd says
        return KILLED if is_told else None


def _between(stream: FramedStream, read: Callable[[], bytes]) -> bytes:
    """Return the next bytes between the marks of a stream, b"" at the end of the stream."""
    while piece := read():
        if found := stream.feed(piece):
            return found
    return b""


class _Local(_Tied, Local):
    def __init__(self, *args: Any, work: _Work, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.work, self.read_chunk_size = work, READ_BYTES

    def start(self, command: str, shell: str, env: Any) -> None:
        # A session of its own: a signal to its process group must not reach us, nor one to ours it.
        self.process = subprocess.Popen(["sh", "-c", command], env=env, start_new_session=True, stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, stderr=subprocess.PIPE)  # fmt: skip
        assert self.process.stdin is not None
        self.began(self.process.stdin.close)

    def code(self, exited: int) -> int | None:
        return 128 - exited if exited < 0 else exited

    def stop(self) -> None:
        super().stop()
        for pipe in (self.process.stdin, self.process.stdout, self.process.stderr):
            if pipe:
                pipe.close()


def run(
    machines: Sequence[PodConnection | LocalConnection], command: str, listen: Listen, *, sudo: bool = False,
    timeout_s: float | None = None, keeps: bool = False, interrupted: Callable[[Sequence[str]], None] = lambda _: None,
) -> list[CommandOutcome]:  # fmt: skip
    """Run a command line on all machines at once; return how it ended on each, in their order.

    It begins in the folder of each connection, without stdin. `sudo`: as root, where that takes no password. `listen`
    gets the output as it comes, from several threads. `keeps`: outcomes hold it, too. When this is interrupted the
    command is ended everywhere first, and `interrupted` gets the names of the machines that did not confirm that.
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
    """Return the work of a machine; on another one its output stands between marks."""
    frame = Frame()
    is_here = isinstance(machine, LocalConnection)
    opening, closing = ("", "exit $code") if is_here else (frame.opening, frame.closing(stderr=4))
    words = ["sh", "-c", TIED + closing, "sh", command, machine.folder]
    line = f"{opening}exec {shlex.join(['sh', '-c', AS_ROOT, 'sh', *words] if sudo else words)}"
    return _Work(machine.name, line, frame, listen, keeps)


@contextlib.contextmanager
def _ending(works: Sequence[_Work], interrupted: Callable[[Sequence[str]], None]) -> Iterator[None]:
    """End the command everywhere when this block is left by an exception."""
    try:
        yield
    except BaseException:
        for work in works:
            work.end()
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
        how = "it was ended" if work.exit_code is not None else "it has not confirmed its end, and may still run"
        problem = f"no end after {timeout_s:g} s; {how}"
    elif isinstance(found, Exception):
        return CommandOutcome(name=work.name, problem=in_words(found))
    elif work.exit_code is None:
        why = f"no sign of life for {SILENT_S:g} s" if machine.silent else "the connection was lost"
        problem = f"{why}; it may still be running there"
    if work.says_too_much and not problem:
        problem = f"it said more than {size(KEPT_BYTES)}, which is the limit where output is kept; it was ended"
    seconds = work.ended_at - work.began_at
    return CommandOutcome(name=work.name, exit_code=work.exit_code, problem=problem, seconds=seconds,
                          stdout=result.stdout, stderr=result.stderr)  # fmt: skip
