"""A control host on a real sshd with a separate home, and laptops with all commands on the control host."""

import contextlib
import fcntl
import json
import os
import pty
import select
import shutil
import signal
import struct
import subprocess
import sys
import termios
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from infra.agent.environments import cache_folder, environment
from infra.journal_file import JournalMoved
from infra.ledger.journal import Journal
from infra.rehearsal import attach
from packs.control_host.control.host_paths import HostPaths
from tests.end_to_end.test_street_nodes import share
from tests.hosts import hosts as hosts
from tests.hosts import sshd as sshd
from tests.processes import environ, in_network, pids
from tests.world import ROOT, World, until
from trainer.fingerprints import CheckoutCode

COLUMNS = 117
ENDED = ("succeeded", "failed", "limit")  # For good.
pytestmark = [
    pytest.mark.process,
    pytest.mark.needs("sshd", "ssh-keygen"),
    pytest.mark.timeout(300),
    pytest.mark.nightly,
]


@dataclass(frozen=True)
class Laptop(World):
    """An installation that knows one machine, `host`; `prefix` runs a command in the laptop's network."""

    host: str = ""
    prefix: tuple[str, ...] = ()

    @property
    def journal(self):
        return self.folder / "state" / "journal.db"

    def begin(self, *words):
        """Start a command like `World.begin`, but in the network namespace of this laptop."""
        line = [*self.prefix, sys.executable, "-m", "invoke", *words]
        return subprocess.Popen(
            line,
            cwd=ROOT,
            env=self.environ,
            text=True,
            start_new_session=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )


def laptop_of(folder, sshd, prefix=(), **more):
    folder.mkdir(exist_ok=True)
    python = getattr(sys, "_base_executable", sys.executable)
    address = sshd.address
    box = {"ip": address.host, "port": address.port, "identity_file": address.key, "python": python}
    (folder / "pools.yaml").write_text(json.dumps({"box": {"user": address.user, "hosts": [box]}}))
    (folder / "home").mkdir()
    own = {"SLIPWAY_POOLS": str(folder / "pools.yaml"), "HOME": str(folder / "home")}
    own["SLIPWAY_ENVIRONMENTS"] = str(cache_folder.default_cache())
    port = "" if address.port == 22 else f":{address.port}"
    return Laptop(folder, {**own, **more}, host=f"{address.host}{port}", prefix=prefix)


@pytest.fixture
def laptop(tmp_path, sshd):
    one = laptop_of(tmp_path / "laptop", sshd)
    yield one
    end_all(sshd)


def places_of(sshd):
    return HostPaths(sshd.folder / ".slipway" / "control")


def end_all(sshd):
    """End every process that works for the control host."""
    mine = f"HOME={sshd.folder}".encode()
    kill(pid for pid in pids() if mine in environ(pid).split(b"\0"))


def end_network(host):
    """End every process in the network of a host, including processes of ended sessions."""
    kill(in_network(host.network))


