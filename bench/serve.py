"""Benchmark the gateway against direct access, SkyServe's load balancer and vllm-router, with two fake engines.

Run: python -m bench.serve [--before FOLDER] [--sky PYTHON] [--router PROGRAM] [--nginx PROGRAM] [--rounds 5]
[--memory 100000]. All processes run on loopback. FOLDER is a checkout of an older version of Slipway; the gateway of
FOLDER is a further arm. The peers need separate environments: `pip install skypilot==0.14.1` and
`pip install vllm-router==0.1.17`; nginx is Debian's. All arms run together and take turns within each round; compare
figures only within a run. Load on the machine affects wall-clock times, and CPU seconds hardly. Prints tables for
bench/RESULTS.md.
"""

import argparse
import asyncio
import json
import os
import re
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

from aiohttp import web

from serve.loops import run, timeout
from tests.serve.scripted_engine import CHAT, ROOT, chat, port_of, program

TICKS_PER_S = os.sysconf("SC_CLK_TCK")
WAIT_S = 90
PAUSES_S = (0.0, 0.01)
NGINX = """daemon off; worker_processes 1; pid nginx.pid; error_log stderr error; events {}
http { access_log off; client_body_temp_path %s; upstream engines { %s keepalive 64; }
server { listen 127.0.0.1:%d; keepalive_requests 1000000;
location / { proxy_pass http://engines; proxy_http_version 1.1; proxy_set_header Connection ""; } } }
"""
HEAD = b"POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"


def request(**said: object) -> bytes:
    body = json.dumps(chat(model="fake", **said)).encode()
    return HEAD % (CHAT.encode(), len(body)) + body


SHORT, STREAM = request(), request(stream=True, max_tokens=100)


