"""A control host in a network, laptops in separate networks, and a rehearsed market that only the control host reaches.

Processes on the control host use a separate home and a separate temporary folder. A job of a run records begin and
end, and a second process that works for the same run at the same time.
"""

import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from infra.agent.environments import cache_folder, environment
from infra.ledger.journal import Journal
from infra.ledger.leases import SUPERVISOR
from infra.ledger.op import Op
from infra.rehearsal import attach
from packs.control_host.control.host_paths import HostPaths
from tests.faults.rented import Wrong
from tests.hosts import Host, Hosts, loopback
from tests.packs.control_host.test_street_control import CRONTAB, Laptop, laptop_of
from tests.processes import command_line, environ, pids
from tests.world import ROOT

BRIDGE = "10.77.0.1"  # Address of the control host; see tests/hosts.py.
GPU = {"runpod": "L40S", "lium": "RTX4090,L40S", "shadeform": "L40S,A6000"}
SPARED = ("infra.rehearsal", "sshd: ", "/usr/sbin/sshd ")  # The market, and the servers on the way.
QUIET = {"SLIPWAY_BOOT_S": "6000", "SLIPWAY_ACCEPT_DISK_MB_S": "0", "SLIPWAY_RESERVE_BYTES": "0",
         "SLIPWAY_PROFILE": "tiny"}  # fmt: skip
WORK = """
import fcntl, os, sys, time
folder, name, seconds = sys.argv[1], sys.argv[2], float(sys.argv[3])
lock = open(os.path.join(folder, name + ".lock"), "a")
try:
    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
except BlockingIOError:
    open(os.path.join(folder, name + ".twice"), "a").close()
    sys.exit(9)
open(os.path.join(folder, name + ".begun"), "a").write("x")
deadline = time.monotonic() + seconds
while time.monotonic() < deadline or os.path.exists(os.path.join(folder, name + ".hold")):
    time.sleep(0.1)
open(os.path.join(folder, name + ".done"), "a").write("x")
"""


@dataclass
class ControlBed:
    """An installation on a control host, with laptops and a market."""

    folder: Path
    host: Host
    places: HostPaths
    market: attach.Running
    laptops: list[Laptop]
    cables: list[Host] = field(default_factory=list)  # One for each laptop with a separate network.
    _journal: Journal | None = None

    @property
    def laptop(self) -> Laptop:
        return self.laptops[0]

    @property
    def temporary(self) -> Path:
        return self.host.folder / "tmp"

    @property
    def environ(self) -> dict[str, str]:
        """Return the environment variables of the control host."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("SLIPWAY_", "XDG_"))}
        return {**kept, "HOME": str(self.host.folder)}

    @property
    def journal(self) -> Journal:
        """Return the journal, kept open until the file is replaced: each open and close blocks all other users."""
        if self._journal is None:
            self._journal = Journal.open(self.places.state_file, self.environ)
        return self._journal

    def forget_journal(self) -> None:
        if self._journal is not None:
            self._journal.__exit__(None, None, None)
            self._journal = None

    def up(self) -> None:
        """Move the installation to the control host, which uses the market from then on."""
        self.laptop.json("control.up", self.laptop.host)
        with self.places.env.open("a") as file:
            file.write(f"SLIPWAY_REHEARSAL='{self.host.folder}'\n")
            file.writelines(f"{name}={value}\n" for name, value in QUIET.items())

    def launch(self, name: str, vendor: str, seconds: float, *more: str) -> list[str]:
        """Return the words of a launch with a job of `seconds` seconds."""
        job = f"exec python3 {self.folder}/work.py {self.folder}/said {name} {seconds:g}"
        return [
            "launch",
            "--cmd",
            job,
            "--provider",
            vendor,
            "--gpu",
            GPU[vendor],
            "--num-gpus",
            "1",
            "-n",
            name,
            "--spend-limit",
            "5",
            "--yes",
            *more,
        ]

    def event_count(self, name: str, what: str) -> int:
        """Return the number of events of a run's job: begun, done, twice."""
        path = self.folder / "said" / f"{name}.{what}"
        return (len(path.read_text()) or 1) if path.exists() else 0

    def verdict(self, run: str, what: str = "state") -> str:
        """Return a field of the verdict that reached the control host, "" without a verdict."""
        path = self.places.homes / run / "pod" / "state" / "verdict.json"
        return str(json.loads(path.read_text()).get(what, "")) if path.exists() else ""

    def rows(self, **wanted: Any) -> list[Op]:
        return self.journal.ops(**wanted)

    def row(self, run: str) -> Op | None:
        return next(iter(self.rows(run=run)[-1:]), None)

    def was_handed_over(self, run: str) -> bool:
        """Return whether a pod of the run ever received its job."""
        return any(one.event == "armed" for one in self.journal.events(run))

    def is_supervised(self) -> bool:
        """Return whether a supervisor is alive."""
        return self.journal.leases.holder(SUPERVISOR) is not None

    def processes(self, *words: str, is_on_host: bool = False) -> list[int]:
        """Return the processes of this installation with all of these words in the command line, except the market and
        sshd.
        """
        ours, home = str(self.folder).encode(), f"HOME={self.host.folder}".encode()
        found = []
        for pid in pids():
            line = f" {command_line(pid).replace(bytes(1), b' ').decode(errors='replace')} "
            if pid == os.getpid() or not all(word in line for word in words) or any(word in line for word in SPARED):
                continue
            told = environ(pid)
            if home in told.split(b"\0") if is_on_host else ours in told or str(self.folder) in line:
                found.append(pid)
        return found

    def switch_off(self) -> None:
        """Stop the control host: processes, connections, and temporary files."""
        self.host.stop()
        for _ in range(3):  # Also processes that are just starting.
            for pid in self.processes(is_on_host=True):
                kill(pid)
        shutil.rmtree(self.temporary)
        self.temporary.mkdir()
        self.forget_journal()

    def boot(self) -> None:
        """Start the control host and run the @reboot lines of the crontab."""
        self.host.start()
        lines = (self.host.folder / "cron").read_text().splitlines()
        for line in [one.removeprefix("@reboot ") for one in lines if one.startswith("@reboot ")]:
            environ = {
                "HOME": str(self.host.folder),
                "PATH": os.environ["PATH"],
                "SHELL": "/bin/sh",
                "TMPDIR": str(self.temporary),
            }
            subprocess.run(["sh", "-c", line], env=environ, cwd="/", stdin=subprocess.DEVNULL, timeout=300)

    def billing(self) -> dict[str, dict[str, Any]]:
        """Return the billing machines, by id."""
        return {pod["id"]: pod for pod in self.market.truth()["pods"] if pod["micro_usd_per_hour"] > 0}

    def settle(self) -> None:
        """Run `inv status` from a laptop, like a user."""
        self.laptop.run("status", "--json")

    def check_nothing_left(self) -> None:
        """Raise Wrong for a billing machine or a live row."""
        if left := [op.run for op in self.rows(live=True)]:
            raise Wrong(f"live rows: {left}")
        if billing := self.billing():
            raise Wrong(f"machines bill that no row is about: {billing}")


