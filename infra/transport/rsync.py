"""rsync over an open SSH connection: sends only differences and resumes interrupted transfers.

`copy` makes a file on one side equal to the file on the other side. rsync starts `rsync_shell.py` as the remote shell;
the script passes rsync's pipes to this process, which joins them with a channel of the connection.
"""

import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

from infra.errors import SlipwayError
from infra.transport import rsync_shell
from infra.transport.protocol import ConnectionLost, Meter
from infra.transport.ssh import Ssh

OLDEST = (3, 1)  # first version with `--secluded-args` and with reuse of existing data by `--inplace`
OLDEST_FAST = (3, 2)  # from this version `--compress` negotiates zstd or lz4, which are cheap
IDLE_S = 60  # the remote rsync exits after this time on a broken connection
ASK_S = 30.0
CHUNK = 1 << 17
SAID_BYTES = 1 << 16  # read limit of rsync's messages
TOO_LARGE = ("is over max-size", "File too large")  # messages of rsync and of the kernel
# Run a program with a file size limit of $1 blocks of 512 bytes.
BOUNDED = ["sh", "-c", 'ulimit -f "$1" && shift && exec "$@"', "sh"]
PROBE = """
for one in rsync ~/.local/bin/rsync /usr/local/bin/rsync; do
    said=$("$one" --version 2>/dev/null) && printf '%s %s\\n' "$one" "${said%%
*}" && break
done
exit 0
"""
_VERSION = re.compile(r"rsync +version v?(\d+)\.(\d+)")


def local_version() -> tuple[int, int] | None:
    """Return the version of the local rsync, or None without a usable rsync."""
    path = shutil.which("rsync")
    if not path:
        return None
    done = subprocess.run([path, "--version"], stdin=subprocess.DEVNULL, capture_output=True, text=True)
    return _version(done.stdout)


def remote_rsync(transport: Ssh) -> tuple[str, tuple[int, int] | None]:
    """Return the path and version of the machine's rsync, or ("", None) without a usable rsync."""
    said = transport.run(["sh", "-c", PROBE], timeout_s=ASK_S).stdout
    version = _version(said)
    return (said.split()[0], version) if version else ("", None)


def _version(said: str) -> tuple[int, int] | None:
    found = _VERSION.search(said)
    version = (int(found[1]), int(found[2])) if found else None
    return version if version and version >= OLDEST else None


class LongerThanPromised(SlipwayError):
    """The remote file exceeds the caller's limit; the target holds a prefix of the file."""


def copy(
    transport: Ssh, program: str, source: str, target: str, meter: Meter, compress: bool, limit_bytes: int | None = None
) -> None:
    """Run rsync from `source` to `target`; the remote path starts with `rsync_shell.HOST` and a colon.

    `program` is the remote rsync. `limit_bytes` limits a received file. Raises ConnectionLost when the connection
    breaks (a repeated call resumes the transfer), LongerThanPromised, and SlipwayError for other failures of rsync.
    """
    ours, theirs = socket.socketpair()
    shell = shlex.join([sys.executable, "-IS", rsync_shell.__file__, str(theirs.fileno())])
    # An untrusted sender may exceed the announced size, so the kernel limits the local rsync's file size too.
    bound = [] if limit_bytes is None else [*BOUNDED, str(limit_bytes // 512 + 1)]
    most = [] if limit_bytes is None else [f"--max-size={limit_bytes}", "--info=skip"]
    words = [
        *bound,
        "rsync",
        *most,
        "--secluded-args",
        "--inplace",
        "--no-whole-file",
        "--ignore-times",
        f"--timeout={IDLE_S}",
        *(["--compress"] if compress else []),
        f"--rsync-path={program}",
        f"--rsh={shell}",
    ]
    with ours, tempfile.TemporaryFile() as said:
        try:
            child = subprocess.Popen(
                [*words, "--", source, target],
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=said,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        finally:
            theirs.close()
        try:
            is_cut, remote = _serve(transport, ours, child, meter)
            code = child.wait()
        finally:
            if child.poll() is None:
                child.kill()
                child.wait()
        said.seek(0)
        why = " / ".join((said.read(SAID_BYTES).decode(errors="replace") + remote).split("\n")[:3]).strip(" /")
        if any(one in why for one in TOO_LARGE):
            raise LongerThanPromised(f"rsync: {why}")
        if code:
            raise (ConnectionLost if is_cut else SlipwayError)(f"rsync: {why or f'exit code {code}'}")


def _serve(transport: Ssh, owner: socket.socket, child: "subprocess.Popen[bytes]", meter: Meter) -> tuple[bool, str]:
    """Connect rsync with the machine; return whether the connection broke, and the remote stderr."""
    command, pipes, _, _ = socket.recv_fds(owner, 1 << 20, 2)
    if len(pipes) != 2:  # rsync exited before starting the remote shell
        return False, ""
    source, sink = pipes
    for one in pipes:
        os.set_blocking(one, True)
    try:
        with transport.open_duplex(command.decode()) as channel:
            upward = threading.Thread(target=_pump_up, args=(source, channel, meter), daemon=True)
            upward.start()
            is_cut = False
            try:
                while piece := channel.recv(CHUNK):
                    meter.count(len(piece))
                    if not is_taken(sink, piece):  # the local rsync has exited: the exit code tells why
                        break
                else:
                    is_cut = not channel.has_ended()
                    if is_cut:
                        child.kill()  # rsync would wait for the rest of the output
            finally:
                channel.shutdown()
                os.close(sink)
                sink = -1
                owner.close()  # ends the shell and then rsync
                upward.join()
            return is_cut, channel.stderr()
    finally:
        for one in (source, sink):
            if one >= 0:
                os.close(one)


def _pump_up(source: int, channel: Any, meter: Meter) -> None:
    from paramiko import SSHException

    try:
        while piece := os.read(source, CHUNK):
            meter.count(len(piece))
            channel.sendall(piece)
        channel.shutdown_write()
    except (OSError, EOFError, SSHException):  # the machine stopped reading: the output tells why
        while os.read(source, CHUNK):  # until rsync exits
            pass


def is_taken(sink: int, piece: bytes) -> bool:
    """Write the whole piece; return False if the reader has closed the pipe."""
    rest = memoryview(piece)
    try:
        while rest:
            rest = rest[os.write(sink, rest) :]
    except (BrokenPipeError, ConnectionResetError):  # ConnectionResetError: closed with unread data
        return False
    return True


def place(path: str | Path) -> str:
    """Return a remote path in rsync's notation."""
    return f"{rsync_shell.HOST}:{path}"