def kill(victims):
    for pid in victims:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def on_terminal(world, *words, press, within_s=180.0):
    """Return the output of a command on a terminal, and its exit code; press a key at the first match of `press`."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 31, COLUMNS, 0, 0))
    before = termios.tcgetattr(theirs)

    def begin():
        os.setsid()
        fcntl.ioctl(theirs, termios.TIOCSCTTY, 0)

    line = [sys.executable, "-m", "invoke", *words]
    streams = dict.fromkeys(("stdin", "stdout", "stderr"), theirs)
    environ = {name: value for name, value in world.environ.items() if name not in ("COLUMNS", "LINES")}
    process = subprocess.Popen(line, cwd=ROOT, env={**environ, "TERM": "xterm"}, preexec_fn=begin, **streams)
    shown, (pattern, key), deadline = b"", press, time.monotonic() + within_s
    while process.poll() is None:
        assert time.monotonic() < deadline, shown[-2000:]
        if select.select([ours], [], [], 0.1)[0]:
            shown += os.read(ours, 1 << 16)
        if key and pattern in shown:
            os.write(ours, key)
            key = b""
    assert termios.tcgetattr(theirs) == before
    os.close(theirs)
    os.close(ours)
    return shown, process.returncode


def test_unreachable_control_host_changes_no_state_and_a_missing_file_is_named(laptop, sshd):
    sshd.stop()
    error = laptop.json("control.up", laptop.host, code=1)["error"]
    assert (
        f"{laptop.host} cannot be reached: " in error
        and f"the journal was not moved. Test the connection: ssh {laptop.host}" in error
    )
    assert laptop.json("down", "--all") == {"ended": []}
    sshd.start()
    laptop.json("control.up", laptop.host)
    error = laptop.json("control.pull", "var/reports/otter", code=2)["error"]
    assert error == f"{places_of(sshd).var}/reports/otter does not exist on the control host"
    assert not list(places_of(sshd).var.glob(".*.tgz"))
    sshd.stop()
    assert "the host is lost for good: inv control.down --lost" in laptop.json("control.down", code=1)["error"]
    process = laptop.run("status")
    said = process.stderr
    assert process.returncode == 1 and f"inv status: the control host {laptop.host} cannot be reached" in said, said
    sshd.start()


def test_commands_run_on_the_control_host_and_all_files_come_home(laptop, sshd, tmp_path):
    places = places_of(sshd)
    up = laptop.json("control.up", laptop.host)
    with pytest.raises(JournalMoved, match=laptop.host), Journal.open(laptop.journal, laptop.environ):
        pass
    assert [one.stat().st_mode & 0o777 for one in (places.env, places.state_file)] == [0o600, 0o600]
    # The run is started, followed and observed on the control host; exit code and JSON are as on one machine.
    (ROOT / "var").mkdir(exist_ok=True)
    done = laptop.json("launch", "--phase", "base", "--provider", "local", "--yes")
    assert (done["state"], done["ran"][-1]) == ("succeeded", "base")
    assert (places.var / "pods" / done["run"] / "state" / "verdict.json").exists()
    assert not (laptop.folder / "pods").exists()
    # The copy of the checkout has no repository, and the run records the commit of the laptop's.
    receipt = json.loads((places.homes / done["run"] / "run.json").read_text())
    codes = [one["config"]["making"]["code"] for one in receipt["job"]["steps"] if "making" in one["config"]]
    assert {receipt["commit"], *(one["commit"] for one in codes)} == {CheckoutCode(ROOT).commit} != {""}
    assert [row["state"] for row in laptop.json("status")] == ["succeeded"]
    assert "'nowhere' not found; available" in stderr_of(laptop, "logs", "nowhere")
    assert stderr_of(laptop, "nosuch", code=2)
    # A second laptop uses the control host with the same words, and keeps a separate journal.
    other = laptop_of(tmp_path / "other", sshd, SLIPWAY_CONTROL=laptop.host)
    assert [row["run"] for row in other.json("status")] == [done["run"]]
    assert not other.journal.exists()
    assert "another installation" in stderr_of(other, "control.up", laptop.host)
    # A terminal behaves as on one machine: width, keys, and restored modes.
    shown, code = on_terminal(laptop, "status", "--watch", press=(b"Ctrl-C ends", b"\x03"))
    assert code == 130 and b"\x1b[?1049h" in shown
    assert max(map(len, shown.split(b"\r\n"))) >= COLUMNS
    # Without a connection the last known state is shown.
    sshd.stop()
    said = stderr_of(laptop, "status", code=1)
    assert "last seen alive" in said and "control.down --lost" in said
    assert "a different machine" not in said
    sshd.start()
    assert laptop.json("control.down")["host"] == laptop.host
    assert not places.env.exists() and not places.about.exists()
    with Journal.open(laptop.journal, laptop.environ) as journal:
        assert journal.installation == up["installation"]
        assert journal.runs() == [done["run"]]
    assert "not a control host" in stderr_of(other, "status", code=2)
    assert laptop.json("control.up", laptop.host)["installation"] == up["installation"]  # And there again.


def test_links_are_pulled_as_links_and_local_files_stay_unchanged(laptop, sshd, tmp_path):
    laptop.json("control.up", laptop.host)
    own = tmp_path / "own"  # On the control host and on the laptop.
    own.mkdir()
    (own / "thesis.txt").write_text("mine")
    before = (own / "thesis.txt").stat()
    otter = places_of(sshd).var / "reports" / "otter"
    (otter / "3").mkdir(parents=True)
    (otter / "3" / "page.html").write_text("page")
    (otter / "3" / "page.html").chmod(0o4777)
    for name, target in (
        ("latest", "3"),
        ("mine", own),
        ("above", os.path.relpath(own, otter)),
        ("key", own / "thesis.txt"),
    ):
        (otter / name).symlink_to(target)
    here = tmp_path / "here"
    for _ in range(2):  # The second time every file is here already.
        process = laptop.run("control.pull", "var/reports/otter", "--to", str(here), "--json")
        out, err = process.stdout, process.stderr
        assert process.returncode == 0 and json.loads(out) == {"path": str(here)}, err
        assert sorted(one.name for one in here.iterdir()) == ["3", "latest"]
        assert os.readlink(here / "latest") == "3" and (here / "latest" / "page.html").read_text() == "page"
        assert (here / "3" / "page.html").stat().st_mode & 0o7777 == 0o755
        assert f"left out: otter/mine, a link to {own}: the target is an absolute path" in err
        assert "left out: otter/above" in err and "left out: otter/key" in err
    after = (own / "thesis.txt").stat()
    assert [one.name for one in own.iterdir()] == ["thesis.txt"]
    assert (after.st_ino, after.st_mode, after.st_ctime_ns) == (before.st_ino, before.st_mode, before.st_ctime_ns)
    assert sorted(one.name for one in otter.iterdir()) == ["3", "above", "key", "latest", "mine"]


def stderr_of(world, *words, code=2):
    """Return the stderr of a command that must exit with `code`."""
    process = world.run(*words)
    err = process.stderr
    assert process.returncode == code and "Traceback" not in err, (process.returncode, err)
    return err


# Rented machines: the market is a separate world, which moves with neither laptop nor control host.

CRONTAB = """#!/bin/sh
[ "$1" = -l ] || exec cat > "$HOME/cron"
cat "$HOME/cron" 2>/dev/null || { echo "no crontab for you" >&2; exit 1; }
"""
SPOT = ("--provider", "runpod", "--use-spot", "--gpu", "H100", "--num-gpus", "1", "--yes")


@dataclass(frozen=True)
class Renting:
    """A laptop and a control host that rent on the same market."""

    laptop: Laptop
    places: HostPaths
    home: Path  # Of the control host.
    world: attach.Running

    def up(self):
        """Move the installation; from then on the control host uses the market, too."""
        told = self.laptop.json("control.up", self.laptop.host)
        with self.places.env.open("a") as file:
            file.write(f"SLIPWAY_REHEARSAL='{self.home}'\n")
        return told

    def row(self, run):
        return next((one for one in self.laptop.json("status") if one["run"] == run), {})


@pytest.fixture
def renting(request, tmp_path, sshd):
    """Yield a control host with cron and without a user systemd. The parameter is the speed of the market's clock."""
    places = places_of(sshd)
    (sshd.folder / "bin").mkdir()
    for name, text in (("crontab", CRONTAB), ("systemctl", "#!/bin/sh\nexit 1\n")):
        (sshd.folder / "bin" / name).write_text(text)
        (sshd.folder / "bin" / name).chmod(0o755)
    sshd.stop()
    sshd.options = ["-o", f"{sshd.options[1]} PATH={sshd.folder / 'bin'}:{os.environ['PATH']} OMP_NUM_THREADS=1"]
    sshd.start()
    world = attach.start(tmp_path / "market", speed=getattr(request, "param", 60))
    laptop = laptop_of(tmp_path / "laptop", sshd, SLIPWAY_REHEARSAL=str(tmp_path / "laptop"))
    lead = attach.overlay(world.folder, world.about)
    for folder, state, pods in (
        (laptop.folder, laptop.journal, laptop.folder / "pods"),
        (sshd.folder, places.state_file, places.var / "pods"),
    ):
        own = {"SLIPWAY_STATE_FILE": str(state), "SLIPWAY_PODS": str(pods)}
        own["SLIPWAY_POOLS"] = str(laptop.folder / "pools.yaml")
        (folder / "overlay.json").write_text(json.dumps({**lead, **own}))
    yield Renting(laptop, places, sshd.folder, world)
    end_all(sshd)
    attach.stop(tmp_path / "market")


