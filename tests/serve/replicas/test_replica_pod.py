"""The job of a replica, as planned before a machine is chosen."""

import pytest

from infra.records import Offer
from infra.runs import launch
from infra.settings import Settings
from serve.policy.service_state import Member, Version
from serve.replicas import placement
from serve.replicas.replica_pod import ReplicaLauncher
from tests.world import ROOT

GB = 10**9


@pytest.mark.parametrize("provider", ["runpod", "ssh"])
@pytest.mark.parametrize(
    ("resources", "shared", "gpu_bytes", "of_request", "of_job", "of_engine"),
    [
        (None, 1, 4 * GB, 0, (1, "cuda"), 1),
        (None, 2, 4 * GB, 2, (2, "cuda"), 2),
        ({"accelerators": "H100:4"}, 1, 4 * GB, 4, (4, "cuda"), 4),
        ({"accelerators": {"H100": 8, "A100": 4}}, 4, 4 * GB, 0, (1, "cuda"), 4),
        ({"cpus": "4+"}, 1, 0, 0, (0, "cpu"), 1),
    ],
)
def test_replica_of_vllm_gets_the_gpus_of_the_engine(
    tmp_path, monkeypatch, provider, resources, shared, gpu_bytes, of_request, of_job, of_engine
):
    plans = []
    offer = Offer(provider=provider, offer_id="one", gpu="H100", num_gpus=8)
    monkeypatch.setattr(placement, "find", lambda *_: [offer])
    monkeypatch.setattr(launch, "start", lambda plan, *_: plans.append(plan))
    (pools := tmp_path / "pools.yaml").write_text("a: {hosts: [{name: one, ip: 10.0.0.1}], user: me}\n")
    environ = {"HOME": str(tmp_path), "RUNPOD_API_KEY": "k" * 20, "SLIPWAY_POOLS": str(pools)}
    settings = Settings.load(ROOT, environ={**environ, "SLIPWAY_STATE_FILE": str(tmp_path / "journal.db")})
    document = {"service": {"readiness_probe": "/health", "replicas": 1}, "slipway": {"engine": {"num_gpus": shared}}}
    document |= {"resources": resources} if resources else {}
    version = Version(
        number=1, document=document, provider=provider, engine="vllm", model="hf://a/b", gpu_bytes=gpu_bytes
    )
    member = Member(number=0, version=1, run="demo-0", port=20_000)
    ReplicaLauncher("demo", settings, print, b"seed").launch(version, member)
    (plan,) = plans
    assert (plan.request.num_gpus, plan.request.gpu_memory_bytes) == (of_request, gpu_bytes)
    assert (plan.job.num_gpus, plan.job.torch) == of_job
    assert plan.job.steps[0].config["tuning"]["num_gpus"] == of_engine
