"""A complete rehearsal: the market, the servers of the vendors, the pods, and the thread that advances time."""

import json
import os
import secrets
import shutil
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any

from infra.agent import process
from infra.agent.job import write_durably
from infra.errors import SlipwayError, UsageError
from infra.rehearsal import pods, web, world_files
from infra.rehearsal.attach import overlay
from infra.rehearsal.clock import Clock
from infra.rehearsal.control import Control
from infra.rehearsal.faults import Faults, Plan
from infra.rehearsal.market import Market
from infra.rehearsal.offers import digest, micro_usd
from infra.rehearsal.records import Machine, Offer, RunnerInstruction
from infra.rehearsal.vendors.lium import Lium
from infra.rehearsal.vendors.runpod_graphql import BothApis
from infra.rehearsal.vendors.shadeform import Shadeform
from infra.rehearsal.world_files import ABOUT
from infra.settings import OVERLAY
from store import local_files

TICK_S = 0.05
LOOK_TICKS = 5  # ticks between two checks of the disks
VENDORS: dict[str, Callable[..., web.Api]] = {"shadeform": Shadeform, "runpod": BothApis, "lium": Lium}
READERS = ("runpod", "lium")  # vendors with read-only keys
PATHS = {"shadeform": "/v1", "runpod": "", "lium": "/api"}


