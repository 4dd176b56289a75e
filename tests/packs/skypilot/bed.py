"""SkyPilot's API server over a Slurm cluster of two nodes (tests/slurm.py), all on this machine's loopback.

A `Bed` holds the folders and variables by which commands reach the server. Every started process ends with the bed, by
its process id. The nodes work as a user created for the bed.

    python -m tests.packs.skypilot.bed FOLDER      holds a bed until Ctrl-C, for manual trials
"""

import contextlib
import os
import pwd
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from infra.agent.environments import cache_folder, environment
from infra.agent.peer_addresses import free_ports
from infra.records import Address
from scripts.project import debian
from tests import slurm
from tests.hosts import Host, make_key, until

ROOT = Path(__file__).resolve().parents[3]
USER = "slipwaybed"
PYTHON = "/usr/bin/python3"

# SkyPilot judges no job while two public name servers are silent; a local server answers in their place. SkyPilot
# starts no service on Slurm, which opens no ports; on loopback, every port is open.
PROBE = """
import importlib.abc, os, sys

def with_probe(module):
    module._TEST_IP_LIST = [os.environ["BED_PROBE"]]

def with_ports(module):
    features = module.Slurm._CLOUD_UNSUPPORTED_FEATURES
    del features[module.clouds.CloudImplementationFeatures.OPEN_PORTS]

CHANGES = {"sky.backends.backend_utils": with_probe, "sky.clouds.slurm": with_ports}

class Here(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        change = CHANGES.pop(name, None)
        if change is None:
            return None
        import importlib.util
        spec = importlib.util.find_spec(name)
        run = spec.loader.exec_module
        def exec_module(module):
            run(module)
            change(module)
        spec.loader.exec_module = exec_module
        return spec

if "BED_PROBE" in os.environ:
    sys.meta_path.insert(0, Here())
"""


@dataclass(frozen=True)
class Bed:
    folder: Path
    environ: Mapping[str, str]
    """Environment variables for SkyPilot's and Slurm's commands."""
    shared: Path
    """A folder writable by the nodes' user."""
    start_server: Callable[[], None]
    """Function that starts the API server, and returns when the server answers."""
    sessions: set[int]
    """Sessions of the started servers. A worker of a server writes its title over the environment in /proc."""

    def processes(self) -> list[int]:
        """Return the servers, their workers and their controllers."""
        mark = f"HOME={self.environ['HOME']}".encode()
        return _processes(
            lambda folder: (
                mark in (folder / "environ").read_bytes().split(b"\0") or os.getsid(int(folder.name)) in self.sessions
            )
        )

    def kill_server(self) -> None:
        """Kill the API server, its workers and the queues between them, which would keep the ports of the next server.

        The controllers of jobs are separate processes.
        """
        for pid in self.processes():
            with contextlib.suppress(OSError):
                words = Path(f"/proc/{pid}/cmdline").read_bytes()
                if any(one in words for one in (b"sky.server", b"SkyPilot:executor", b"multiprocessing.")):
                    os.kill(pid, signal.SIGKILL)

    def run(self, *words: str, timeout_s: float = 60.0) -> str:
        done = subprocess.run(
            words, env=self.environ, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=timeout_s
        )
        assert done.returncode == 0, f"{words}: {done.stdout}{done.stderr}"
        return done.stdout


def lacking() -> str:
    """Return the reason that prevents a bed on this machine, or ""."""
    if why := slurm.missing("useradd", "ssh-keygen"):
        return why
    return "" if Path(PYTHON).exists() else f"there is no {PYTHON}"


@contextlib.contextmanager
def bed(folder: Path) -> Iterator[Bed]:
    """Yield a running bed in `folder`, which every user must be able to enter."""
    sky = environment.ensure("skypilot", ROOT, cache_folder.default_cache(), "", print)
    with contextlib.ExitStack() as stack:
        stack.callback(_forget_user)
        here = os.uname().nodename.split(".")[0]
        home, user_home, shared = folder / "home", folder / "user", folder / "shared"
        for one in (home / ".sky", home / ".slurm", user_home, shared, folder / "bin", folder / "uv"):
            one.mkdir(parents=True, exist_ok=True)
        os.chmod(folder, 0o755)
        _user(user_home)
        for one in (user_home, shared, folder / "uv"):
            shutil.chown(one, USER, USER)
        # SkyPilot reaches a node by its name.
        names = ["localhost"] if here == "localhost" else [here, "localhost"]
        cluster = stack.enter_context(slurm.running(folder / "slurm", names))
        ssh, server, probe = free_ports(3)
        environ = {**os.environ, "SLURM_CONF": str(cluster.conf), "PATH": f"{os.environ['PATH']}:/usr/sbin:/usr/bin"}
        login = _login(folder, ssh, home, user_home, cluster.conf)
        stack.callback(login.stop)
        login.start()
        _start(stack, [sys.executable, "-c", ANSWER, str(probe)], environ, folder / "probe.log")
        (home / ".sky" / "config.yaml").write_text(
            "jobs: {controller: {consolidation_mode: true}}\nserve: {controller: {consolidation_mode: true}}\n"
        )
        (folder / "bin" / "sitecustomize.py").write_text(PROBE)
        environ = {
            **environ,
            "HOME": str(home),
            "SKYPILOT_DISABLE_USAGE_COLLECTION": "1",
            "SKYPILOT_API_SERVER_LOCAL_PORT": str(server),
            "PYTHONPATH": str(folder / "bin"),
            "SKYPILOT_API_SERVER_ENDPOINT": f"http://127.0.0.1:{server}",
            "BED_PROBE": f"http://127.0.0.1:{probe}",
        }
        beginning = {key: value for key, value in environ.items() if key != "SKYPILOT_API_SERVER_ENDPOINT"}

        def start_server() -> None:
            words = [str(sky.parent / "sky"), "api", "start", "--foreground"]
            found.sessions.add(_start(stack, words, beginning, folder / "server.log"))
            until(lambda: _answers(f"http://127.0.0.1:{server}/api/health"), "SkyPilot's API server", 900.0)

        found = Bed(folder, environ, shared, start_server, set())
        stack.callback(_end_skypilot, found)
        start_server()
        found.run(str(sky.parent / "sky"), "check", "slurm", timeout_s=900)
        yield found


