"""A service through SkyServe itself, over a Slurm cluster of two nodes: started, asked, seen and ended with a proof."""

import os
import urllib.request
from dataclasses import replace

import pytest

from infra.agent.environments import cache_folder
from infra.agent.peer_addresses import free_ports
from infra.settings import Settings
from packs.skypilot.control.managed_jobs import ManagedJobs
from packs.skypilot.control.served import Services
from tests.packs.skypilot.bed import Bed
from tests.world import ROOT, World, until

pytestmark = [pytest.mark.process, pytest.mark.nightly, pytest.mark.timeout(3000)]

LONG_S = 900.0  # Timeout for SkyPilot on a busy machine.
SERVICE = """
service: {{readiness_probe: /, replicas: 1}}
resources: {{infra: slurm/loop, cpus: 1, ports: {port}}}
envs: {{SAID: hello}}
run: |
  mkdir -p site && echo "$SAID from $SKYPILOT_SERVE_REPLICA_ID" > site/index.html
  exec python3 -m http.server {port} --directory site
"""


@pytest.fixture
def world(tmp_path, sky: Bed):
    own = {key: value for key, value in sky.environ.items() if os.environ.get(key) != value}
    one = World(tmp_path, {**own, "SLIPWAY_ENVIRONMENTS": str(cache_folder.default_cache())})
    yield one
    one.inv("down", "--all")


def test_service_of_a_file_answers_and_its_end_is_proven(tmp_path, world, sky):
    (port,) = free_ports(1)
    file = tmp_path / "pages.yaml"
    file.write_text(SERVICE.format(port=port))
    plan = world.run("serve.up", str(file), "--provider", "skypilot", "--dry-run", timeout_s=LONG_S)
    told = " ".join(f"{plan.stdout} {plan.stderr}".split())
    assert "pages: " in told and "as it is" in told and "not proven: the end of a machine" in told, told
    done = world.run("serve.up", str(file), "--provider", "skypilot", "--yes", timeout_s=LONG_S)
    assert done.returncode == 0, f"{done.stdout}{done.stderr}"
    seen = world.json("serve.status", "pages")
    assert (seen["state"], seen["ready"], seen["engine"]) == ("READY", 1, "skypilot"), seen
    assert clusters_of(world, seen["replicas"][0]["run"]) == [seen["replicas"][0]["run"]]
    until(lambda: _answer(seen["endpoint"]).startswith("hello from 1"), "the service answers", LONG_S)
    assert next(one for one in world.json("status") if one["run"] == "pages")["state"] == "running"
    assert [one["run"] for one in world.json("audit", "--provider", "skypilot")["machines"]] == ["pages"]
    assert "replica" in world.inv("serve.logs", "pages", "--controller")
    ended = world.run("serve.down", "pages", timeout_s=LONG_S)
    assert ended.returncode == 0 and "pages: ended; SkyPilot has neither" in ended.stderr + ended.stdout
    assert sky.run("squeue", "-h", "-o", "%i").split() == []
    assert world.json("audit", "--provider", "skypilot")["machines"] == []


def clusters_of(world, cluster):
    """Return the clusters of the service of `cluster` of which SkyPilot has a record: a proof of the end sees them."""
    jobs = ManagedJobs.from_settings(Settings.load(ROOT, environ=world.environ))
    services = Services(replace(jobs.client, environ=world.environ), jobs.bundles)
    return services.left(cluster.rpartition("-")[0])


def _answer(url):
    try:
        with urllib.request.urlopen(url, timeout=10) as said:
            return said.read().decode()
    except OSError:
        return ""
