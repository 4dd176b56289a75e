"""Pods of a rehearsal: real processes on this machine, each pod with its own sshd and folder.

A pod is reached on loopback as the user who runs the world. Each pod has its own host key, home and `nvidia-smi`.
"""

import contextlib
import getpass
import json
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from infra.agent import process
from infra.errors import SlipwayError, UsageError
from infra.machines.image_start import IN_REHEARSAL
from infra.names import random_word
from infra.runs.sync.sync_step import FETCH
from store.run_sync.run_folder import ACKNOWLEDGED

ROOT = Path(__file__).parents[2]
HOST = "127.0.0.1"
START_S = 20.0
TRIES = 5
SFTP = ("/usr/lib/openssh/sftp-server", "/usr/libexec/openssh/sftp-server", "/usr/libexec/sftp-server")
ENTER = """#!/bin/sh
cd -- "$HOME" || exit 1
[ -n "$SSH_ORIGINAL_COMMAND" ] && exec "${SHELL:-/bin/sh}" -c "$SSH_ORIGINAL_COMMAND"
exec "${SHELL:-/bin/sh}" -i
"""
SLICE = " MIG 1g.10gb"
# Supports `-L`, any `--query-gpu=`, and a call without arguments.
SMI = """#!/bin/sh
name={name} count={count} memory={memory} driver={driver} cuda={cuda} load={load}
whole=${{name%% MIG *}} profile=${{name##* MIG }} i=0
[ "$whole" = "$name" ] || memory='[N/A]'
case "$*" in
*--query-gpu=*)
    query=$(printf '%s\\n' "$@" | sed -n 's/^--query-gpu=//p')
    while [ $i -lt $count ]; do
        row=
        for field in $(echo "$query" | tr , ' '); do
            case $field in
            name|gpu_name) value=$whole ;;
            index) value=$i ;;
            memory.total) value=$memory ;;
            memory.used) value=1024 ;;
            memory.free) [ "$memory" = "[N/A]" ] && value=$memory || value=$((memory - 1024)) ;;
            utilization.gpu) value=$load ;;
            driver_version) value=$driver ;;
            *) value='[N/A]' ;;
            esac
            row="$row${{row:+, }}$value"
        done
        echo "$row"
        i=$((i + 1))
    done ;;
-L|--list-gpus)
    while [ $i -lt $count ]; do
        echo "GPU $i: $whole (UUID: GPU-{uuid}-$i)"
        [ "$whole" = "$name" ] || echo "  MIG $profile     Device  0: (UUID: MIG-{uuid}-$i)"
        i=$((i + 1))
    done ;;
*) echo "| NVIDIA-SMI $driver    Driver Version: $driver    CUDA Version: $cuda |" ;;
esac
"""
# A slow disk cannot be simulated directly, so Python's temporary files are slow instead.
SLOW_DISK = """import tempfile, time
class _Slow:
    def __init__(self, file): self._file = file
    def __getattr__(self, name): return getattr(self._file, name)
    def __enter__(self): return self
    def __exit__(self, *about): self._file.close()
    def write(self, content):
        time.sleep(len(content) / 10e6)
        return self._file.write(content)
_make = tempfile.TemporaryFile
tempfile.TemporaryFile = lambda *words, **named: _Slow(_make(*words, **named))
"""


@dataclass(frozen=True, kw_only=True)
class Hardware:
    """The simulated hardware of a pod."""

    gpu: str
    num_gpus: int
    vram_gb: int
    old_driver: bool = False
    slow_disk: bool = False
    is_idle: bool = False
    is_sliced: bool = False


@dataclass(frozen=True, kw_only=True)
class Scripts:
    """The scripts of the machine's owner; "" = no script."""

    after_boot: str = ""  # runs once the machine is up
    command: str = ""  # start command of a container; the rehearsal starts sshd itself, independent of the command