def kill(pid: int, number: int = signal.SIGKILL) -> bool:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)
        return True
    return False


@contextlib.contextmanager
def control_bed(folder: Path, speed: float, laptops: int = 1, are_apart: bool = True) -> Iterator[ControlBed]:
    """Yield a prepared control host, on a market with a clock that runs `speed` times as fast.

    `are_apart`: each laptop has a separate network, with a cable to the control host.
    """
    for name in ("control", "store", "train", "serve"):  # No package index answers from inside the networks.
        environment.ensure(name, ROOT, cache_folder.default_cache(), "cpu" if name == "train" else "", say)
    made = Hosts(folder / "hosts")
    made.open()
    try:
        with made.enter(), loopback(folder, listen=BRIDGE) as host:
            (folder / "said").mkdir()
            (folder / "work.py").write_text(WORK)
            (host.folder / "tmp").mkdir()
            (host.folder / "bin").mkdir()
            for name, text in (("crontab", CRONTAB), ("systemctl", "#!/bin/sh\nexit 1\n")):
                (host.folder / "bin" / name).write_text(text)
                (host.folder / "bin" / name).chmod(0o755)
            host.stop()
            own = f"PATH={host.folder / 'bin'}:{os.environ['PATH']} TMPDIR={host.folder / 'tmp'} OMP_NUM_THREADS=1"
            host.options = ["-o", f"{host.options[1]} {own}"]
            host.start()
            market = attach.start(folder / "market", speed=speed, idle_s=36000)
            places = HostPaths(host.folder / ".slipway" / "control")
            lead = attach.overlay(market.folder, market.about)
            lead |= {"SLIPWAY_STATE_FILE": str(places.state_file), "SLIPWAY_PODS": str(places.var / "pods")}
            (host.folder / "overlay.json").write_text(json.dumps(lead))
            found = ControlBed(folder, host, places, market, [])
            try:
                for number in range(laptops):
                    cable = made.add() if are_apart else None
                    prefix = ("ip", "netns", "exec", cable.network) if cable else ()
                    mine = folder / f"laptop{number}"
                    more = dict(QUIET)
                    if not cable:
                        more["SLIPWAY_REHEARSAL"] = str(mine)
                    if number:
                        more["SLIPWAY_CONTROL"] = found.laptop.host
                    laptop = laptop_of(mine, host, prefix, **more)
                    local = {"SLIPWAY_STATE_FILE": str(laptop.journal), "SLIPWAY_PODS": str(mine / "pods")}
                    local["SLIPWAY_POOLS"] = str(mine / "pools.yaml")
                    (mine / "overlay.json").write_text(json.dumps({**lead, **local}))
                    found.laptops.append(laptop)
                    found.cables += [cable] if cable else []
                yield found
            finally:
                found.forget_journal()
                host.stop()
                for _ in range(3):
                    for pid in found.processes(is_on_host=True) + found.processes("invoke"):
                        kill(pid)
                attach.stop(folder / "market")
    finally:
        made.close()


def wait(truth: Callable[[], Any], what: str, within_s: float, look: Callable[[], None] | None = None) -> Any:
    """Return the first true result of `truth`, and call `look` every 10 s meanwhile; raise Wrong after `within_s`."""
    deadline, looked_at = time.monotonic() + within_s, time.monotonic()
    while time.monotonic() < deadline:
        if found := truth():
            return found
        if look is not None and time.monotonic() > looked_at + 10:
            look()
            looked_at = time.monotonic()
        time.sleep(0.2)
    raise Wrong(f"not within {within_s:g} s: {what}")


def say(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", flush=True)


def chance_of(seed: int) -> random.Random:
    print(f"seed {seed}", flush=True)
    return random.Random(seed)