class World:
    """A rehearsal world: `with World(folder, offers, plan) as world: world.about()`.

    A folder holds at most one world. The constructor first ends the leftovers of a killed world. Raises UsageError when
    a world still runs in the folder.
    """

    def __init__(self, folder: Path, offers: list[Offer], plan: Plan, *, speed: float = 60.0, seed: int = 0) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        held = local_files.acquire_lock(folder / "lock")  # held for the lifetime of the world
        if held is None:
            raise UsageError(f"a rehearsal already runs in {folder}")
        self._lock = held
        world_files.end_leftovers(folder / "pods")
        self.clock = Clock(speed)
        self._offers = digest(offers)
        self.market = Market(offers, seed=seed, now=self.clock.now())
        began_at = self.market.now
        self.market.price_changes = [(began_at + one.at_s, one.offer, one.factor) for one in plan.prices]
        self.market.balance_micro_usd = {vendor: micro_usd(str(usd)) for vendor, usd in plan.balance_usd.items()}
        if plan.lium_key_budget_usd is not None:
            self.market.budget_micro_usd["lium"] = micro_usd(str(plan.lium_key_budget_usd))
        self.hub = web.Hub(Faults(plan, seed), self.clock.now, self._step)
        self._pods: dict[tuple[str, int], pods.Pod] = {}
        self._workers = ThreadPoolExecutor(16, "pods")
        self._keys = {name: secrets.token_hex(16) for name in VENDORS}
        control = Control(self.market, self.hub, self.clock, self._counts, seed)
        self._read_keys = {name: secrets.token_hex(16) for name in READERS}
        self._end_key = secrets.token_hex(16)
        self._apis: dict[str, web.Api] = {}
        for name, make in VENDORS.items():
            keys = (self._keys[name], *([self._read_keys[name]] if name in READERS else []))
            keys += (self._end_key,) if name == "lium" else ()
            self._apis[name] = make(self.market, self.hub, *keys)
        self._servers = {name: web.Server(api, self.hub) for name, api in {**self._apis, "truth": control}.items()}
        self._threads = [web.serve(server) for server in self._servers.values()]
        self._ticker = threading.Thread(target=self._tick, daemon=True)
        self._ticker.start()
        about = self.client_config()
        write_durably(folder / OVERLAY, json.dumps(overlay(folder, about)), 0o600)
        write_durably(folder / ABOUT, json.dumps(about), 0o600)

    def client_config(self) -> dict[str, Any]:
        """Return the addresses and keys for clients."""
        urls = {name: f"http://127.0.0.1:{server.port}" for name, server in self._servers.items()}
        return {
            "process": asdict(process.current_identity()),
            "state": str(self.folder),
            "speed": self.clock.speed,
            "offers": self._offers,
            "truth": urls["truth"],
            **{name: {"url": urls[name] + PATHS[name], "key": key} for name, key in self._keys.items()},
            "read_keys": self._read_keys,
            "end_keys": {"lium": self._end_key},
        }

    def idle_s(self) -> float:
        """Return the seconds of real time since the last request, or since the last check with a live machine."""
        with self.hub.lock:
            if any(machine.state in ("booting", "running") for machine in self.market.machines.values()):
                self.hub.asked_at = time.monotonic()
            return time.monotonic() - self.hub.asked_at

    def close(self) -> None:
        """Close the world, and return when all processes and threads have ended."""
        self.hub.is_closing.set()
        for server in self._servers.values():
            server.shutdown()
            server.server_close()
        for thread in [*self._threads, self._ticker]:
            thread.join()
        list(self._workers.map(pods.Pod.end, self._pods.values()))
        self._workers.shutdown()
        shutil.rmtree(self.folder / "pods", ignore_errors=True)
        (self.folder / ABOUT).unlink(missing_ok=True)
        os.close(self._lock)

    def __enter__(self) -> "World":
        return self

    def __exit__(self, *about: object) -> None:
        self.close()

    def _tick(self) -> None:
        ticks = 0
        while not self.hub.is_closing.wait(TICK_S):
            with self.hub.lock:
                self._step()
            ticks += 1
            if ticks % LOOK_TICKS == 0:
                self._preempt_at_work()
                self._change_host_keys()
                self.hub.looks += 1

    def _step(self) -> None:
        """Apply all due events. The caller holds the lock."""
        if self.hub.is_closing.is_set():
            return
        self.market.advance(self.clock.now())
        effects, self.market.effects = self.market.effects, []
        for effect in effects:
            machine = self.market.machines[effect.machine_id]
            if effect.action == "start":
                self._pods[effect.machine_id, effect.boot] = self._new_pod(machine, effect.boot)
                self._workers.submit(self._start, effect)
            else:
                self._workers.submit(self._end, effect)

    def _new_pod(self, machine: Machine, boot: int) -> pods.Pod:
        row = machine.offer.about
        per_row = machine.order.quantity * machine.offer.num_gpus
        hardware = pods.Hardware(
            gpu=row.chip,
            num_gpus=per_row - machine.has("fewer gpus"),
            vram_gb=row.vram_gb,
            old_driver=machine.has("old driver"),
            slow_disk=machine.has("slow disk"),
            is_idle=machine.has("idle gpus"),
            is_sliced=machine.has("slice"),
        )
        folder = self.folder / "pods" / f"{machine.machine_id}-{boot}"
        order = machine.order
        has_sshd = order.has_sshd and not machine.has("no ssh")
        environ = self._apis[machine.offer.vendor].environ(machine)
        volume = self.folder / "volumes" / machine.offer.vendor / order.volume if order.volume else None
        keys = () if machine.has("no key") else order.public_keys
        scripts = pods.Scripts(after_boot=order.script, command=self._command(machine))
        return pods.Pod(folder, hardware, keys, scripts, has_sshd, environ, volume)

    def _command(self, machine: Machine) -> str:
        """Return the start command of a container, including the faults of the timer inside the command."""
        late_s = sum(fate.after_s for fate in machine.fates if fate.trait == "late timer")
        command = "" if machine.has("no timer") else machine.order.command
        return f"sleep {late_s / self.clock.speed}; {command}" if command and late_s else command

    def _start(self, effect: RunnerInstruction) -> None:
        pod = self._pods[effect.machine_id, effect.boot]
        try:
            address = pod.start()
        except (SlipwayError, OSError, subprocess.SubprocessError) as error:
            with self.hub.lock:
                self.hub.problems.append(f"{effect.machine_id}: {error}")
                self.market.record_failed_start(effect.machine_id, effect.boot)
            return
        if address:
            with self.hub.lock:
                self.market.attach(effect.machine_id, effect.boot, *address)

    def _end(self, effect: RunnerInstruction) -> None:
        pod = self._pods.get((effect.machine_id, effect.boot))
        if pod is not None:
            pod.end(effect.grace_s / self.clock.speed)
        with self.hub.lock:
            self.market.detach(effect.machine_id, effect.boot)

    def _preempt_at_work(self) -> None:
        """Preempt machines with a checkpoint in the store, as often as the plan requires."""
        with self.hub.lock:
            if not self.hub.faults.preemptions_left:
                return
            running = [one for one in self.market.machines.values() if one.state == "running" and one.address]
        for machine in running:
            if not self._pods[machine.machine_id, machine.boot].has_stored_checkpoint():
                continue
            with self.hub.lock:
                if machine.state == "running" and self.hub.faults.take_preemption(machine.offer.vendor):
                    self.market.preempt(machine.machine_id)

    def _change_host_keys(self) -> None:
        with self.hub.lock:
            odd = [one for one in self.market.machines.values() if one.state == "running" and one.has("new host key")]
            found = [self._pods[one.machine_id, one.boot] for one in odd if one.address]
        for pod in found:
            pod.change_host_key()

    def _counts(self) -> Counter[str]:
        """Return the true number of processes per machine, from a single scan while the shared lock is held."""
        pods_now = list(self._pods.items())
        found = process.find_each(pod.token for _, pod in pods_now)
        counts: Counter[str] = Counter()
        for (machine_id, _), pod in pods_now:
            counts[machine_id] += len(found[pod.token])
        return counts
