"""Scripted engines as processes, and a gateway in the test's own event loop."""

import asyncio
import contextlib
import json
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp

from serve.gateway.access import AccessLog
from serve.gateway.http.limits import GatewayLimits
from serve.gateway.keys import Keys
from serve.gateway.routing import Target
from serve.gateway.server import Gateway

ROOT = Path(__file__).parent.parent.parent
GUARD_S = 60  # Guard against a hanging test; no measurement.
CHAT = "/v1/chat/completions"
ASK = b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
HEALTH = b"GET /health HTTP/1.1\r\nHost: localhost\r\n"


@dataclass
class Engine:
    """A fake engine with a fixed port."""

    process: subprocess.Popen[str]
    port: int
    first: dict[str, Any] = field(default_factory=dict)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def replica(self, name: str, **more: Any) -> Target:
        return Target(replica_id=name, url=self.url, **more)

    def script(self, **changes: Any) -> None:
        self._ask("/fake/script", changes)

    def seen(self) -> dict[str, Any]:
        return self._ask("/fake/seen", {})

    def let_go(self) -> None:
        """Release everything that `held` holds."""
        self.script(held=False)

    def calm(self) -> None:
        """Restore the initial script."""
        self.script(**self.first)

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def stop(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(GUARD_S)
        assert self.process.stdout is not None
        self.process.stdout.close()

    def _ask(self, path: str, said: dict[str, Any]) -> Any:
        request = urllib.request.Request(self.url + path, json.dumps(said).encode(), method="POST")
        with urllib.request.urlopen(request, timeout=GUARD_S) as reply:
            return json.load(reply)


def program(module: str, *words: str, cwd: Path = ROOT, **more: Any) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", module, *words]
    return subprocess.Popen(command, cwd=cwd, stdout=subprocess.PIPE, text=True, **more)


def port_of(process: subprocess.Popen[str]) -> int:
    """Return the port of a listening engine; fail with the engine's output otherwise."""
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line.startswith("listening on "), (line, process.wait(GUARD_S))
    return int(line.split()[-1])


def start(*scripts: dict[str, Any]) -> list[Engine]:
    """Start one engine for each script, in parallel."""
    processes = [program("serve.fake", "--script", json.dumps(one)) for one in scripts]
    engines = [Engine(one, port_of(one)) for one in processes]
    for engine in engines:
        engine.first = engine._ask("/fake/script", {})
    return engines


@dataclass
class Front:
    """A gateway and a client of the gateway."""

    gateway: Gateway
    url: str
    session: aiohttp.ClientSession

    def add(self, engine: Engine, name: str) -> None:
        self.gateway.replace([*self.gateway.turns.fleet.slots, engine.replica(name)])

    def ask(self, path: str = CHAT, **said: Any) -> Any:
        """Send a request, for `async with`: a chat of three tokens unless specified."""
        return self.session.post(self.url + path, json=chat(**said))

    async def metric(self, name: str, **labels: str) -> float:
        """Return the sum over all series with these labels."""
        from prometheus_client.parser import text_string_to_metric_families

        async with self.session.get(f"{self.url}/metrics") as reply:
            families = text_string_to_metric_families(await reply.text())
        samples = [one for family in families for one in family.samples if one.name == f"slipway_gateway_{name}"]
        return sum(one.value for one in samples if labels.items() <= one.labels.items())


def chat(**said: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": "Who are you?"}], "max_tokens": 3, **said}


@contextlib.asynccontextmanager
async def gateway(
    *engines: Engine, keys: Keys | None = None, log: Path | None = None, key: str = "", **limits: Any
) -> AsyncIterator[Front]:
    """Yield a gateway in front of `engines`, named r0, r1, ...; afterwards no request may be counted as running."""
    front = Gateway(
        GatewayLimits(**{"slow_start_s": 0.001, **limits}), keys or Keys({}), AccessLog(log) if log else None
    )
    port = await front.start("127.0.0.1", 0)
    front.replace(one.replica(f"r{number}") for number, one in enumerate(engines))
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    try:
        async with aiohttp.ClientSession(headers=headers, timeout=aiohttp.ClientTimeout(GUARD_S)) as session:
            yield Front(front, f"http://127.0.0.1:{port}", session)
        await until(lambda: front._proxy is not None and front._proxy.in_flight == 0, "the gateway is empty")
        fleet = front.turns.fleet
        assert [slot.in_flight for slot in fleet.slots.values()] == [0] * len(fleet.slots)
        assert not fleet.leaving and not front.turns.waiting
    finally:
        await front.stop(0)


async def until(check: Callable[[], Any], what: str) -> Any:
    """Return the first true result of `check`."""
    end = time.monotonic() + GUARD_S
    while not (found := check()):
        assert time.monotonic() < end, f"never: {what}"
        await asyncio.sleep(0.01)
    return found
