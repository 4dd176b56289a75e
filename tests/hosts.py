"""Real hosts for tests: an OpenSSH server on loopback, and network namespaces joined by a bridge.

A namespace has its own sshd, host key and home, and no route out. A client of the hosts enters the namespace of their
bridge (`Hosts.enter`): addresses 10.77.0.x exist only inside, so any number of bridges run side by side. tests/needs.py
lists the requirements on the machine, and skips tests without the requirements.
"""

import contextlib
import ctypes
import getpass
import json
import os
import pwd
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from infra.agent import process
from infra.agent.environments import cache_folder, environment
from infra.records import Address
from scripts.project import debian
from tests.needs import PRIVILEGE, needs

DEADLINE_S = 20.0
SSHD = debian.find("sshd")
_CLONE_NEWNET = 0x40000000
PIP_FILES = (Path("/etc/pip.conf"), Path("/etc/xdg/pip/pip.conf"))
ROOT = Path(__file__).parents[1]
HOME = Path(pwd.getpwuid(os.geteuid()).pw_dir)  # as seen by sshd, independent of our environment


def until(truth: Callable[[], Any], what: str, within_s: float = DEADLINE_S) -> Any:
    """Return the first true answer; fail after `within_s`."""
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        answer = truth()
        if answer:
            return answer
        time.sleep(0.02)
    raise AssertionError(f"not within {within_s} s: {what}")


def call(*words: str | Path) -> None:
    done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    assert done.returncode == 0, (words, done.stderr)


def make_key(path: Path) -> Path:
    needs("ssh-keygen")
    path.unlink(missing_ok=True)
    call("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", path)
    return path


