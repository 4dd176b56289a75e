"""The installation of `bench.allowance`: a rehearsed market, an owner, and agents who hold the token of an allowance.

`Site.play` plays a sequence with the real processes (broker, supervisor, launches, MCP server) and records what the
market knows at the end. Processes of the installation use a wall clock of their own, which a sequence may set.
"""

import contextlib
import hashlib
import json
import os
import random
import signal
import socket
import subprocess
import sys
import sysconfig
import threading
import time
import venv
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from infra.agent.environments import cache_folder, environment
from infra.agent.job import Limits
from infra.ledger import service_rows
from infra.ledger.journal import Journal
from infra.ledger.op import Op
from infra.names import new_token
from infra.rehearsal import attach
from infra.selection import registry
from infra.settings import Settings
from packs.agents.records import client
from packs.agents.records.allowance import PREFIX
from scripts.project import debian
from tests.faults.rented import offers_file, order
from tests.faults.test_clocks import FAKETIME, SLEEPS, Clock
from tests.processes import command_line, environ, pids
from tests.world import ROOT, World

SPEED = 30.0
SHORT_S = 180  # ttl of an allowance that ends by time: a plan needs 120 s
QUIET_S = 300.0  # for the end of all machines after the end of an allowance
# Most machines bill and do no work, which needs no processor: such a machine costs as much.
IDLE = ({"trait": "hang", "count": None, "chance": 0.2}, {"trait": "no ssh", "count": None, "chance": 0.9})
VICTIMS = {
    "broker": (b"packs.agents.control.broker",),
    "supervisor": (b"scripts.runs.supervisor",),
    "launch": (b"invoke", b"launch", b"--yes"),
    "serve.up": (b"invoke", b"serve.up", b"--yes"),
    "server": (b"packs.agents.views.mcp_server",),
}
TRAINING = {"phase": "base", "profile": "tiny", "gpu": "L40S"}
MODEL = ("launch", "--phase", "base", "--profile", "tiny", "--steps", "2", "--provider", "local", "--yes")
SERVICE = {"kind": "serve", "model": "base", "gpu": "L40S"}
OTHER = "other"  # a second allowance; the agents have no right to its plans
# Work of the owner, on this machine; `inv` takes the name NAME-2 of an allowance for the beginning of these names.
JOB = "run: sleep 100000\n"
HERE = ("--provider", "local", "--detach", "--yes", "--rehearse")
FOREIGN_RUN, FOREIGN_SERVICE = "2-of-the-owner", "3-of-the-owner"
LOOK_S = 0.3  # between two counts of the live machines


def python_with_sleeps(folder: Path) -> str:
    """Return a Python with the packages of this Python, which sleeps by the true clock under a faked wall clock."""
    venv.create(folder, symlinks=True)
    site = next(folder.glob("lib/python*/site-packages"))
    (site / "set_clock.py").write_text(SLEEPS)
    (site / "set_clock.pth").write_text(f"{sysconfig.get_paths()['purelib']}\nimport set_clock\n")
    return str(folder / "bin" / "python")


