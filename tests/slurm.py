"""A real Slurm cluster on loopback: munged, slurmctld and two slurmd on this machine, ended by their process ids.

The GPUs are files, scheduled like any gres. Requirements: Debian's slurmctld, slurmd, slurm-client and munge, and root.
`python -m tests.slurm FOLDER` runs a cluster until an interrupt, with a login node behind a real sshd, and prints the
inventory.
"""

import contextlib
import json
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from infra.agent.peer_addresses import free_ports
from scripts.project import debian
from tests.hosts import Host, loopback, until

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "sshd")
NAME, PARTITION, NODES = "loop", "gpu", ("slip1", "slip2")
CONF = """
ClusterName={name}
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.sock
CommunicationParameters=NoInAddrAny,NoCtldInAddrAny
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
ReturnToService=2
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
JobCompType=jobcomp/none
GresTypes=gpu
SlurmdParameters=config_overrides
KillWait=15
SlurmdTimeout=20
{nodes}
PartitionName={partition} Nodes={names} Default=YES MaxTime=7-0 DefaultTime=1-0 State=UP
"""
NODE = (
    "NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs=8 RealMemory=16000 Gres=gpu:A10G:2 "
    "State=UNKNOWN"
)


def missing(*more: str) -> str:
    """Return the reason why a cluster with the programs in `more` is impossible, or ""."""
    if lacks := [name for name in (*PROGRAMS, *more) if not debian.find(name)]:
        return f"{', '.join(lacks)} missing (Debian: slurmctld slurmd slurm-client munge openssh-server)"
    return "" if os.geteuid() == 0 else "needs root"


@dataclass
class Cluster:
    """A cluster in `folder`; jobs submitted on the login node have `login.folder` as their home."""

    folder: Path
    nodes: Sequence[str] = NODES
    login: Host | None = None
    daemons: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    @property
    def conf(self) -> Path:
        return self.folder / "slurm.conf"

    def start(self) -> None:
        """Start the cluster; return when all nodes accept work."""
        self._configure(os.uname().nodename.split(".")[0])
        munge = [f"--{name}-file={self.folder}/munged.{name}" for name in ("pid", "log", "seed")]
        munge += [f"--key-file={self.folder}/munge.key", f"--socket={self.folder}/munge.sock"]
        self._begin("munged", "--foreground", "--force", *munge)
        until((self.folder / "munge.sock").exists, "munged")
        self.start_controller()
        for name in self.nodes:
            self._begin("slurmd", "-D", "-f", str(self.conf), "-N", name, known_as=name)
        idle = ("sinfo", "-h", "-t", "idle", "-o", "%D")
        until(lambda: self.call(*idle, may_fail=True).strip() == str(len(self.nodes)), "all nodes are idle", 60.0)

    def start_controller(self) -> None:
        self._begin("slurmctld", "-D", "-f", str(self.conf))

    def _configure(self, host: str) -> None:
        for name in ("state", "dev"):
            (self.folder / name).mkdir(parents=True)
        for number in range(2):
            (self.folder / "dev" / f"gpu{number}").touch()
        port, *ports = free_ports(1 + len(self.nodes))
        lines = [NODE.format(name=name, host=host, port=port) for name, port in zip(self.nodes, ports, strict=True)]
        names = ",".join(self.nodes)
        more = {"name": NAME, "partition": PARTITION, "nodes": "\n".join(lines), "names": names}
        self.conf.write_text(CONF.format(folder=self.folder, host=host, port=port, **more))
        gres = f"AutoDetect=off\nNodeName={names} Name=gpu Type=A10G File={self.folder}/dev/gpu[0-1]\n"
        (self.folder / "gres.conf").write_text(gres)
        (self.folder / "munge.key").write_bytes(secrets.token_bytes(1024))
        (self.folder / "munge.key").chmod(0o400)

    def _begin(self, program: str, *words: str, known_as: str = "") -> None:
        name = known_as or program
        with (self.folder / f"{name}.out").open("ab") as log:
            self.daemons[name] = subprocess.Popen(
                [debian.find(program), *words],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                env={**os.environ, "SLURM_CONF": str(self.conf)},
            )

    def end(self, name: str) -> None:
        """End a daemon by pid: `slurmctld`, or the slurmd of a node."""
        process = self.daemons.pop(name)
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def stop(self) -> None:
        with contextlib.suppress(AssertionError, OSError):  # the controller may be gone
            self.call("scancel", "--partition", PARTITION, may_fail=True)
            until(lambda: not self.call("squeue", "-h", may_fail=True).strip(), "no job is left", 60.0)
        for name in reversed(list(self.daemons)):
            self.end(name)

    def call(self, *words: str, may_fail: bool = False) -> str:
        """Return the output of a command of Slurm."""
        environ = {**os.environ, "SLURM_CONF": str(self.conf)}
        done = subprocess.run(words, env=environ, capture_output=True, text=True, timeout=60)
        assert may_fail or done.returncode == 0, (words, done.stderr)
        return done.stdout

    def jobs(self) -> list[str]:
        """Return the numbers of the unfinished jobs."""
        return self.call("squeue", "-h", "-o", "%i").split()

    def requeue(self, job: str) -> None:
        """Preempt a job; the job restarts as soon as it has ended, without Slurm's delay of two minutes."""
        self.call("scontrol", "requeue", job)

        def begins() -> bool:
            state = self.call("squeue", "-h", "-j", job, "-o", "%T").strip()
            if state == "PENDING":  # repeat: Slurm may set the delay of two minutes only now
                self.call("scontrol", "update", f"JobId={job}", "StartTime=now", may_fail=True)
            return state == "RUNNING"

        until(begins, "it begins again", 120.0)

    def inventory(self, place: Path) -> Path:
        """Return the inventory file with which commands find this cluster."""
        assert self.login is not None
        address = self.login.address
        python = getattr(sys, "_base_executable", sys.executable)
        said = {
            "host": address.host,
            "port": address.port,
            "user": address.user,
            "identity_file": address.key,
            "python": python,
            "partitions": {PARTITION: {}},
        }
        place.write_text(json.dumps({NAME: said}))
        return place


@contextlib.contextmanager
def running(folder: Path, nodes: Sequence[str] = NODES, login: Host | None = None) -> Iterator[Cluster]:
    """Run a cluster; end all processes on exit."""
    cluster = Cluster(folder, nodes, login)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()


@contextlib.contextmanager
def with_login(folder: Path) -> Iterator[Cluster]:
    """Run a cluster with a login node."""
    folder.mkdir(parents=True, exist_ok=True)
    slurm = folder / "slurm"
    with loopback(folder, f"SLURM_CONF={slurm / 'slurm.conf'}") as login, running(slurm, login=login) as one:
        yield one


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    if why := missing():
        pytest.skip(why)
    with with_login(tmp_path_factory.mktemp("cluster")) as one:
        yield one


def main(folder: Path) -> None:
    """Run a cluster until SIGINT or SIGTERM."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    with with_login(folder) as one:
        print(one.inventory(folder / "clusters.yaml"), f"SLURM_CONF={one.conf}", flush=True)
        while True:
            time.sleep(1)


if __name__ == "__main__":
    main(Path(sys.argv[1]).absolute())
