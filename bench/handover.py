"""How long `inv launch --provider ssh` takes from the command to the first line of the job, and where that time goes.

Run: .venv/bin/python -m bench.handover. The machine is an sshd on loopback that holds the environment and uv already;
it is looked at as any other (`accept`). Prints the median of each stage over ROUNDS launches, and of their sum.
"""

import json
import os
import re
import statistics
import sys
import tempfile
import time
from pathlib import Path

from infra.agent import environment
from infra.agent.job import PodFolder
from tests.hosts import Host, loopback
from tests.world import ROOT, World, until

ROUNDS = int(os.environ.get("ROUNDS", "5"))
TARGET_S = 3.0
FLAGS = ("launch", "--provider", "ssh", "--phase", "base", "--detach", "--yes")


def main() -> None:
    environment.ensure("train", ROOT, environment.default_cache(), "cpu", print)
    with tempfile.TemporaryDirectory() as scratch, loopback(Path(scratch)) as host:
        rounds = [launch(Path(scratch), host, number) for number in range(1 + ROUNDS)][1:]  # the first prepares
    for stage in rounds[0]:
        print(f"{stage:<12} {statistics.median(one[stage] for one in rounds):6.2f} s")
    total_s = statistics.median(sum(one.values()) for one in rounds)
    print(f"{'in all':<12} {total_s:6.2f} s (target {TARGET_S:g} s)")


def launch(folder: Path, host: Host, number: int) -> dict[str, float]:
    """Seconds of each stage, of what came before and of what came after the last; their sum is the whole."""
    address = host.address
    machine = {"ip": address.host, "port": address.port, "python": getattr(sys, "_base_executable", sys.executable)}
    pool = {"user": address.user, "identity_file": address.key, "hosts": [machine]}
    (folder / "pools.yaml").write_text(json.dumps({"box": pool}))
    extra = {"SLIPWAY_POOLS": str(folder / "pools.yaml"), "SLIPWAY_STORE": str(folder / f"artifacts{number}")}
    world = World(folder, {**extra, "SLIPWAY_ACCEPT_FREE_GB": "1"})
    began_at = time.time()
    process = world.begin(*FLAGS)
    _, said = process.communicate(timeout=120)
    assert process.returncode == 0, said
    taken = {name: float(taken_s) for name, taken_s in re.findall(r"^([a-z-]+) (\d+\.\d\d) s", said, re.M)}
    records = PodFolder(host.folder / ".slipway" / "pods" / world.json("status")[0]["run"]).records("text")
    first = json.loads(until(lambda: records.exists() and records.read_text(), "a first line").splitlines()[0])
    world.inv("down", "--all")
    whole_s = first["at"] - began_at
    return {**taken, "plan, job": whole_s - sum(taken.values())}


if __name__ == "__main__":
    main()