@pytest.fixture(scope="session")
def control_environment():
    """Create the environment of a control host's commands before a test enters networks without a route out."""
    environment.ensure("control", ROOT, cache_folder.default_cache(), "", print)


def billing(world):
    return [pod["id"] for pod in world.truth()["pods"] if pod["ended_at"] is None]


@pytest.mark.timeout(600)
def test_cron_restarts_the_work_after_a_boot_and_a_preempted_run_succeeds(renting, sshd):
    assert renting.up()["boot"] == "cron"
    run = renting.laptop.json("launch", *SPOT, "--phase", "base", "--detach")["run"]
    until(lambda: renting.row(run).get("step") == "base", "work", within_s=300)
    end_all(sshd)
    (pod,) = billing(renting.world)
    renting.world.send_command("/preempt", {"id": pod})
    sshd.start()
    (line,) = (renting.home / "cron").read_text().splitlines()
    assert line.startswith("@reboot ")
    environ = {"HOME": str(renting.home), "PATH": os.environ["PATH"], "SHELL": "/bin/sh"}
    subprocess.run(["sh", "-c", line.removeprefix("@reboot ")], env=environ, cwd="/", check=True, timeout=60)
    assert "the supervisor manages this lease" in renting.places.log.read_text()
    until(lambda: renting.row(run).get("state") in ENDED, "the end of the run", within_s=500)
    assert (renting.row(run)["state"], renting.row(run)["recoveries"]) == ("succeeded", 1)
    assert renting.laptop.json("audit")["machines"] == []


