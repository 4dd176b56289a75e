"""An installation for tests of services, with scripted engines instead of a model."""

import asyncio
import json
import os
import signal
import threading
import urllib.error
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp

from infra.agent.process import Identity, find, is_alive, send
from infra.ledger import service_rows
from infra.ledger.journal import Journal
from infra.ledger.leases import SUPERVISOR
from serve.load import LoadTest, RequestTiming, ask
from serve.policy.replica_states import State
from serve.policy.service_state import ServiceRecord, parse_observed
from serve.processes import gateway_orders
from serve.processes.service_paths import ServicePaths
from tests.processes import command_line
from tests.world import World, until

GUARD_S = 180.0  # Guard against a hanging test; no measurement.
PROBE = {"path": "/health", "initial_delay_seconds": 60, "timeout_seconds": 10, "endpoint_probe_interval_seconds": 1}


@dataclass
class Installation:
    """An installation with services, and the answers of the services."""

    world: World
    folder: Path

    def model(self, name: str, **script) -> Path:
        """Write a model for the scripted engine, which repeats the model's name."""
        folder = self.folder / name
        folder.mkdir(exist_ok=True)
        (folder / "fake.json").write_text(json.dumps({"words": [f" {name}"], **script}))
        return folder

    def config(self, replicas: int = 2, slipway=None, policy=None, resources=None, tls=None, **probe) -> str:
        section = {"replica_policy": policy} if policy else {"replicas": replicas}
        section |= {"tls": vars(tls)} if tls else {}
        file = {
            "service": {"readiness_probe": {**PROBE, **probe}, **section},
            "slipway": slipway or {},
            "resources": resources or {},
        }
        path = self.folder / "service.yaml"
        path.write_text(json.dumps(file))  # JSON is also YAML.
        return str(path)

    def up(self, name: str, model: Path, *words: str, code: int = 0) -> dict:
        line = ("serve.up", name, "--model", str(model), "--provider", "local", *words)
        return self.world.json(*line, code=code)

    def status(self, name: str) -> dict:
        return self.world.json("serve.status", name)

    def journal(self) -> Journal:
        return Journal.open(self.world.environ["SLIPWAY_STATE_FILE"], {**os.environ, **self.world.environ})

    def seen(self, name: str) -> ServiceRecord:
        with self.journal() as journal:
            row = service_rows.find(journal, name)
        assert row is not None
        return parse_observed(row.seen)

    def engines(self, name: str) -> dict[str, int]:
        """Return the pid of each replica's engine, by replica name."""
        return {run: one.pid for run, one in self.processes(name, b"serve.fake").items()}

    def processes(self, name: str, word: bytes) -> dict[str, Identity]:
        """Return, by replica, the process with `word` in the command line."""
        with self.journal() as journal:
            rows = [op for op in journal.ops(live=True) if op.service == name]
        found = {}
        for op in rows:
            for one in find(op.token):
                if word in command_line(one.pid):
                    found[op.run] = one
        return found

    def workers(self, name: str) -> dict[str, Identity]:
        """Return, by replica, the worker process that ignores SIGTERM, in a separate session."""
        return self.processes(name, b"signal.SIG_IGN")

    def ended(self, name: str, number: int) -> bool:
        """Return whether a replica is recorded as gone or no longer recorded."""
        return all(one.ended_at for one in self.seen(name).members if one.number == number)

    def gateway(self, name: str) -> Identity | None:
        """Return the live gateway."""
        return gateway_orders.living(ServicePaths(self.folder / "services" / name))

    def kill_gateway(self, name: str) -> None:
        gateway = self.gateway(name)
        assert gateway is not None and send(gateway, signal.SIGKILL)
        until(lambda: not is_alive(gateway), "its end")

    def kill_supervisor(self) -> None:
        """Kill the supervisor, so that only a command for the service starts a controller again."""
        with self.journal() as journal:
            supervisor = journal.leases.holder(SUPERVISOR)
        assert supervisor is not None and send(supervisor, signal.SIGKILL)
        until(lambda: not is_alive(supervisor), "its end")

    def controller(self, name: str) -> int:
        with self.journal() as journal:
            holder = journal.leases.holder(f"serve:{name}")
        assert holder is not None
        return holder.pid


def say(url: str, **more) -> tuple[str, str]:
    """Return the answer to a chat, and the answering replica."""
    said = {"model": "demo", "messages": [{"role": "user", "content": "Who are you?"}], "max_tokens": 3, **more}
    request = urllib.request.Request(f"{url}/v1/chat/completions", json.dumps(said).encode())
    request.add_header("Content-Type", "application/json")
    try:
        with urllib.request.urlopen(request, timeout=GUARD_S) as reply:
            text = json.load(reply)["choices"][0]["message"]["content"]
            return text, reply.headers["x-slipway-replica"]
    except urllib.error.HTTPError as error:
        error.msg = f"{error.msg}: {error.read()[:500]!r}"
        raise


@dataclass
class Traffic:
    """Streaming requests by several clients at once, in sequence, until the block ends."""

    load: LoadTest
    clients: int = 4
    heard: list[RequestTiming] = field(default_factory=list)

    def __enter__(self) -> "Traffic":
        self._over = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()))
        self._thread.start()
        self.await_more(8)
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join(GUARD_S)
        assert not self._thread.is_alive()

    def await_more(self, count: int) -> None:
        wanted = len(self.heard) + count
        until(lambda: len(self.heard) >= wanted, f"{count} more answers", GUARD_S)

    def failures(self) -> list[RequestTiming]:
        return [one for one in self.heard if one.failure]

    async def _run(self) -> None:
        async with aiohttp.ClientSession() as session:
            await asyncio.gather(*(self._ask(session) for _ in range(self.clients)))

    async def _ask(self, session: aiohttp.ClientSession) -> None:
        while not self._over.is_set():
            self.heard.append(await ask(session, self.load))


def serving(installation) -> set[int]:
    """Return the numbers of the replicas in routing, as the controller recorded them."""
    seen = installation.seen("demo")
    return {one.number for one in seen.members if one.number in seen.serving and one.state is State.READY}