class Site:
    """An installation with a market; `seed` of the market's faults."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.folder, self.seed = folder, seed
        self.clock, self.python_before = Clock(folder), sys.executable
        sys.executable = python_with_sleeps(folder / "venv")
        extra = {"SLIPWAY_BOOT_S": "300", "SLIPWAY_ENVIRONMENTS": str(cache_folder.default_cache())}
        self.world = World(folder, extra | (self.clock.environ if debian.find(FAKETIME) else {}))
        self.owner = World(folder, extra)  # of work on this machine: guards do not sleep under the clock of a sequence
        self.python = environment.ensure("mcp", ROOT, cache_folder.default_cache(), "", print)

    def __enter__(self) -> "Site":
        base = attach.worlds_folder(self.folder / "state" / "journal.db")
        words = ("--offers", str(offers_file(self.folder)), "--seed", str(self.seed))
        self.market = attach.start(base, *words, speed=SPEED, idle_s=36000)
        self.market.send_command("/faults", {"machines": IDLE})
        self.inside = {**self.world.environ, **attach.overlay(self.market.folder, self.market.about)}
        self.settings = Settings.load(ROOT, environ={**self.inside, attach.INSIDE: str(self.market.folder)})
        vendor = registry.provider(self.settings, "runpod")
        request, _ = order("runpod", "somebody-else")
        self.owner.inv(*MODEL, "--rehearse")
        self.foreign = vendor.create(
            request, vendor.offers(request)[0], new_token("somebody"), Limits(time_s=1e7)
        ).pod_id
        (self.folder / "sleep.yaml").write_text(JOB)
        (self.folder / "model").mkdir()
        (self.folder / "model" / "fake.json").write_text(json.dumps({"words": [" A"]}))
        said = self.world.json("allow", OTHER, "--spend", "1", "--ttl", "200h", "--gpu", "L40S", "--rehearse")
        self.other = said["token"]
        return self

    def __exit__(self, *_: object) -> None:
        self.world.run("down", "--all", "--rehearse")
        attach.stop(attach.worlds_folder(self.folder / "state" / "journal.db"))
        self.world.kill()
        sys.executable = self.python_before

    # A sequence.

    def play(self, one: Any, found: Any) -> None:
        """Play a sequence; write the outcome into `found`."""
        self.market.send_command("/faults", {"machines": IDLE})
        self.clock.set(0)
        before = {pod["id"] for pod in self.machines()}
        name = f"s{one.number}"
        ttl, until = f"{SHORT_S}s" if one.ending == "time" else "1h", time.monotonic() + SHORT_S
        said = self.world.json("allow", name, "--spend", str(one.usd), "--ttl", ttl, "--machines", str(one.machines),
                               "--gpu", "L40S", "--rehearse")  # fmt: skip
        files = self.market.folder / "journal-allowances"
        record = hashlib.sha256((files / f"{name}.json").read_bytes()).hexdigest()
        self.owner.inv("launch", str(self.folder / "sleep.yaml"), "-n", f"{name}-{FOREIGN_RUN}", *HERE)
        self.owner.inv("serve.up", f"{name}-{FOREIGN_SERVICE}", "--model", str(self.folder / "model"), *HERE)
        agents = Agents(self, files, name, said["token"])
        counting = Counting(self, name, one.machines)
        for move in one.moves:
            agents.move(move, found)
            time.sleep(move.pause_s)
        found.calls = agents.wait()
        self.market.send_command("/faults", {"machines": IDLE})
        if hashlib.sha256((files / f"{name}.json").read_bytes()).hexdigest() != record:
            found.outside += 1
            found.wrong.append("the record of the allowance has changed")
        if one.ending == "revoke":
            self.world.inv("allow", name, "--revoke", "--yes", "--rehearse")
        elif one.ending == "down":
            self.world.run("down", name, "--rehearse")  # refuses an allowance that has ended
        left = self.await_end(name, before, until if one.ending == "time" else 0.0)
        found.wrong += counting.end()
        found.outside += self.judge_foreign(name, found.wrong)
        self.judge(name, before, left, agents, found)

    def judge(self, name: str, before: set[str], left: list[str], agents: "Agents", found: Any) -> None:
        """Record the dollars and machines of a sequence, and each broken promise in words."""
        new = [pod for pod in self.machines() if pod["id"] not in before]
        found.spent_usd, found.machines = sum(pod["billed_micro_usd"] for pod in new) / 1e6, len(new)
        found.orphans = len(left)
        if left:
            found.wrong.append(f"machines bill {QUIET_S:g} s after the end of the allowance: {', '.join(left)}")
        if not any(pod["id"] == self.foreign and pod["micro_usd_per_hour"] for pod in self.machines()):
            found.outside += 1
            found.wrong.append("the machine of somebody else was ended")
        if found.spent_usd > found.usd:
            found.wrong.append(f"{found.spent_usd:.4f} of {found.usd:g} USD spent")
        found.outside += len(agents.wrong)
        found.wrong += agents.wrong
        done = self.world.run("allow", name, "--receipt", "--json", "--rehearse")
        said = json.loads(done.stdout)
        found.starts = sum(call["tool"] in ("launch", "serve_up") and "run" in call for call in said["calls"])
        if differences := [one for one in said["differences"] if "the broker was killed" not in one]:
            found.wrong.append(f"the receipt differs: {'; '.join(differences)}")

    def judge_foreign(self, name: str, wrong: list[str]) -> int:
        """End the owner's run and service of a sequence; return the number that had ended, and say so in `wrong`."""
        run, service = f"{name}-{FOREIGN_RUN}", f"{name}-{FOREIGN_SERVICE}"
        with self.journal() as journal:
            gone = [] if any(op.run == run for op in journal.ops(live=True)) else [run]
            row = service_rows.find(journal, service)
            gone += [] if row is not None and row.epoch == 1 else [service]
        wrong += [f"{one} of the owner was ended or changed" for one in gone]
        for command, one in (("down", run), ("serve.down", service)):
            if one not in gone:
                self.world.run(command, one, "--rehearse")
        return len(gone)

    def journal(self) -> Journal:
        return Journal.open(Path(self.settings.state_file), self.inside)

    def is_of(self, name: str, op: Op) -> bool:
        """Return whether a row belongs to an allowance."""
        return op.budget_name == f"{PREFIX}{name}" or op.service.startswith(f"{name}-") and op.rate > 0

    def await_end(self, name: str, before: set[str], ends: float) -> list[str]:
        """Return the new machines that still bill QUIET_S after the end, [] after the end of machines and broker.

        ends: time of the end of the allowance on the monotonic clock, 0 = now.
        """
        looked = time.monotonic()
        until = max(looked, ends) + QUIET_S
        while time.monotonic() < until:
            billing = [pod["id"] for pod in self.machines() if pod["id"] not in before and pod["micro_usd_per_hour"]]
            with self.journal() as journal:
                live = [op for op in journal.ops(live=True) if self.is_of(name, op)]
                is_served = f"{client.LEASE}{name}" in journal.leases.held_names()
            if not (billing or live or is_served):
                return []
            if time.monotonic() > looked + 20:  # as an owner who looks
                self.world.run("status", "--rehearse")
                looked = time.monotonic()
            time.sleep(0.5)
        return billing

    def machines(self) -> list[dict[str, Any]]:
        """Return every machine that the market ever had."""
        pods: list[dict[str, Any]] = self.market.truth()["pods"]
        return pods

    def kill(self, victim: str) -> bool:
        """Kill a process of this installation; return whether there was one."""
        ours = str(self.folder).encode()
        for pid in pids():
            line = command_line(pid)
            if all(word in line for word in VICTIMS[victim]) and ours in environ(pid):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
                    return True
        return False


