"""Slipway's service logic compared with the real SkyPilot, in a separate environment."""

import json
import os
import random
import subprocess

import pytest
import yaml

from infra.agent.environments import cache_folder, environment
from serve import service, skyserve_export
from serve.policy import autoscaler, replica_states
from serve.policy.autoscaler import AutoscalerMemory, Measurements, NewestReplica
from serve.policy.replica_states import Facts, ProcessStatus, State
from tests.serve.scripted_engine import ROOT

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def sky(tmp_path_factory):
    """Return a function that queries SkyPilot, with a home in the test folder, because SkyPilot writes files there."""
    python = environment.ensure("skypilot", ROOT, cache_folder.default_cache(), "", print)
    home = tmp_path_factory.mktemp("home")
    environ = {**os.environ, "HOME": str(home), "SKYPILOT_DISABLE_USAGE_COLLECTION": "1"}

    def ask(what, *given):
        said = json.dumps({"what": what, "given": given})
        command = [str(python), str(ROOT / "tests" / "serve" / "sky_peer.py")]
        done = subprocess.run(command, input=said, capture_output=True, text=True, cwd=home, env=environ, timeout=300)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout.splitlines()[-1])

    return ask


def exported(text: str, model: str = "") -> str:
    made = skyserve_export.to_skyserve(service.parse("test", yaml.safe_load(text)), model)
    return yaml.safe_dump(made, sort_keys=False)


def test_shipped_service_is_valid_for_skyserve(sky):
    said = sky("task", exported((ROOT / "serve" / "service.yaml").read_text()))
    assert said["policy"] == [3, 20, 5.0] and said["delays"] == [60, 300]
    assert said["probe"] == ["/health", 120, 30]
    assert said["resources"] == ["16+", "128+", 100, True, ["8000"]]
    assert said["envs"]["HOST"] == "0.0.0.0" and said["envs"]["MODEL"] == "Qwen/Qwen3-0.6B"
    assert "--served-model-name" in said["run"] and "vllm" in said["setup"]


EVERYTHING = """
name: all
workdir: .
service:
  readiness_probe:
    path: /v1/completions
    post_data: {model: m, prompt: a, max_tokens: 1}
    headers: {Authorization: Bearer x}
    initial_delay_seconds: 30
    consecutive_failure_threshold_timeout: 90
  replica_policy:
    min_replicas: 1
    max_replicas: 4
    target_qps_per_replica: {"A100:1": 2.5, H100: 5}
    num_overprovision: 1
    dynamic_ondemand_fallback: true
    base_ondemand_fallback_replicas: 1
    spot_placer: dynamic_fallback
  load_balancing_policy: instance_aware_least_load
  load_balancer: {stream_timeout_seconds: 600}
  ports: 8001
resources:
  accelerators: {A100: 1}
  cpus: 4+
  memory: 16
  disk_size: 50
  disk_tier: best
  use_spot: true
  ports: [8001, 9000]
  labels: {team: a}
envs: {PORT: 8001, DEBUG: true, HOST: 127.0.0.1}
setup: "true"
run: vllm serve
slipway: {model: ./weights, served_name: mine, target_queue_per_replica: 4, hold_seconds: 60}
"""


def test_every_accepted_key_is_valid_for_skyserve(sky, tmp_path):
    (tmp_path / "weights").mkdir()
    said = sky("task", exported(EVERYTHING.replace("workdir: .", ""), str(tmp_path / "weights")))
    assert said["envs"] == {
        "PORT": "8001",
        "DEBUG": "true",
        "HOST": "0.0.0.0",
        "MODEL": "/model",
        "SERVED_NAME": "mine",
    }
    assert said["mounts"] == {"/model": str(tmp_path / "weights")}


def test_replica_states_equal_skyserve(sky):
    for launch, down, app_failed, is_ready, preempted, first, state in sky("states"):
        facts = Facts(
            launch=ProcessStatus[launch],
            down=None if down is None else ProcessStatus[down],
            app_failed=app_failed,
            is_ready=is_ready,
            preempted=preempted,
            is_late=first == -1,
            first_ready_at=first if first != -1 else None,
        )
        assert replica_states.state_of(facts) is State(state), facts


@pytest.mark.parametrize("seed", range(4))
def test_autoscaler_targets_equal_skyserve(sky, seed):
    chance = random.Random(seed)
    arrivals, now = [], 0.0
    while now < 9000:
        rate = chance.choice([0, 0.2, 3, 8, 26, 40, 120])
        end = now + chance.uniform(30, 500)
        while rate and now < end:
            now += chance.expovariate(rate)
            arrivals.append(now)
        now = max(now, end)
    ticks = [20.0 * (number + 1) for number in range(400)]
    text = (ROOT / "serve" / "service.yaml").read_text()
    rule = autoscaler.rule_of(service.parse("test", yaml.safe_load(text.replace("target_queue_per_replica: 8", ""))))
    memory, ours, upto = autoscaler.begin(rule), [], 0
    for tick in ticks:
        while upto < len(arrivals) and arrivals[upto] < tick:
            upto += 1
        qps = sum(tick - 60 <= one < tick for one in arrivals[max(0, upto - 10000) : upto]) / 60
        memory = autoscaler.decide(rule, memory, Measurements(qps=qps)).memory
        ours.append(memory.target)
    assert ours == sky("targets", exported(text), arrivals, ticks)
    assert len(set(ours)) > 3


def test_replicas_are_ended_in_the_order_of_skyserve(sky):
    chance = random.Random(7)
    for _ in range(3):
        members = [(number, chance.choice([one.value for one in replica_states.LIVE])) for number in range(1, 15)]
        rule = autoscaler.Rule(least=5, most=5)
        alive = [NewestReplica(number=number, state=State(state)) for number, state in members]
        ours = autoscaler.decide(rule, AutoscalerMemory(5), Measurements(qps=None, members=alive)).stop
        assert list(ours) == sky("victims", members, 9)