class Client(asyncio.Protocol):
    """Client with a persistent connection and minimal work per request."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport | None = None
        self.first_s = 0.0
        self._seen = b""
        self._done: asyncio.Future[int] | None = None
        self._began = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's transport is not a subclass.

    def connection_lost(self, error: Exception | None) -> None:
        if self._done is not None and not self._done.done():
            self._done.set_exception(ConnectionError(f"closed by the server: {error}"))

    def data_received(self, data: bytes) -> None:
        assert self._done is not None
        self._seen += data
        cut = self._seen.find(b"\r\n\r\n")
        if cut < 0:
            return
        if not self.first_s and len(self._seen) > cut + 4:
            self.first_s = time.perf_counter() - self._began
        head = self._seen[:cut].lower()
        length = re.search(rb"content-length: (\d+)", head)
        whole = len(self._seen) >= cut + 4 + int(length[1]) if length else self._seen.endswith(b"0\r\n\r\n")
        if whole and not self._done.done():
            self._done.set_result(len(self._seen))

    async def ask(self, said: bytes) -> tuple[float, float]:
        """Send a request; return the seconds to the first byte of the body, and to the last byte."""
        assert self.transport is not None
        self._seen, self.first_s = b"", 0.0
        self._done = asyncio.get_running_loop().create_future()
        self._began = time.perf_counter()
        self.transport.write(said)
        await self._done
        total_s = time.perf_counter() - self._began
        if not self._seen.startswith(b"HTTP/1.1 200"):
            raise RuntimeError(f"bench: {self._seen[:300]!r}")
        return self.first_s, total_s


@dataclass
class Arm:
    """A route to the engines, with the measured figures."""

    name: str
    port: int
    pid: int | None = None  # pid of the proxy; None = no proxy
    latency_s: dict[float, list[float]] = field(default_factory=lambda: {one: [] for one in PAUSES_S})
    """Median latency of each round, by the pause before each request."""
    first_s: dict[float, list[float]] = field(default_factory=lambda: {one: [] for one in PAUSES_S})
    rps: list[float] = field(default_factory=list)
    per_cpu_s: list[float] = field(default_factory=list)
    chunks_per_s: list[float] = field(default_factory=list)
    chunks_per_cpu_s: list[float] = field(default_factory=list)

    async def clients(self, count: int) -> list[Client]:
        loop = asyncio.get_running_loop()
        return [(await loop.create_connection(Client, "127.0.0.1", self.port))[1] for _ in range(count)]

    def cpu_s(self) -> float:
        """Return the user and system time of the proxy with all child processes; NaN without a proxy."""
        return sum(_cpu_s(pid) for pid in _tree(self.pid)) if self.pid else float("nan")


def _tree(pid: int) -> list[int]:
    path = Path(f"/proc/{pid}/task")
    found = [pid]
    for one in path.glob("*/children"):
        for child in one.read_text().split():
            found += _tree(int(child))
    return found


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS_PER_S


def _rss_mb(pid: int) -> float:
    found = re.search(r"VmRSS:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())
    assert found is not None
    return int(found[1]) / 1024


async def one_by_one(arm: Arm, count: int, pause_s: float) -> None:
    """Send requests in sequence. After a pause all processes on the way were asleep, and caches are cold."""
    (client,) = await arm.clients(1)
    short: list[float] = []
    first: list[float] = []
    for number in range(count):
        if pause_s:
            await asyncio.sleep(pause_s)
        if number % 4:
            short.append((await client.ask(SHORT))[1])
        else:
            first.append((await client.ask(STREAM))[0])
    arm.latency_s[pause_s].append(statistics.median(short))
    arm.first_s[pause_s].append(statistics.median(first))
    _close([client])


async def many(arm: Arm, said: bytes, clients: int, count: int) -> tuple[float, float]:
    """Return requests per wall-clock second, and per CPU second of the proxy."""
    pool = await arm.clients(clients)
    left = count

    async def work(client: Client) -> None:
        nonlocal left
        while left > 0:
            left -= 1
            await client.ask(said)

    began, cpu_s = time.perf_counter(), arm.cpu_s()
    await asyncio.gather(*(work(one) for one in pool))
    wall_s, cpu_s = time.perf_counter() - began, arm.cpu_s() - cpu_s
    _close(pool)
    return count / wall_s, count / cpu_s if cpu_s else float("nan")


def _close(clients: Sequence[Client]) -> None:
    for one in clients:
        if one.transport is not None:
            one.transport.close()


async def skyserve_controller(urls: Sequence[str]) -> tuple[web.AppRunner, int]:
    """Start a fake SkyServe controller that tells the load balancer the URLs of the replicas."""

    async def sync(_: web.Request) -> web.Response:
        return web.json_response({"replica_info": {url: {"gpu_type": "unknown"} for url in urls}})

    app = web.Application()
    app.router.add_post("/controller/load_balancer_sync", sync)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    return runner, runner.addresses[0][1]


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


async def until_served(arm: Arm) -> None:
    end = time.monotonic() + WAIT_S
    while True:
        try:
            (client,) = await arm.clients(1)
            async with timeout(5):
                await client.ask(SHORT)
            _close([client])
            return
        except (OSError, RuntimeError, asyncio.TimeoutError) as error:
            if time.monotonic() > end:
                raise RuntimeError(f"{arm.name} does not serve: {error}") from None
            await asyncio.sleep(0.5)


async def bench(words: argparse.Namespace, folder: Path) -> None:
    processes: list[subprocess.Popen[str]] = []

    def start(command: list[str], name: str) -> subprocess.Popen[str]:
        log = (folder / f"{name}.log").open("w")
        environ = {**os.environ, "HOME": str(folder), "SKYPILOT_DISABLE_USAGE_COLLECTION": "1"}
        process = subprocess.Popen(
            command, stdout=log, stderr=subprocess.STDOUT, text=True, env=environ, start_new_session=True
        )
        processes.append(process)
        return process

    try:
        engines = [program("serve.fake", start_new_session=True) for _ in range(2)]
        processes += engines
        ports = [port_of(one) for one in engines]
        urls = [f"http://127.0.0.1:{port}" for port in ports]
        replicas = [{"replica_id": f"r{number}", "url": url} for number, url in enumerate(urls)]

        def gateway(name: str, checkout: Path) -> Arm:
            config = folder / f"{name}.json"
            config.write_text(json.dumps({"replicas": replicas, "access_log": str(folder / f"{name}.jsonl")}))
            process = program("serve.gateway", str(config), cwd=checkout, start_new_session=True)
            processes.append(process)
            return Arm(name, port_of(process), process.pid)

        ours = gateway("gateway", ROOT)
        arms = [Arm("direct", ports[0]), ours]
        if words.before:
            arms.append(gateway("before", Path(words.before)))
        if words.sky:
            runner, controller = await skyserve_controller(urls)
            port = free_port()
            command = [words.sky, "-m", "sky.serve.load_balancer", "--load-balancer-port", str(port)]
            process = start([*command, "--controller-addr", f"http://127.0.0.1:{controller}"], "sky")
            arms.append(Arm("SkyServe", port, process.pid))
        if words.nginx:
            port = free_port()
            (folder / "nginx.conf").write_text(
                NGINX % (folder, " ".join(f"server 127.0.0.1:{one};" for one in ports), port)
            )
            process = start([words.nginx, "-c", str(folder / "nginx.conf"), "-p", str(folder)], "nginx")
            arms.append(Arm("nginx", port, process.pid))
        if words.router:
            port, metrics = free_port(), free_port()
            command = [words.router, "--worker-urls", *urls, "--policy", "power_of_two", "--host", "127.0.0.1"]
            command += ["--port", str(port), "--prometheus-port", str(metrics), "--log-level", "error"]
            process = start(command, "router")
            arms.append(Arm("vllm-router", port, process.pid))
        for arm in arms:
            await until_served(arm)
        load = os.getloadavg()[0]
        for _ in range(words.rounds):
            for arm in arms:
                for pause_s in PAUSES_S:
                    await one_by_one(arm, 200, pause_s)
                rps, per_cpu_s = await many(arm, SHORT, 32, words.requests)
                arm.rps.append(rps)
                arm.per_cpu_s.append(per_cpu_s)
                rps, per_cpu_s = await many(arm, STREAM, 16, words.requests // 20)
                arm.chunks_per_s.append(100 * rps)
                arm.chunks_per_cpu_s.append(100 * per_cpu_s)
        tell(arms, load)
        if words.memory:
            await memory(ours, words.memory)
    finally:
        for process in processes:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.wait(WAIT_S)


async def memory(ours: Arm, count: int) -> None:
    """Print the memory of the gateway after a warm-up of 1/11 of the requests and at the end."""
    assert ours.pid is not None
    seen = []
    for step in range(11):
        await many(ours, SHORT, 32, count // 11)
        await many(ours, STREAM, 16, count // 1100)
        seen.append(_rss_mb(ours.pid))
        print(f"memory: {(step + 1) * count // 11:>8} requests {seen[-1]:7.1f} MB", file=sys.stderr)
    print(f"\nmemory after {count // 11} and {count} requests: {seen[0]:.1f} and {seen[-1]:.1f} MB")


def tell(arms: Sequence[Arm], load: float) -> None:
    direct, ours = arms[0], arms[1]
    print(f"load {load:.1f} to {os.getloadavg()[0]:.1f}; medians of {len(direct.rps)} rounds [range]\n")
    for pause_s in PAUSES_S:
        when = f"after pauses of {1e3 * pause_s:g} ms" if pause_s else "one after another"
        print(f"| requests {when} | p50 ms | added p50 ms | first byte of a stream ms |\n|---|---|---|---|")
        for arm in arms:
            p50_s, first_s = arm.latency_s[pause_s], arm.first_s[pause_s]
            added = [1e3 * (one - other) for one, other in zip(p50_s, direct.latency_s[pause_s], strict=True)]
            columns = [
                _range([1e3 * one for one in p50_s], 2),
                "-" if arm is direct else _range(added, 2),
                _range([1e3 * one for one in first_s], 2),
            ]
            print(f"| {arm.name} | {' | '.join(columns)} |")
        print()
    print("| many at once | requests/s | per CPU s | chunks/s | per CPU s |\n|---|---|---|---|---|")
    for arm in arms:
        rates = (arm.rps, arm.per_cpu_s, arm.chunks_per_s, arm.chunks_per_cpu_s)
        print(f"| {arm.name} | {' | '.join(_range(one) for one in rates)} |")
    print()
    for peer in arms[2:]:
        ratios = {
            "requests/s": [a / b for a, b in zip(ours.rps, peer.rps, strict=True)],
            "per CPU s": [a / b for a, b in zip(ours.per_cpu_s, peer.per_cpu_s, strict=True)],
            "chunks/s": [a / b for a, b in zip(ours.chunks_per_s, peer.chunks_per_s, strict=True)],
            "per CPU s ": [a / b for a, b in zip(ours.chunks_per_cpu_s, peer.chunks_per_cpu_s, strict=True)],
        }
        print(f"gateway / {peer.name}: " + ", ".join(f"{name} {_range(value, 2)}" for name, value in ratios.items()))


def _range(values: Sequence[float], digits: int = 0) -> str:
    low, middle, high = min(values), statistics.median(values), max(values)
    return f"{middle:.{digits}f} [{low:.{digits}f}-{high:.{digits}f}]"


def main() -> None:
    parser = argparse.ArgumentParser(prog="bench.serve")
    parser.add_argument("--before", default="", help="checkout of another version, to compare with")
    parser.add_argument("--sky", default="", help="Python of an environment with skypilot")
    parser.add_argument("--router", default="", help="path of the program vllm-router")
    parser.add_argument(
        "--nginx", default="", help="path of the program nginx, which only forwards: the minimum cost of a hop"
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--requests", type=int, default=3000)
    parser.add_argument("--memory", type=int, default=0, help="number of requests of the memory test, such as 100000")
    words = parser.parse_args()
    os.chdir(ROOT)
    with tempfile.TemporaryDirectory() as folder:
        run(bench(words, Path(folder)))


if __name__ == "__main__":
    main()