class Pod:
    """A single boot of a machine. `start` and `end` may be called from any thread and in any order."""

    def __init__(
        self,
        folder: Path,
        hardware: Hardware,
        keys: tuple[str, ...],
        scripts: Scripts = Scripts(),
        has_sshd: bool = True,
        environ: Mapping[str, str] = {},
        volume: Path | None = None,
    ) -> None:
        """Prepare a pod without starting any process.

        `environ` is the environment from the vendor for the first process; `volume` is a folder that outlives the pod.
        """
        self.folder = folder
        self.token = f"rehearsal-{random_word(16)}"
        self._hardware, self._keys, self._scripts, self._has_sshd = hardware, keys, scripts, has_sshd
        self._environ, self._volume = environ, volume
        self._lock = threading.Lock()
        self._is_over = self._has_new_key = False
        self._init: subprocess.Popen[str] | None = None

    def start(self) -> tuple[str, int] | None:
        """Start the pod; return (host, port), or None if `end` was called before. Raises SlipwayError."""
        with self._lock:
            if self._is_over:
                return None
            self._create_files()
            for _ in range(TRIES):
                port = _free_port()
                self._begin(port)
                if not self._has_sshd or self._wait_for_sshd():
                    return HOST, port
                self._stop(0)  # a different process took the port in the meantime
            raise SlipwayError(f"no sshd in {self.folder}: {(self.folder / 'sshd.log').read_text()[-500:]}")

    def end(self, grace_s: float = 0) -> None:
        """End all processes of the pod and remove the folder."""
        with self._lock:
            self._is_over = True
            self._stop(grace_s)
            # a file still open in a process is no reason to fail
            shutil.rmtree(self.folder, ignore_errors=True)

    def change_host_key(self) -> None:
        """Replace the host key of sshd once, after the first login."""
        with self._lock, contextlib.suppress(FileNotFoundError, ProcessLookupError):  # the pod has just ended
            entered = "Accepted publickey" in (self.folder / "sshd.log").read_text()
            if not self._is_over and entered and not self._has_new_key:
                self._has_new_key = True
                self._make_host_key()
                os.kill(int((self.folder / "sshd.pid").read_text()), signal.SIGHUP)

    def _make_host_key(self) -> None:
        for name in ("host", "host.pub"):
            (self.folder / name).unlink(missing_ok=True)
        words = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "", "-f", str(self.folder / "host")]
        subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, check=True)

    def has_stored_checkpoint(self) -> bool:
        """Return whether the store has a checkpoint of this machine, so that a different machine can resume."""
        root = self.folder / "home" / ".slipway" / "pods"
        # a file in the middle of a write or removal is read at the next check
        with contextlib.suppress(OSError, ValueError):
            for pod in root.iterdir():
                # a fetched checkpoint was acknowledged before this mark
                begun = pod / "state" / "marks" / f"{FETCH}.json"
                known = json.loads((pod / ACKNOWLEDGED).read_bytes()) if begun.exists() else {}
                if any("/step-" in name and at > begun.stat().st_mtime for name, at in known.items()):
                    return True
        return False

    def _create_files(self) -> None:
        home = self.folder / "home"
        (home / "bin").mkdir(parents=True, mode=0o700)
        if self._volume:
            self._volume.mkdir(parents=True, exist_ok=True)
            (home / "mnt").mkdir()
            (home / "mnt" / self._volume.name).symlink_to(self._volume)
        self._make_host_key()
        (self.folder / "authorized_keys").write_text("".join(f"{key.strip()}\n" for key in self._keys))
        hardware = self._hardware
        driver, cuda = ("470.57", "11.4") if hardware.old_driver else ("580.65", "13.0")
        smi = SMI.format(
            name=shlex.quote(hardware.gpu + SLICE * hardware.is_sliced),
            count=hardware.num_gpus,
            memory=hardware.vram_gb * 1000_000_000 >> 20,
            driver=driver,
            cuda=cuda,
            load=0 if hardware.is_idle else 97,
            uuid=self.token[-8:],
        )
        programs = {self.folder / "enter": ENTER, **({home / "bin" / "nvidia-smi": smi} if hardware.gpu else {})}
        for path, text in programs.items():
            path.write_text(text)
            path.chmod(0o755)
        if hardware.slow_disk:
            (self.folder / "python").mkdir()
            (self.folder / "python" / "sitecustomize.py").write_text(SLOW_DISK)
        for name, script in (("start.sh", self._scripts.after_boot), ("command.sh", self._scripts.command)):
            if script:
                (self.folder / name).write_text(script)

    def _begin(self, port: int) -> None:
        home = self.folder / "home"
        environ = {
            "HOME": str(home),
            IN_REHEARSAL: "1",
            "PATH": f"{home}/bin:{home}/.local/bin:{os.environ.get('PATH', os.defpath)}",
            "CUDA_VISIBLE_DEVICES": "",  # the GPUs of the simulated nvidia-smi do not exist, so work runs on the CPU
        }
        if self._hardware.slow_disk:
            environ["PYTHONPATH"] = str(self.folder / "python")
        words = sshd_words(self.folder, port, environ) if self._has_sshd else ["sleep", "infinity"]
        (self.folder / "sshd.json").write_text(json.dumps([words, environ]))
        (self.folder / "sshd.log").write_bytes(b"")
        ours = {**self._environ, "PATH": os.environ.get("PATH", os.defpath), "PYTHONPATH": str(ROOT)}
        ours[process.TOKEN] = self.token
        (self.folder / "token").write_text(self.token)
        self._init = subprocess.Popen(
            [sys.executable, "-m", "infra.rehearsal.init", str(self.folder)],
            text=True,
            cwd=ROOT,
            env=ours,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def _wait_for_sshd(self) -> bool:
        """Return whether this pod's sshd, and not a foreign sshd, listens on the port."""
        deadline = time.monotonic() + START_S
        while time.monotonic() < deadline:
            said = (self.folder / "sshd.log").read_text()
            if "Server listening" in said or "Cannot bind" in said or "in use" in said:
                return "Server listening" in said
            assert self._init is not None
            if self._init.poll() is not None:
                return False
            time.sleep(0.01)
        return False

    def _stop(self, grace_s: float) -> None:
        if self._init is None or self._init.stdin is None:
            return
        self._init.send_signal(signal.SIGCONT)  # users simulate a hung machine by sending SIGSTOP to all its processes
        with contextlib.suppress(BrokenPipeError):  # the process has ended
            self._init.stdin.write(f"{grace_s}\n")
            self._init.stdin.close()
        self._init.wait()
        # The init normally ends all processes; repeat this in case the init was killed.
        process.end_all(self.token, 0)
        self._init = None


def find_sshd() -> str:
    """Return the path of this machine's sshd. Raises UsageError."""
    sshd = shutil.which("sshd", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")
    if not sshd:
        raise UsageError(
            "a rehearsal needs sshd, which is not installed on this machine; run: apt install openssh-server"
        )
    return sshd


def sshd_words(folder: Path, port: int, environ: dict[str, str]) -> list[str]:
    """Return the command line of an sshd that accepts only the keys of this pod. Raises UsageError."""
    sshd = find_sshd()
    sftp = next((path for path in SFTP if Path(path).exists()), "internal-sftp")
    options = {
        "HostKey": folder / "host",
        "AuthorizedKeysFile": folder / "authorized_keys",
        "PidFile": "none",
        "ListenAddress": HOST,
        "Port": port,
        "StrictModes": "no",
        "UsePAM": "no",
        "PasswordAuthentication": "no",
        "KbdInteractiveAuthentication": "no",
        "AllowUsers": getpass.getuser(),
        "MaxStartups": "100",
        "PrintMotd": "no",
        "Subsystem": f"sftp {sftp}",
        "ForceCommand": shlex.quote(str(folder / "enter")),
    }
    if os.geteuid() == 0:
        Path("/run/sshd").mkdir(exist_ok=True)
    words = [word for key, value in options.items() for word in ("-o", f"{key}={value}")]
    if _knows_penalties(sshd):
        words += ["-o", "PerSourcePenalties=no"]
    variables = " ".join(f'"{key}={value}"' for key, value in environ.items())
    return [sshd, "-D", "-e", "-f", "/dev/null", *words, "-o", f"SetEnv={variables}"]


def _free_port() -> int:
    with socket.create_server((HOST, 0)) as free:
        return int(free.getsockname()[1])


def _knows_penalties(sshd: str) -> bool:
    """Return whether sshd is OpenSSH 9.8 or later, which blocks addresses after repeated failures."""
    done = subprocess.run([sshd, "-T", "-f", "/dev/null"], stdin=subprocess.DEVNULL, capture_output=True, text=True)
    return "persourcepenalties" in done.stdout.lower()