@pytest.mark.timeout(600)
def test_lost_control_host_costs_no_pod_and_its_runs_continue(renting, sshd, tmp_path):
    renting.up()
    first = renting.laptop.json("launch", *SPOT, "--phase", "base", "--detach")["run"]
    (copy,) = (renting.laptop.folder / "state").glob("journal-control/*/copy")
    shutil.copy(copy, tmp_path / "copy")
    second = renting.laptop.json("launch", *SPOT, "--phase", "base", "--profile", "smoke", "--detach")["run"]
    shutil.copy(tmp_path / "copy", copy)  # As if the copy with the second run had been lost.
    end_all(sshd)
    shutil.rmtree(renting.places.root)
    sshd.start()
    assert "control.down --lost" in stderr_of(renting.laptop, "control.down", code=1)
    renting.laptop.json("control.down", "--lost", "--yes")
    rows = {row["run"]: row["state"] for row in renting.laptop.json("status")}
    # No row described the second run: the run is found, and kept. The first run may have ended by now.
    assert rows.pop(second) == "lost" and rows in ({first: "running"}, {first: "succeeded"})
    assert billing(renting.world)
    assert renting.laptop.json("down", second)["ended"] == [second]
    assert renting.laptop.json("keep", first)["state"] in ("succeeded", "over")
    assert renting.row(first)["state"] == "succeeded"
    assert renting.laptop.json("audit")["machines"] == []


@pytest.mark.timeout(900)
def test_run_continues_without_its_laptop_after_the_hand_over(request, tmp_path, control_environment, hosts):
    box, cable = hosts(2)
    cache = cache_folder.default_cache()
    share(box, cache)
    request.addfinalizer(lambda: end_network(box))
    # The market's machines use the Python of the existing environments.
    box.options = [f"-oSetEnv=SLIPWAY_ENVIRONMENTS={cache} OMP_NUM_THREADS=1 PATH={sys.base_prefix}/bin:{os.defpath}"]
    box.stop()
    box.start()
    laptop = laptop_of(tmp_path / "laptop", box, prefix=("ip", "netns", "exec", cable.network))
    laptop.json("control.up", laptop.host)
    begun = laptop.begin("rehearse", *SPOT, "--phase", "sft", "--preempt", "2")
    said = ""
    while "\nrun " not in said:
        line = begun.stderr.readline()
        assert line, said
        said += line
    cable.cut()
    # A laptop that was absent before observes the rest.
    other = laptop_of(tmp_path / "other", box, SLIPWAY_CONTROL=laptop.host)
    (row,) = until(
        lambda: [one for one in other.json("status", "--rehearse") if one["state"] in ENDED], "its end", within_s=600
    )
    assert (row["state"], row["recoveries"]) == ("succeeded", 2)
    assert other.json("audit", "--rehearse")["machines"] == []
    _, said = begun.communicate(timeout=60)
    assert begun.returncode == 1 and "processes started on the host continue" in said


@pytest.mark.pack("jobs")
def test_logs_of_ended_runs_move_to_the_control_host_and_back(laptop, sshd):
    def ran(*words):
        return laptop.json("launch", "--yes", *words)["run"]

    before = {kind: ran("--provider", kind, "--cmd", f"echo on-{kind}-before") for kind in ("local", "ssh")}
    laptop.json("control.up", laptop.host)
    (laptop.folder / "pods").rename(laptop.folder / "away")  # The path is absent on the host.
    for kind, run in before.items():
        assert f"on-{kind}-before" in laptop.inv("logs", run)
        process = laptop.run("logs", run, "--follow")
        out, err = process.stdout, process.stderr
        assert process.returncode == 0 and f"on-{kind}-before" in out and f"{run} succeeded" in err, err
    there = ran("--provider", "local", "--cmd", "echo on-the-host")
    about = places_of(sshd).about.read_bytes()
    laptop.json("control.down")
    shutil.rmtree(places_of(sshd).root)
    told = ((before["local"], "on-local-before"), (before["ssh"], "on-ssh-before"), (there, "on-the-host"))
    for run, said in told:
        assert said in laptop.inv("logs", run)
    places_of(sshd).about.parent.mkdir(parents=True)
    places_of(sshd).about.write_bytes(about)  # As on a host that was declared lost, and returns.
    laptop.json("control.up", laptop.host)
    for run, said in told:
        assert said in laptop.inv("logs", run)
