"""Measure the time of `inv launch --provider ssh` from the command to the first line of the job, stage by stage.

Run: .venv/bin/python -m bench.handover. The machine is an sshd on loopback with the environment and uv installed; the
launch examines the machine as usual (`accept`). Prints the median of each stage over ROUNDS launches, and of the sum.
"""

import json
import os
import re
import statistics
import sys
import tempfile
import time
from pathlib import Path

from infra.agent.environments import cache_folder, environment
from infra.agent.job import PodFolder
from tests.hosts import Host, loopback
from tests.world import ROOT, World, until

ROUNDS = int(os.environ.get("ROUNDS", "5"))
TARGET_S = 3.0
FLAGS = ("launch", "--provider", "ssh", "--phase", "base", "--detach", "--yes")


def main() -> None:
    environment.ensure("train", ROOT, cache_folder.default_cache(), "cpu", print)
    with tempfile.TemporaryDirectory() as scratch, loopback(Path(scratch)) as host:
        rounds = [launch(Path(scratch), host, number) for number in range(1 + ROUNDS)][1:]  # The first prepares.
    for stage in rounds[0]:
        print(f"{stage:<12}{statistics.median(one[stage] for one in rounds):6.2f} s")
    total_s = statistics.median(sum(one.values()) for one in rounds)
    print(f"{'in all':<12}{total_s:6.2f} s (target {TARGET_S:g} s)")


def launch(folder: Path, host: Host, number: int) -> dict[str, float]:
    """Launch a job and return the seconds of each stage.

    Stage `plan` is the time before the first reported stage. Time between two stages counts for the later stage.
    """
    address = host.address
    machine = {"ip": address.host, "port": address.port, "python": getattr(sys, "_base_executable", sys.executable)}
    pool = {"user": address.user, "identity_file": address.key, "hosts": [machine]}
    (folder / "pools.yaml").write_text(json.dumps({"box": pool}))
    extra = {"SLIPWAY_POOLS": str(folder / "pools.yaml"), "SLIPWAY_STORE": str(folder / f"artifacts{number}")}
    world = World(folder, {**extra, "SLIPWAY_ACCEPT_FREE_GB": "1"})
    began_at = time.time()
    process = world.begin(*FLAGS)
    assert process.stderr is not None
    lines = [(time.time(), line) for line in process.stderr]
    assert process.wait(timeout=60) == 0, lines
    taken: dict[str, float] = {}
    for at, line in lines:
        if found := re.match(r"([a-z-]+) (\d+\.\d\d) s", line):
            if not taken:
                taken["plan"] = at - began_at - float(found[2])
            taken[found[1]] = at - began_at - sum(taken.values())
    pod = PodFolder(host.folder / ".slipway" / "pods" / world.json("status")[0]["run"])
    first = json.loads(until(lambda: read(pod.records("environment")), "a first line").splitlines()[0])
    world.inv("down", "--all")
    return {**taken, "first line": first["at"] - began_at - sum(taken.values())}


def read(path: Path) -> str:
    return path.read_text() if path.exists() else ""


if __name__ == "__main__":
    main()
