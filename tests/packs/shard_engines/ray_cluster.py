"""A real Ray cluster of two nodes on loopback, removed at the end of the test."""

import os
import shutil
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

from infra.agent.peer_addresses import free_ports

RAY = "ray==2.60.0"


def interpreter(home):
    """Return an interpreter with ray: SLIPWAY_RAY_PYTHON, or a new environment."""
    if there := os.environ.get("SLIPWAY_RAY_PYTHON"):
        return Path(there)
    subprocess.run([sys.executable, "-m", "venv", home], check=True)
    subprocess.run([home / "bin" / "pip", "install", "-q", RAY], check=True, timeout=600)
    return home / "bin" / "python"


@contextmanager
def running(home, python):
    """Yield the address of a cluster of two nodes with two processors each, and the process of each node."""
    [port] = free_ports(1)
    address = f"127.0.0.1:{port}"
    environ = {**os.environ, "RAY_USAGE_STATS_ENABLED": "0"}
    ray = [str(python.parent / "ray"), "start", "--block", "--node-ip-address=127.0.0.1", "--num-cpus=2"]
    head = ["--head", f"--port={port}", "--include-dashboard=false", f"--temp-dir={home}"]
    nodes = []
    try:
        for more in (head, [f"--address={address}"]):
            with open(home / f"{len(nodes)}.out", "wb") as out:
                nodes.append(subprocess.Popen([*ray, *more], env=environ, stdout=out, stderr=out))
            deadline = time.monotonic() + 90
            while b"runtime started" not in (home / f"{len(nodes) - 1}.out").read_bytes():
                assert nodes[-1].poll() is None and time.monotonic() < deadline
                time.sleep(0.2)
        yield address, nodes
    finally:
        for node in reversed(nodes):
            node.terminate()
            node.wait(30)
        shutil.rmtree(home, ignore_errors=True)
