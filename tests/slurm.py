"""A real Slurm cluster on loopback: munged, slurmctld, two slurmd on this machine; a login node behind a real sshd.

Its GPUs are files, scheduled as any gres are. What it needs: Debian's slurmctld, slurmd, slurm-client and munge, and
root. `python -m tests.slurm FOLDER` keeps one up until it is interrupted, and prints its inventory.
"""

import contextlib
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.hosts import Host, loopback, until

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "sshd")
NODES = ("slip1", "slip2")
CONF = """
ClusterName=loop
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ctld}
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
SrunPortRange={srun}-{srun_end}
GresTypes=gpu
SlurmdParameters=config_overrides
KillWait={kill_wait_s}
SlurmdTimeout=20
MinJobAge=300
{nodes}
PartitionName=gpu Nodes={names} Default=YES MaxTime=1-0 DefaultTime=2:00:00 State=UP
PartitionName=off Nodes={names} MaxTime=1-0 State=DOWN
"""
NODE = (
    "NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs=4 RealMemory=4000 Gres=gpu:A10G:2 "
    "State=UNKNOWN"
)


def missing() -> str:
    """Return why there can be no cluster here, "" when there can."""
    lacks = [name for name in PROGRAMS if not shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin:/sbin")]
    if lacks:
        return f"{', '.join(lacks)} missing (Debian: slurmctld slurmd slurm-client munge openssh-server)"
    return "" if os.geteuid() == 0 else "needs root"


@dataclass
class Cluster:
    """A running cluster in `folder`; its jobs have `login.folder` as their home."""

    folder: Path
    login: Host
    ports: list[int]
    daemons: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    kill_wait_s: int = 15

    @property
    def conf(self) -> Path:
        return self.folder / "slurm.conf"

    def start(self) -> None:
        """Returns when both nodes can be given work."""
        host = socket.gethostname().split(".")[0]
        ctld, first, second, srun = self.ports
        lines = [
            NODE.format(name=name, host=host, port=port) for name, port in zip(NODES, (first, second), strict=True)
        ]
        for name in ("state", "dev"):
            (self.folder / name).mkdir()
        for number in range(2):
            (self.folder / "dev" / f"gpu{number}").touch()
        self.conf.write_text(
            CONF.format(
                folder=self.folder,
                host=host,
                ctld=ctld,
                srun=srun,
                srun_end=srun + 60,
                nodes="\n".join(lines),
                names=",".join(NODES),
                kill_wait_s=self.kill_wait_s,
            )
        )
        gres = f"AutoDetect=off\nNodeName={','.join(NODES)} Name=gpu Type=A10G File={self.folder}/dev/gpu[0-1]\n"
        (self.folder / "gres.conf").write_text(gres)
        (self.folder / "munge.key").write_bytes(secrets.token_bytes(1024))
        (self.folder / "munge.key").chmod(0o400)
        munge = [f"--{name}-file={self.folder}/munged.{name}" for name in ("pid", "log", "seed")]
        self._begin(
            "munged",
            "--foreground",
            "--force",
            f"--key-file={self.folder}/munge.key",
            f"--socket={self.folder}/munge.sock",
            *munge,
        )
        until((self.folder / "munge.sock").exists, "munged")
        self._begin("slurmctld", "-D", "-f", str(self.conf))
        for name in NODES:
            self.start_node(name)
        until(
            lambda: self.call("sinfo", "-h", "-p", "gpu", "-t", "idle", "-o", "%D", may_fail=True).strip() == "2",
            "two idle nodes",
            60.0,
        )

    def start_node(self, name: str) -> None:
        self._begin("slurmd", "-D", "-f", str(self.conf), "-N", name, known_as=name)

    def _begin(self, *words: str, known_as: str = "") -> None:
        program = shutil.which(words[0], path=f"{os.environ['PATH']}:/usr/sbin:/sbin")
        assert program is not None
        with (self.folder / f"{known_as or words[0]}.out").open("ab") as log:
            self.daemons[known_as or words[0]] = subprocess.Popen(
                [program, *words[1:]],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                env={**os.environ, "SLURM_CONF": str(self.conf)},
            )

    def end(self, name: str) -> None:
        """End one daemon, by its pid: `slurmctld`, or the slurmd of a node."""
        process = self.daemons.pop(name)
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def restart_controller(self) -> None:
        self._begin("slurmctld", "-D", "-f", str(self.conf))

    def stop(self) -> None:
        with contextlib.suppress(AssertionError, OSError):  # the controller may be gone
            self.call("scancel", "--user", "root", may_fail=True)
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
        """The numbers of the jobs that Slurm has not seen the end of."""
        return self.call("squeue", "-h", "-o", "%i").split()

    def requeue(self, job: str) -> None:
        """Preempt a job; it begins again as soon as it is gone, and not after Slurm's two minutes."""
        self.call("scontrol", "requeue", job)

        def begins() -> bool:
            state = self.call("squeue", "-h", "-j", job, "-o", "%T").strip()
            if state == "PENDING":  # again and again: Slurm may set its two minutes only now
                self.call("scontrol", "update", f"JobId={job}", "StartTime=now", may_fail=True)
            return state == "RUNNING"

        until(begins, "it begins again", 120.0)

    def inventory(self, place: Path) -> Path:
        """The file by which commands find this cluster."""
        address = self.login.address
        python = getattr(sys, "_base_executable", sys.executable)
        said = {
            "host": address.host,
            "port": address.port,
            "user": address.user,
            "identity_file": address.key,
            "python": python,
            "partitions": {"gpu": {}},
        }
        place.write_text(json.dumps({"loop": said}))
        return place


@contextlib.contextmanager
def running(folder: Path) -> Iterator[Cluster]:
    """A cluster, from its start to the end of its last process."""
    with contextlib.ExitStack() as stack:
        ports = [stack.enter_context(socket.create_server(("127.0.0.1", 0))).getsockname()[1] for _ in range(3)]
    slurm = folder / "slurm"
    slurm.mkdir(parents=True)
    more = f"SLURM_CONF={slurm / 'slurm.conf'}"
    with loopback(folder, more) as login:
        cluster = Cluster(slurm, login, [*ports, 26000 + os.getpid() % 1000])
        try:
            cluster.start()
            yield cluster
        finally:
            cluster.stop()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    if why := missing():
        pytest.skip(why)
    with running(tmp_path_factory.mktemp("cluster")) as one:
        yield one


def main(folder: Path) -> None:
    """Keep a cluster up until SIGINT or SIGTERM."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    with running(folder) as one:
        print(one.inventory(folder / "clusters.yaml"), f"SLURM_CONF={one.conf}", flush=True)
        while True:
            time.sleep(1)


if __name__ == "__main__":
    main(Path(sys.argv[1]).absolute())
