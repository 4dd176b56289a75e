"""Process identity, the processes of a pod, and ending all of them.

A process is identified by (boot id, pid, start time), never by name. A process belongs to a pod if the environment of
the process or of an ancestor contains the pod's token. This rule also finds a grandchild that forked twice into a new
session, and a child that cleared its environment.

Linux reads /proc, macOS runs ps. A read that fails for lack of memory or descriptors raises OSError and never counts as
a missing process. This file is also sent alone to machines without the project, and imports no project module.
"""

import contextlib
import ctypes
import os
import resource
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Dict, Iterable, Iterator, List, Optional, Set

TOKEN = "SLIPWAY_TOKEN"
POLL_S = 0.02
SURVIVED = "could not be ended"
PR_SET_CHILD_SUBREAPER = 36
PR_SET_DUMPABLE = 4
PROC = Path("/proc")
GONE = (FileNotFoundError, ProcessLookupError, PermissionError)  # ended since the listing, or owned by a different user
PS = ("ps", "-o", "pid=", "-o", "ppid=", "-o", "stat=", "-o", "lstart=")


@dataclass(frozen=True)
class Identity:
    """The identity of a process; unlike a pid, an identity is never reused."""

    boot_id: str
    pid: int
    started: str


@dataclass(frozen=True)
class ProcessRow:
    """A row of the machine's process table."""

    pid: int
    ppid: int
    state: str
    started: str


def boot_id() -> str:
    """Return an id, new at every boot of the machine."""
    if sys.platform == "darwin":
        return _output(["sysctl", "-n", "kern.bootsessionuuid"]).strip()
    return (PROC / "sys/kernel/random/boot_id").read_text().strip()


def identify(pid: int) -> Optional[Identity]:
    """Return the identity of a live process, or None; a zombie is not live."""
    row = _row(pid)
    return Identity(boot_id(), pid, row.started) if row else None


def current_identity() -> Identity:
    me = identify(os.getpid())
    assert me is not None
    return me


def is_alive(identity: Identity) -> bool:
    return identify(identity.pid) == identity


def send(identity: Identity, number: int) -> bool:
    """Send a signal to exactly this process; return False if the process is gone."""
    if not is_alive(identity):
        return False
    try:
        os.kill(identity.pid, number)
    except ProcessLookupError:
        return False
    return True


def find(token: str) -> List[Identity]:
    """Return all live processes of the pod with this token."""
    return find_each([token])[token]


def find_each(tokens: Iterable[str]) -> Dict[str, List[Identity]]:
    """Return all live processes of several pods by token, from a single snapshot of the process table."""
    table = _table()
    environs = _environs(table)
    boot = boot_id()
    found = {}
    for token in tokens:
        holders = {pid for pid, words in environs.items() if f"{TOKEN}={token}" in words}
        inside = _with_young(holders, table)
        found[token] = [Identity(boot, pid, table[pid].started) for pid in sorted(inside) if table[pid].state != "Z"]
    return found


def ancestors(pid: int) -> Iterator[int]:
    """Yield the pids of the ancestors, nearest first."""
    row = _row_of_proc(pid)
    while row and row.ppid:
        yield row.ppid
        row = _row_of_proc(row.ppid)


def environ_of(pid: int) -> Dict[str, str]:
    """Return the initial environment of a process, as far as permissions allow."""
    pairs = (entry.decode(errors="replace").partition("=") for entry in _environ_of_proc(pid))
    return {name: value for name, _, value in pairs}


def end_all(token: str, grace_s: float, spare: Iterable[int] = (), kill_s: float = 10.0) -> List[Identity]:
    """End every process of the pod except the caller and the pids in `spare`; return the survivors.

    Sends TERM, waits up to `grace_s` seconds, then sends KILL until all processes are gone or `kill_s` seconds have
    passed.
    """
    untouched = {os.getpid(), *spare}
    asked: Set[Identity] = set()
    kill_at = time.monotonic() + grace_s
    empty_scans = 0
    while True:
        members = [one for one in find(token) if one.pid not in untouched]
        # A single empty scan may miss a child whose parent forked and ended during the scan.
        empty_scans = 0 if members else empty_scans + 1
        now = time.monotonic()
        if empty_scans == 2 or now >= kill_at + kill_s:
            return members
        for one in members:
            if now >= kill_at:
                send(one, signal.SIGKILL)
            elif one not in asked:
                asked.add(one)
                send(one, signal.SIGTERM)
        time.sleep(POLL_S)


