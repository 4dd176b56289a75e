"""The findings of serve.doctor."""

import dataclasses
import json
import time

import pytest

from flows.services.service_view import figures, percentiles
from scripts.services.doctor import advice
from serve import readiness, revision, service
from serve.policy.replica_states import Facts, ProcessStatus
from serve.policy.service_state import Member, ServiceRecord, Version, WantedService
from serve.replicas import placement
from serve.replicas.placement import UNREAD

WANTED = WantedService(versions=(Version(number=1, document={"service": {"replicas": 2}}, model="/m"),))
CALM = {"requests": 0, "failed": 0, "queue_s": {"p95": None}}
LATE = Facts(launch=ProcessStatus.SUCCEEDED, is_late=True, down=ProcessStatus.SUCCEEDED)
CRASHED = Facts(launch=ProcessStatus.SUCCEEDED, app_failed=True, down=ProcessStatus.SUCCEEDED)
SILENT = Facts(launch=ProcessStatus.SUCCEEDED, first_ready_at=1.0)


def findings_text(seen=ServiceRecord(serving=(0, 1)), metrics=CALM, was_kept=True):  # noqa: B008 it is frozen
    return " ".join(f"{what} {do}" for what, do in advice("demo", WANTED, seen, metrics, was_kept))


def test_healthy_service_has_no_finding():
    assert findings_text() == ""


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        (CRASHED, ("demo-0 is FAILED: it broke", "serve.logs demo --replica-id 0", "inv doctor --provider local")),
        (LATE, ("not ready within", "raise initial_delay_seconds")),
        (SILENT, ("demo-0 is NOT_READY", "serve.logs demo --replica-id 0", "serve.ssh demo --replica-id 0")),
    ],
)
def test_unhealthy_replica_leads_to_its_log_its_machine_and_its_timeouts(facts, words):
    seen = ServiceRecord(members=(Member(number=0, version=1, run="demo-0", facts=facts, why="it broke"),))
    for word in words:
        assert word in findings_text(seen)


def test_overload_dead_controller_and_held_launch_are_reported():
    busy = {"requests": 10, "failed": 5, "queue_s": {"p95": 3.0}}
    text = findings_text(ServiceRecord(held="the budget allows 0 more"), busy, was_kept=False)
    for word in ("wait 3 s", "serve.scale demo --min-replicas 3", "50.0% of the requests", "--controller", "budget"):
        assert word in text


def test_metrics_are_read_from_possibly_cut_lines(tmp_path):
    class Settings:
        pods = tmp_path / "pods"

    assert figures("demo", Settings())["latency_s"] == {"p50": None, "p95": None, "p99": None}
    folder = tmp_path / "services" / "demo"
    folder.mkdir(parents=True)
    asked = {"at": time.time(), "route": "chat", "status": 200, "replica": "demo-0", "streams": True}
    line = json.dumps({**asked, "first_byte_s": 0.1, "queue_s": 0.0, "total_s": 0.5})
    (folder / "access.jsonl").write_text(f'{line}\n{{"at": 17')
    found = figures("demo", Settings())
    assert (found["requests"], found["failed"], found["latency_s"]["p99"]) == (1, 0, 0.5)
    assert found["qps_per_replica"] == {"demo-0": round(1 / 60, 3)}


def test_percentiles_are_measured_values():
    assert percentiles([3.0, 1.0, 2.0]) == {"p50": 2.0, "p95": 3.0, "p99": 3.0}


READ = {
    "region",
    "instance_type",
    "accelerators",
    "cpus",
    "memory",
    "disk_size",
    "use_spot",
    "ports",
    "max_hourly_cost",
}
SKY = {"infra": "aws", "cloud": "aws", "zone": "us-east-1a", "disk_tier": "best", "network_tier": "best",
       "job_recovery": "failover", "image_id": "docker:x", "labels": {"a": "b"}, "any_of": [{"cpus": 4}],
       "ordered": [{"cloud": "gcp"}], "local_disk": "nvme", "autostop": 10, "priority": 1,
       "priority_class": "high"}  # fmt: skip


def test_every_key_of_resources_is_read_or_named_with_its_replacement():
    assert {one.name for one in dataclasses.fields(service.ReplicaResources)} == READ | set(SKY)
    for name, value in SKY.items():
        (found,) = placement.ignored_settings(service.parse("x", {"service": {}, "resources": {name: value}}))
        assert found[0] == f"resources.{name}" and len(found[1]) > 20
    for name, value in (("config", {"a": {}}), ("inputs", {"a": 1}), ("outputs", {"a": 1}), ("event_callback", "x")):
        ((key, instead),) = placement.ignored_settings(service.parse("x", {"service": {}, name: value}))
        assert key == name and len(instead) > 20
    policy = {"min_replicas": 1, "spot_placer": "dynamic_fallback"}
    ((name, _),) = placement.ignored_settings(service.parse("x", {"service": {"replica_policy": policy}}))
    assert name == "service.replica_policy.spot_placer"
    assert placement.ignored_settings(service.load(revision.CONFIG)) == []
    version = dataclasses.replace(WANTED.newest, document={"service": {"replicas": 2}, "resources": SKY})
    told = advice("demo", WantedService(versions=(version,)), ServiceRecord(serving=(0, 1)), CALM, True)
    assert [what for what, _ in told] == [f"resources.{name} in the service file has no effect" for name in UNREAD]


def test_keys_for_skyserve_only_are_named():
    shipped = service.load(revision.CONFIG)
    findings_text = {
        "service": {"replicas": 1, "load_balancing_policy": "round_robin"},
        "setup": "pip install x",
        "run": "x",
        "file_mounts": {"/model": "s3://a/b", "/more": "s3://a/c"},
    }
    said = service.parse("x", findings_text)
    assert revision.only_for_skyserve(said, shipped) == ["setup", "run", "file_mounts"]
    for is_own_run in (False, True):
        told = []
        revision.check_file(said, told.append, is_own_run)
        assert ("--engine run" in told[0]) is not is_own_run and "least loaded replica" in told[-1]
    assert revision.only_for_skyserve(shipped, shipped) == []


UP = Facts(launch=ProcessStatus.SUCCEEDED)


@pytest.mark.parametrize(
    ("facts", "phases", "waits"),
    [
        (Facts(), (), True),
        (Facts(launch=ProcessStatus.RUNNING), (), True),
        (UP, (("environment", 1.0),), True),
        (UP, (("environment", 1.0), ("weights", 2.0)), False),
        (Facts(launch=ProcessStatus.SUCCEEDED, is_ready=True, first_ready_at=1.0), (), False),
        (CRASHED, (("environment", 1.0),), False),
    ],
)
def test_timeout_of_a_service_counts_from_the_start_of_its_engines(facts, phases, waits):
    assert readiness.awaits_engine(Member(number=0, version=1, run="demo-0", facts=facts, phases=phases)) is waits


@pytest.mark.parametrize(("bounds", "is_same"), [({"max_tools": 5}, True), ({"max_tokens": 9}, False)])
def test_bound_passed_to_an_engine_makes_a_new_version_and_other_bounds_do_not(bounds, is_same):
    before = WANTED.newest
    after = dataclasses.replace(before, document={**before.document, "slipway": {"limits": bounds}})
    assert revision.replaces_nothing(before, after) == is_same
