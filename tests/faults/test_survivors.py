"""Workers with all means to outlive their run: no worker is left after the end."""

import pytest

from infra.agent import process
from infra.agent.job import Step
from infra.ledger.journal import Journal
from infra.runs.pods import end
from infra.transport.ssh import Ssh
from tests.faults.trial import checkout, counted, environ, plan, provider_of, rounds
from tests.hosts import hosts, until  # noqa: F401 (a fixture)
from tests.street import launch_on

pytestmark = pytest.mark.process

KINDS = 5
EACH = 4
SPAWN = """
import os, signal, sys, time
work = os.environ["SLIPWAY_WORK"]

def worker(forks, session, deaf, environ, respawns):
    '''A process that forked so often, writes down who it is, and lives on.'''
    if os.fork():
        return
    for _ in range(forks):
        if session:
            os.setsid()
        if os.fork():
            os._exit(0)
    if deaf:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
    while respawns and os.fork():  # a parent that starts another when its child has ended
        os.wait()
    started = open("/proc/self/stat").read().rpartition(")")[2].split()[19]
    with open(os.path.join(work, "workers.txt"), "a") as file:
        print(os.getpid(), started, file=file, flush=True)
    os.execve(sys.executable, [sys.executable, "-c", "import time; time.sleep(600)"], environ)

os.chdir("/")
bare = {"PATH": os.environ["PATH"]}
for _ in range(%d):
    worker(0, False, False, os.environ, False)
    worker(1, True, True, os.environ, False)
    worker(2, True, True, bare, False)
    worker(1, False, False, bare, False)
    worker(1, True, True, bare, True)
signal.signal(signal.SIGTERM, signal.SIG_IGN)
while True:
    time.sleep(1)
"""


@rounds(1, 10)
def test_no_worker_outlives_its_run(hosts, tmp_path, rounds):  # noqa: F811
    (host,) = hosts(1)
    host.stop()
    host.options = ["-o", "SetEnv=SLIPWAY_GRACE_S=0.5"]
    host.start()
    root = checkout(tmp_path / "checkout")
    (root / "spawn.py").write_text(SPAWN % EACH)
    with Ssh(host.address, tmp_path / "known_hosts") as ssh, Journal.open(environ=environ(tmp_path)) as journal:
        provider = provider_of(host, ssh, tmp_path)
        for number in range(rounds):
            wanted = plan(tmp_path / "store", Step("spawn", ("-m", "spawn")), run=f"otter-{number}")
            op = launch_on(provider, wanted, journal, root)
            count = counted(host, op.run)
            until(lambda: len(count.lines("workers.txt")) >= KINDS * EACH, "all workers")  # noqa: B023
            assert end(provider, op, journal).state == "TERMINATED"
            workers = [line.split() for line in count.lines("workers.txt")]
            boot = process.boot_id()
            assert not [pid for pid, began in workers if process.is_alive(process.Identity(boot, int(pid), began))]
            assert process.find(op.token) == []