@dataclass
class Host:
    """An sshd with an address."""

    folder: Path  # contains the keys and the home
    address: Address
    listen: str
    prefix: Sequence[str] = ()  # prefix that runs a command in the place of this sshd
    network: str = ""  # name of the namespace
    options: Sequence[str] = ()  # further options of sshd
    server: subprocess.Popen[bytes] | None = field(default=None, repr=False)

    def start(self) -> None:
        """Start the server, in place of a running server; return when sshd accepts connections."""
        needs("sshd")
        self.stop()
        options = {
            "HostKey": self.folder / "host",
            "AuthorizedKeysFile": self.folder / "user.pub",
            "PidFile": "none",
            "StrictModes": "no",
            "UsePAM": "no",
            "PasswordAuthentication": "no",
            "ListenAddress": self.listen,
            "MaxStartups": "100",
            "PerSourcePenalties": "no",
            "AllowTcpForwarding": "yes",
            "Subsystem": "sftp internal-sftp",
        }
        if not _knows_penalties():
            del options["PerSourcePenalties"]
        flags = [word for key, value in options.items() for word in ("-o", f"{key}={value}")]
        flags += self.options
        Path("/run/sshd").mkdir(exist_ok=True)
        log = open(self.folder / "sshd.log", "ab")  # noqa: SIM115 (the child keeps it)
        with log:
            self.server = subprocess.Popen(
                [*self.prefix, SSHD, "-D", "-e", "-f", "/dev/null", "-p", str(self.address.port), *flags],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        log_text = (self.folder / "sshd.log").read_text
        before = log_text().count("Server listening")
        until(lambda: log_text().count("Server listening") > before or self._listens(), "a listening sshd")

    def _listens(self) -> bool:
        assert self.server is not None and self.server.poll() is None, (self.folder / "sshd.log").read_text()
        table = Path(f"/proc/{self.server.pid}/net/tcp").read_text()
        return f":{self.address.port:04X} 00000000:0000 0A" in table

    def stop(self) -> None:
        """End the server and every connection, with the processes of the connections."""
        if self.server is not None:
            family = [self.server.pid, *descendants(self.server.pid)]
            for pid in family:
                _signal(pid, signal.SIGKILL)
            self.server.wait()
            self.server = None

    def sessions(self) -> list[int]:
        """Return the sshd processes that serve connections; processes of the user come last."""
        assert self.server is not None
        return [pid for pid in descendants(self.server.pid) if _name(pid).startswith("sshd")]

    def kill_sessions(self) -> int:
        """Kill the connections; return the number of killed processes. Started commands live on."""
        return sum(_signal(pid, signal.SIGKILL) for pid in self.sessions())

    def freeze(self) -> None:
        """Stop the server and the connections, which stay open."""
        assert self.server is not None
        for pid in (self.server.pid, *self.sessions()):
            _signal(pid, signal.SIGSTOP)

    def thaw(self) -> None:
        assert self.server is not None
        for pid in (self.server.pid, *self.sessions()):
            _signal(pid, signal.SIGCONT)

    def change_key(self) -> None:
        """Change the host key, as on a new machine at the same address."""
        self.stop()
        make_key(self.folder / "host")
        self.start()

    def cut(self) -> None:
        """Disconnect the host from the network."""
        call("ip", "-n", self.network, "link", "set", "eth0", "down")

    def restore(self) -> None:
        call("ip", "-n", self.network, "link", "set", "eth0", "up")

    def slow_down(self, mbit_per_s: float) -> None:
        """Limit the rate of sending; receiving is not limited."""
        rate = ("rate", f"{mbit_per_s:g}mbit", "burst", "32kbit", "latency", "400ms")
        call("tc", "-n", self.network, "qdisc", "add", "dev", "eth0", "root", "tbf", *rate)

    def speed_up(self) -> None:
        call("tc", "-n", self.network, "qdisc", "del", "dev", "eth0", "root")

    def take_address(self, gone: "Host") -> None:
        """Take over the address of a disconnected host."""
        self.stop()
        call("ip", "-n", self.network, "addr", "add", f"{gone.listen}/16", "dev", "eth0")
        shown = subprocess.run(
            ["ip", "-n", gone.network, "-j", "link", "show", "eth0"], capture_output=True, check=True
        )
        call("ip", "-n", self.network, "link", "set", "eth0", "address", json.loads(shown.stdout)[0]["address"])
        self.listen = gone.listen
        self.start()

    def firewall(self, *rule: str, chain: str = "INPUT") -> None:
        """Append a rule for INPUT or OUTPUT: `-j DROP`, or `-p tcp -j REJECT --reject-with tcp-reset`."""
        call("ip", "netns", "exec", self.network, "iptables", "-w", "-A", chain, *rule)

    def open_firewall(self) -> None:
        for chain in ("INPUT", "OUTPUT"):
            call("ip", "netns", "exec", self.network, "iptables", "-w", "-F", chain)


def first_process(token: str) -> int:
    """Return the first process of a pod on this machine, by start time: pids wrap around, so the lowest pid is no
    proof.
    """
    return min(process.find(token), key=lambda one: int(one.started)).pid


def descendants(root: int) -> list[int]:
    """Return the living descendants, parents before children."""
    parents: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # ended during the look
                state, parent = (entry / "stat").read_text().rpartition(")")[2].split()[:2]
                if state not in "ZX":
                    parents.setdefault(int(parent), []).append(int(entry.name))
    found: list[int] = []
    waiting = [root]
    while waiting:
        children = parents.get(waiting.pop(0), [])
        found += children
        waiting += children
    return found


def _name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except (FileNotFoundError, ProcessLookupError):
        return ""


def _signal(pid: int, number: int) -> bool:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True


def _knows_penalties() -> bool:
    """Return true for OpenSSH 9.8 and later, which blocks an address with many failures."""
    done = subprocess.run([SSHD, "-T", "-f", "/dev/null"], capture_output=True, text=True)
    return "persourcepenalties" in done.stdout.lower()


@contextlib.contextmanager
def loopback(folder: Path, more: str = "", listen: str = "127.0.0.1", options: Sequence[str] = ()) -> Iterator[Host]:
    """Run a real OpenSSH server on loopback with private keys, and a private home if environments are shared.

    `more`: variables of the sessions, as NAME=value. `listen`: a second address of this thread's network. `options`:
    further options of sshd.
    """
    family = socket.AF_INET6 if ":" in listen else socket.AF_INET
    with socket.create_server((listen, 0), family=family) as free:
        port = free.getsockname()[1]
    home = folder / "sshd"
    home.mkdir()
    make_key(home / "host")
    key = make_key(home / "user")
    address = Address(getpass.getuser(), listen, port, str(key), str(folder / "pod"))
    # A private home, so that sessions read no start-up files of the user and lose no time on them.
    shared = f"SetEnv=HOME={home} SLIPWAY_ENVIRONMENTS={cache_folder.default_cache()} {more}".rstrip()
    host = Host(home, address, listen, options=["-o", shared, *options])
    try:
        host.start()
        yield host
    finally:
        host.stop()


@pytest.fixture
def sshd(tmp_path: Path) -> Iterator[Host]:
    with loopback(tmp_path, "OMP_NUM_THREADS=1") as host:  # like ONE_THREAD of tests/world.py
        yield host


class Hosts:
    """Hosts in separate namespaces, joined by a bridge in a further namespace."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.name = f"sw{os.getpid()}x{os.urandom(2).hex()}"
        self.bridge = f"{self.name}-b"
        self.all: list[Host] = []
        self._ours = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)

    def open(self) -> None:
        call("ip", "netns", "add", self.bridge)
        call("ip", "-n", self.bridge, "link", "set", "lo", "up")
        call("ip", "-n", self.bridge, "link", "add", "br0", "type", "bridge")
        call("ip", "-n", self.bridge, "addr", "add", "10.77.0.1/16", "dev", "br0")
        call("ip", "-n", self.bridge, "link", "set", "br0", "up")

    def add(self, hidden: Sequence[str] = (), uv_cache: Path | None = None) -> Host:
        """Add a host with our interpreter; the programs in `hidden` are missing on the host.

        `uv_cache`: the host has a copy of the cache, and no configured package sources.
        """
        number = len(self.all) + 1
        network, ip = f"{self.name}-{number}", f"10.77.{number}.2"
        folder = self.folder / f"host{number}"
        (folder / "home").mkdir(parents=True)
        make_key(folder / "host")
        key = make_key(folder / "user")
        call("ip", "netns", "add", network)
        address = Address(getpass.getuser(), ip, 22, str(key), str(HOME / "pod"))
        binds = [f"mount --rbind '{folder}/home' '{HOME}'"]
        python = Path(sys.base_prefix)
        if python.is_relative_to(HOME):
            shown = folder / "home" / python.relative_to(HOME)
            shown.mkdir(parents=True)
            binds.append(f"mount --bind '{python}' '{shown}'")
        gone = [found for program in hidden for found in _everywhere(program)]
        if uv_cache:
            _copy(uv_cache, folder / "home" / ".cache" / "uv")
            gone += [path for path in PIP_FILES if path.exists()]
        binds += [f"mount --bind /dev/null '{path}'" for path in gone]
        # The home hides the test's folder inside, so the home is bound last and keys are read before.
        script = f'{"; ".join(reversed(binds))}; hostname {network}; exec "$@"'
        prefix = ["ip", "netns", "exec", network, "unshare", "-m", "--uts", "sh", "-ec", script, "sh"]
        host = Host(folder, address, ip, prefix, network)
        self.all.append(host)
        call("ip", "-n", self.bridge, "link", "add", f"v{number}", "type", "veth", "peer", "eth0", "netns", network)
        call("ip", "-n", self.bridge, "link", "set", f"v{number}", "master", "br0", "up")
        call("ip", "-n", network, "link", "set", "lo", "up")
        call("ip", "-n", network, "addr", "add", f"{ip}/16", "dev", "eth0")
        call("ip", "-n", network, "link", "set", "eth0", "up")
        host.start()
        return host

    @contextlib.contextmanager
    def enter(self) -> Iterator[None]:
        """Put this thread, child processes and new sockets on the bridge meanwhile."""
        theirs = os.open(f"/run/netns/{self.bridge}", os.O_RDONLY | os.O_CLOEXEC)
        try:
            _enter(theirs)
            yield
        finally:
            _enter(self._ours)
            os.close(theirs)

    def close(self) -> None:
        for host in self.all:
            host.stop()
        for host in self.all:
            call("ip", "netns", "del", host.network)
            shutil.rmtree(host.folder / "home" / ".cache", ignore_errors=True)  # large with a uv cache
        call("ip", "netns", "del", self.bridge)
        os.close(self._ours)


def _everywhere(program: str) -> list[Path]:
    """Return the paths of a program as seen by a host, which shares our files."""
    folders = [*os.get_exec_path(), *os.defpath.split(":"), "/usr/local/bin", f"{sys.base_prefix}/bin"]
    return sorted({Path(folder, program) for folder in folders if Path(folder, program).is_file()})


def _copy(source: Path, target: Path) -> None:
    """Copy by hard links where possible: uv replaces files and never writes into existing files."""
    target.parent.mkdir(parents=True)
    if subprocess.run(["cp", "-al", source, target], stderr=subprocess.DEVNULL).returncode != 0:
        shutil.rmtree(target, ignore_errors=True)
        call("cp", "-a", source, target)


def _enter(namespace: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(namespace, _CLONE_NEWNET) != 0:
        raise OSError(ctypes.get_errno(), "setns")


@pytest.fixture(scope="session")
def uv_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return this machine's uv cache, filled with the packages of the train environment."""
    environment.ensure("train", ROOT, tmp_path_factory.mktemp("train"), "cpu", print)
    uv = Path(sysconfig.get_path("scripts")) / "uv"
    return Path(subprocess.run([uv, "cache", "dir"], capture_output=True, text=True, check=True).stdout.strip())


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[Callable[..., list[Host]]]:
    """`hosts(2)`, `hosts(1, hidden=["rsync"])`: fresh hosts with addresses that the test can reach afterwards."""
    needs("sshd", "ssh-keygen", "ip", "iptables", PRIVILEGE)
    made = Hosts(tmp_path / "hosts")

    def make(count: int, hidden: Sequence[str] = (), uv_cache: Path | None = None) -> list[Host]:
        return [made.add(hidden, uv_cache) for _ in range(count)]

    try:
        made.open()
        with made.enter():
            yield make
    finally:
        made.close()