def describe_survivors(survivors: Iterable[Identity]) -> str:
    """Return a message about the processes that survived, or ""."""
    pids = ", ".join(str(one.pid) for one in survivors)
    return f"processes {pids} {SURVIVED}" if pids else ""


def descendants(pid: int) -> Set[int]:
    """Return the pid and the pids of all descendants."""
    return _with_young({pid}, _table())


def disable_core_dumps() -> None:
    """Disable core dumps of this process and its children, because process memory holds secrets.

    The resource limit covers core files. The coredump filter empties core dumps that the system pipes to a handler
    program.
    """
    hard = resource.getrlimit(resource.RLIMIT_CORE)[1]
    resource.setrlimit(resource.RLIMIT_CORE, (0, hard))
    with contextlib.suppress(OSError):  # some kernels lack the filter
        (PROC / "self" / "coredump_filter").write_text("0")


def hide_memory() -> bool:
    """Block all processes but root's from reading or tracing this process; return whether the block is active.

    The block ends at exec, so child programs are as readable as before.
    """
    if not sys.platform.startswith("linux"):
        return False
    return ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) == 0


def become_subreaper() -> None:
    """Make orphaned descendants children of this process instead of init, on Linux."""
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def reap(keep: Optional[int] = None) -> Dict[int, int]:
    """Collect dead children, including adopted orphans, except the pid `keep`, which stays for the owning Popen.

    Returns exit codes by pid, negative for a signal.
    """
    codes: Dict[int, int] = {}
    while hasattr(os, "waitid"):
        try:
            dead = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            break
        if dead is None or dead.si_pid == keep:
            break
        os.waitpid(dead.si_pid, 0)
        codes[dead.si_pid] = dead.si_status if dead.si_code == os.CLD_EXITED else -dead.si_status
    return codes


def _table() -> Dict[int, ProcessRow]:
    if sys.platform == "darwin":
        return {row.pid: row for row in _rows_of_ps("-ax")}
    rows = (_row_of_proc(int(name)) for name in os.listdir(PROC) if name.isdigit())
    return {row.pid: row for row in rows if row}


def _with_young(inside: Set[int], table: Dict[int, ProcessRow]) -> Set[int]:
    """Return `inside` plus all descendants."""
    young = inside
    while young:
        young = {row.pid for row in table.values() if row.ppid in inside} - inside
        inside = inside | young
    return inside


def _row(pid: int) -> Optional[ProcessRow]:
    if sys.platform == "darwin":
        rows = _rows_of_ps("-p", str(pid))
        row = rows[0] if rows else None
    else:
        row = _row_of_proc(pid)
    return row if row and row.state != "Z" else None


def _row_of_proc(pid: int) -> Optional[ProcessRow]:
    try:
        text = (PROC / str(pid) / "stat").read_text(errors="replace")
    except GONE:
        return None
    fields = text[text.rindex(")") + 2 :].split()  # the process name may contain spaces and parentheses
    return ProcessRow(pid=pid, state=fields[0], ppid=int(fields[1]), started=fields[19])


def _rows_of_ps(*which: str) -> List[ProcessRow]:
    lines = [line.split(None, 3) for line in _output([*PS, *which]).splitlines()]
    return [ProcessRow(int(pid), int(ppid), state[0], started.strip()) for pid, ppid, state, started in lines]


def _environs(table: Iterable[int]) -> Dict[int, List[str]]:
    """Return the environment of each process as `NAME=value` entries; on macOS mixed with the command's arguments."""
    if sys.platform == "darwin":
        lines = [line.split() for line in _output(["ps", "-axEww", "-o", "pid=,command="]).splitlines()]
        known = set(table)
        return {int(pid): words for pid, *words in lines if int(pid) in known}
    return {pid: [one.decode(errors="replace") for one in _environ_of_proc(pid)] for pid in table}


def _environ_of_proc(pid: int) -> List[bytes]:
    try:
        return (PROC / str(pid) / "environ").read_bytes().split(b"\0")
    except GONE:
        return []


def _output(words: List[str]) -> str:
    """Return the stdout of a program; ignore exit code 1, with which ps reports an empty match.

    LC_ALL and TZ are fixed, so that start times are equal for all users.
    """
    environ = {**os.environ, "LC_ALL": "C", "TZ": "UTC"}
    return subprocess.run(words, env=environ, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True).stdout