ANSWER = """
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer
class Here(BaseHTTPRequestHandler):
    def do_HEAD(self):
        self.send_response(200)
        self.end_headers()
HTTPServer(("127.0.0.1", int(sys.argv[1])), Here).serve_forever()
"""


def _start(stack: contextlib.ExitStack, words: list[str], environ: Mapping[str, str], log: Path) -> int:
    """Start a program in a session of its own, until the end of the bed; return the session."""
    with open(log, "ab") as said:
        child = subprocess.Popen(
            words,
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=said,
            start_new_session=True,
        )

    def end() -> None:
        child.terminate()
        try:
            child.wait(20)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()

    stack.callback(end)
    return child.pid


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5) as said:
            return said.status == 200
    except OSError:
        return False


def _user(home: Path) -> None:
    _forget_user()
    subprocess.run([debian.find("useradd"), "-M", "-d", str(home), "-s", "/bin/bash", "-p", "*", USER], check=True)


def _forget_user() -> None:
    with contextlib.suppress(KeyError):
        uid = pwd.getpwnam(USER).pw_uid
        for pid in _processes(lambda folder: folder.stat().st_uid == uid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        subprocess.run([debian.find("userdel"), USER], check=True, capture_output=True)


def _processes(is_meant) -> list[int]:
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with contextlib.suppress(OSError):
                if is_meant(folder):
                    found.append(int(folder.name))
    return found


def _login(folder: Path, port: int, home: Path, user_home: Path, conf: Path) -> Host:
    """Return the login node, and create the tools that SkyPilot's nodes otherwise download."""
    keys = folder / "login"
    keys.mkdir()
    make_key(keys / "host")
    key = make_key(keys / "user")
    uv = next(cache_folder.default_cache().glob("uv-*/bin/uv"))
    shutil.copy(uv, folder / "bin" / "uv.real")
    (folder / "bin" / "uv").write_text(
        f'#!/bin/bash\nwords=()\nfor one in "$@"; do [ "$one" = 3.10 ] && one={PYTHON}; words+=("$one"); done\n'
        f'exec "{folder}/bin/uv.real" "${{words[@]}}"\n'
    )
    (folder / "bin" / "curl").write_text(
        '#!/bin/bash\nfor one in "$@"; do case "$one" in *uv/install.sh) '
        f'echo \'mkdir -p "$UV_INSTALL_DIR" && cp "{folder}/bin/uv" "$UV_INSTALL_DIR/uv"\'; exit;; esac; done\n'
        'exec /usr/bin/curl "$@"\n'
    )
    for name in ("uv", "uv.real", "curl"):
        (folder / "bin" / name).chmod(0o755)
    for name in (".profile", ".bashrc"):
        (user_home / name).write_text(f'export PATH="{folder}/bin:$PATH"\n')
        shutil.chown(user_home / name, USER, USER)
    told = {
        "SLURM_CONF": str(conf),
        "UV_CACHE_DIR": str(folder / "uv"),
        "UV_SYSTEM_CERTS": "1",
        "UV_LINK_MODE": "copy",
        **{key: value for key, value in os.environ.items() if key in CARRIED},
    }
    (home / ".slurm" / "config").write_text(
        f"Host {slurm.NAME}\n  HostName 127.0.0.1\n  Port {port}\n  User {USER}\n  IdentityFile {key}\n"
        "  IdentitiesOnly yes\n"
    )
    variables = " ".join(f"{key}={value}" for key, value in told.items())
    options = ["-o", f"SetEnv={variables}", "-o", "MaxSessions=100"]
    address = Address(USER, "127.0.0.1", port, str(key), str(user_home))
    return Host(keys, address, "127.0.0.1", options=options)


CARRIED = ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "PIP_FIND_LINKS", "UV_INDEX_URL", "UV_EXTRA_INDEX_URL")


def _end_skypilot(found: Bed) -> None:
    for number in (signal.SIGTERM, signal.SIGKILL):
        for _ in range(50):
            if not (pids := found.processes()):
                return
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)
            time.sleep(0.2)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(dir=sys.argv[1]) as made, bed(Path(made)) as up:
        print(f"HOME={made}/home", flush=True)
        Path(sys.argv[1], "environ.sh").write_text(
            "".join(f"export {key}='{value}'\n" for key, value in up.environ.items() if os.environ.get(key) != value)
        )
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
        with contextlib.suppress(KeyboardInterrupt):
            signal.pause()
