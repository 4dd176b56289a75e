"""A real Slurm on loopback: its controller and two nodes, all on this machine, gone when the test is."""

import os
import shutil
import socket
import subprocess
import time
from contextlib import ExitStack, contextmanager

import pytest

NEEDED = ("munged", "slurmctld", "slurmd", "sbatch", "squeue", "scancel")
CONF = """\
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={home}/munge.sock,cred_expire=5
CommunicationParameters=NoInAddrAny,NoCtldInAddrAny
StateSaveLocation={home}/state
SlurmdSpoolDir={home}/spool-%n
SlurmctldPidFile={home}/slurmctld.pid
SlurmdPidFile={home}/slurmd-%n.pid
SlurmctldLogFile={home}/slurmctld.log
SlurmdLogFile={home}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
ReturnToService=2
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerParameters=sched_interval=1,bf_interval=1,batch_sched_delay=0
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
SlurmdParameters=config_overrides
SlurmdTimeout=5
KillWait=5
NodeName=one NodeHostname={host} NodeAddr=127.0.0.1 Port={one} CPUs=2 RealMemory=1000 State=UNKNOWN
NodeName=two NodeHostname={host} NodeAddr=127.0.0.1 Port={two} CPUs=2 RealMemory=1000 State=UNKNOWN
PartitionName=all Nodes=one,two Default=YES MaxTime=1-0 DefaultTime=1-0 State=UP
"""


def free_ports(count):
    with ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


@contextmanager
def running(home):
    """SLURM_CONF of a cluster that takes jobs, and its slurmd by node."""
    paths = {name: shutil.which(name, path=os.environ["PATH"] + ":/usr/sbin") for name in NEEDED}
    if missing := [name for name, path in paths.items() if not path]:
        pytest.skip(f"no {', '.join(missing)}: apt install slurmctld slurmd slurm-client munge")
    (home / "state").mkdir()
    (home / "munge.key").write_bytes(os.urandom(1024))
    (home / "munge.key").chmod(0o400)
    controller, one, two = free_ports(3)
    host = socket.gethostname().split(".")[0]
    conf = home / "slurm.conf"
    conf.write_text(CONF.format(host=host, home=home, controller=controller, one=one, two=two))
    munge = [f"--{name}={home}/munge.{end}" for name, end in (("key-file", "key"), ("socket", "sock"))]
    munge += [f"--{name}={home}/munged.{end}" for name, end in (("pid-file", "pid"), ("log-file", "log"))]
    programs = {
        "munge": [paths["munged"], "--force", "--foreground", *munge, f"--seed-file={home}/munged.seed"],
        "controller": [paths["slurmctld"], "-D", "-f", conf],
        "one": [paths["slurmd"], "-D", "-f", conf, "-N", "one"],
        "two": [paths["slurmd"], "-D", "-f", conf, "-N", "two"],
    }
    processes = {}
    try:
        for name, words in programs.items():
            with open(home / f"{name}.out", "wb") as out:
                processes[name] = subprocess.Popen(words, stdout=out, stderr=out)
            if name == "munge":
                until(lambda: (home / "munge.sock").exists(), home)
        until(lambda: ask(conf, "sinfo", "-h", "-o", "%T %D") == "idle 2", home)
        yield conf, processes
    finally:
        subprocess.run(["scancel", "-u", "root"], env={**os.environ, "SLURM_CONF": str(conf)}, timeout=30)
        for process in reversed(processes.values()):
            process.terminate()
            process.wait(20)


def ask(conf, *words):
    environ = {**os.environ, "SLURM_CONF": str(conf)}
    return subprocess.run(words, env=environ, capture_output=True, text=True, timeout=30).stdout.strip()


def until(true, home, limit_s=60):
    deadline = time.monotonic() + limit_s
    while not true():
        assert time.monotonic() < deadline, "\n".join(f"{log}: {log.read_text()[-600:]}" for log in home.glob("*.log"))
        time.sleep(0.1)
