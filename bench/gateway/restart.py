"""Measure the time until a killed gateway answers on the same port again.

    python -m bench.gateway.restart --rounds 20

The gateway runs before a fake engine on loopback, supervised as by a service's controller. The program kills the
gateway (SIGKILL) and sends a request every 5 ms until a response is complete. Prints seconds for bench/RESULTS.md.
"""

import argparse
import asyncio
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import aiohttp

from infra.agent.process import send
from serve.gateway.http.limits import GatewayLimits
from serve.processes import gateway_orders
from serve.processes.gateway_client import GatewayClient
from serve.processes.gateway_orders import Order, ReplicaEndpoint
from serve.processes.service_paths import ServicePaths
from serve.replicas.replica_pod import free_port

ROOT = Path(__file__).resolve().parents[2]
ASK = {"model": "demo", "prompt": "1", "max_tokens": 1}
PAUSE_S = 0.005
SETTLE_S = 0.5  # between rounds


async def answers(session: aiohttp.ClientSession, port: int) -> bool:
    """Return whether the gateway answers a request completely."""
    try:
        async with session.post(f"http://127.0.0.1:{port}/v1/completions", json=ASK) as reply:
            await reply.read()
            return reply.status == 200
    except (aiohttp.ClientError, OSError):
        return False


async def until_answered(session: aiohttp.ClientSession, port: int) -> float:
    began = time.monotonic()
    while not await answers(session, port):
        await asyncio.sleep(PAUSE_S)
    return time.monotonic() - began


async def bench(rounds: int, folder: Path) -> list[float]:
    port = free_port(())
    engine = subprocess.Popen(
        [sys.executable, "-m", "serve.fake", "--port", str(port), "--script", '{"model": "demo"}'],
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
    )
    places = ServicePaths(folder / "demo")
    endpoint = ReplicaEndpoint(
        replica_id="demo-0", version=1, key="", port=port, vendor="local", pod_id="", token="", address=""
    )
    order = Order(epoch=1, host="127.0.0.1", port=0, patience_s=10.0, limits=GatewayLimits(), endpoints=(endpoint,))
    gateway = GatewayClient(places, order, print)
    try:
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(force_close=True)) as session:
            there = (await gateway.start()).port
            await until_answered(session, there)
            found = []
            for _ in range(rounds):
                lives = gateway_orders.living(places)
                assert lives is not None
                send(lives, signal.SIGKILL)
                found.append(await until_answered(session, there))
                await asyncio.sleep(SETTLE_S)
            return found
    finally:
        await gateway.shut_down(0.0)
        engine.kill()
        engine.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=20)
    with tempfile.TemporaryDirectory() as folder:
        found = sorted(asyncio.run(bench(parser.parse_args().rounds, Path(folder))))
    print(
        f"killed {len(found)} times; answers again after {statistics.median(found):.2f} s (median), "
        f"{found[0]:.2f} to {found[-1]:.2f} s"
    )


if __name__ == "__main__":
    main()