class Counting:
    """Counts the live machines of an allowance in a thread; more than `most` without a request to end are a fault.

    A detached row does not count, because after a lost answer of the vendor the machine may not exist.
    """

    def __init__(self, site: Site, name: str, most: int) -> None:
        self.site, self.name, self.most = site, name, most
        self.worst, self.done = list[str](), threading.Event()
        self.thread = threading.Thread(target=self.count, daemon=True)
        self.thread.start()

    def count(self) -> None:
        while not self.done.wait(LOOK_S):
            with self.site.journal() as journal:
                rows = [op for op in journal.ops(live=True) if self.site.is_of(self.name, op)]
            live = [op.run for op in rows if not (op.detached or op.del_requested_at)]
            self.worst = max(self.worst, live, key=len)

    def end(self) -> list[str]:
        """Return the broken promise in words, [] for none."""
        self.done.set()
        self.thread.join()
        over = len(self.worst) > self.most
        return [f"{len(self.worst)} machines of {self.most} were live: {', '.join(self.worst)}"] if over else []


class Agents:
    """Two agents with one token: their calls overlap."""

    def __init__(self, site: Site, folder: Path, name: str, token: str) -> None:
        self.site, self.folder, self.name, self.token = site, folder, name, token
        self.pool, self.tasks = ThreadPoolExecutor(8), list[Future[Any]]()
        self.plans, self.runs, self.wrong, self.calls = ["plan-aaaaaaaaaaaa"], [f"{name}-2"], list[str](), 0
        self.chance = random.Random(name)
        self.lock = threading.Lock()

    def move(self, move: Any, found: Any) -> None:
        """Begin a move."""
        about = move.about
        if move.what == "start":
            self.later(self.start, about)
        elif move.what == "fuzz":
            self.later(self.ask, about["tool"], about["arguments"])
        elif move.what == "replay":
            for tool in ("launch", "serve_up"):
                self.later(self.launch, self.plans[-1], tool)
        elif move.what == "steal":
            self.later(self.launch, f"plan-{self.chance.randbytes(6).hex()}")
            self.later(self.refused, "status", {}, "allow-stolen")
            self.later(self.steal)
        elif move.what == "other":
            short = [f"{self.name}-{one}" for one in ("2", "3")]
            whole = [f"{self.name}-{one}" for one in (FOREIGN_RUN, FOREIGN_SERVICE)]
            run = self.chance.choice([*short, *short, *whole])
            for tool in ("logs", "down", "why", "results"):
                self.later(self.refused, tool, {"run": run}, self.token)
            self.later(self.refused, "serve_ask", {"run": run, "prompt": "x"}, self.token)
        elif move.what == "down":
            self.later(self.ask, "down", {"run": self.runs[-1]})
        elif move.what == "leave":
            self.later(self.leave)
        elif move.what == "look":
            self.later(self.site.world.run, "status", "--rehearse")
        elif move.what == "lost":
            rule = {"kind": about["kind"], "call": about["call"], "count": 2, "delay_s": 2.0}
            self.site.market.send_command("/faults", {"machines": IDLE, "requests": [rule]})
        elif move.what == "clock":
            self.site.clock.set(about["hours"] * 3600)
        elif move.what == "kill":
            found.kills += self.site.kill(about["victim"])

    def later(self, work: Any, *words: Any) -> None:
        self.tasks.append(self.pool.submit(work, *words))

    def wait(self) -> int:
        """Wait for all calls; return their number."""
        for task in self.tasks:
            task.result(timeout=900)
        self.pool.shutdown()
        return self.calls

    def ask(self, tool: str, arguments: Any, token: str = "") -> dict[str, Any]:
        with self.lock:
            self.calls += 1
        found = client.call(self.folder, self.name, token or self.token, tool, arguments)
        if len(json.dumps(found)) > 9000 or not found.keys() & {"result", "refused"}:
            self.wrong.append(f"{tool} answered {str(found)[:300]}")
        return found

    def refused(self, tool: str, arguments: Any, token: str) -> None:
        """Ask for something outside of the allowance."""
        if "result" in self.ask(tool, arguments, token):
            self.wrong.append(f"{tool} of {arguments} was not refused")

    def start(self, about: dict[str, Any]) -> None:
        """Plan, and start: perhaps twice at once, perhaps through the MCP server."""
        tool, fields = (
            ("serve_up", SERVICE) if about["is_service"] else ("launch", {**TRAINING, "steps": about["steps"]})
        )
        arguments = {**fields, "spend_usd": about["spend_usd"], "provider": about["provider"]}
        said = self.through_server("plan", arguments) if about["by_server"] else self.ask("plan", arguments)
        plan = said.get("result", said).get("plan_id", "")
        if not plan:
            return
        self.plans.append(plan)
        if about["is_twice"]:
            self.later(self.launch, plan, tool)
        self.launch(plan, tool)

    def launch(self, plan: str, tool: str = "launch") -> None:
        said = self.ask(tool, {"plan_id": plan})
        if "result" in said:
            run = said["result"].get("run", "")  # "": waits for another start, or had nothing to do
            if run and run in self.runs:
                self.wrong.append(f"{plan} has started {run} twice")
            self.runs += [run] if run else []

    def steal(self) -> None:
        """Start a plan of another allowance with our token, at both brokers."""
        said = client.call(self.folder, OTHER, self.site.other, "plan", {**TRAINING, "steps": 3, "spend_usd": 0.5})
        plan = said.get("result", {}).get("plan_id", "plan-bbbbbbbbbbbb")
        for tool in ("launch", "serve_up"):
            self.refused(tool, {"plan_id": plan}, self.token)
        if "result" in client.call(self.folder, OTHER, self.token, "launch", {"plan_id": plan}):
            self.wrong.append("a token of one allowance started a plan of another")

    def leave(self) -> None:
        """Send a launch, and close the connection at once."""
        call = {"token": self.token, "tool": "launch", "arguments": {"plan_id": self.plans[-1]}}
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as made:
            made.connect(client.place_file(self.folder, self.name).read_text().strip())
            made.sendall(json.dumps(call).encode() + b"\n")

    def through_server(self, tool: str, arguments: Any) -> dict[str, Any]:
        """Return the answer of a call by MCP over stdio; {} from a killed server."""
        hello = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "bench", "version": "1"}}
        messages: list[dict[str, Any]] = [
            {"id": 1, "method": "initialize", "params": hello},
            {"method": "notifications/initialized"},
            {"id": 2, "method": "tools/call", "params": {"name": tool, "arguments": arguments}},
        ]
        line = [str(self.site.python), "-m", "packs.agents.views.mcp_server", str(self.folder), self.name]
        variables = {**self.site.world.environ, "SLIPWAY_ALLOWANCE_TOKEN": self.token}
        pipe = subprocess.PIPE
        server = subprocess.Popen(line, cwd=ROOT, env=variables, stdin=pipe, stdout=pipe, stderr=sys.stderr)
        assert server.stdin is not None and server.stdout is not None
        with self.lock:
            self.calls += 1
        try:
            for message in messages:
                server.stdin.write(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")
                server.stdin.flush()
                while "id" in message and (said := json.loads(server.stdout.readline() or b'{"id": null}')):
                    if said.get("id") == message["id"]:
                        break
                    if said.get("id", 0) is None:
                        return {}
            found: dict[str, Any] = said["result"]["structuredContent"]
            return found
        except (OSError, ValueError):
            return {}
        finally:
            server.kill()
            server.wait()
