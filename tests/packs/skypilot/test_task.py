"""A job as a SkyPilot task, and a node's task as a job again; requests beyond SkyPilot's clouds are refused early."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from infra.agent.job import Job, Limits, NodeGroup, PodFolder, Step
from infra.agent.state import LEFT, stop_file, write_json
from infra.errors import NoOffer, UsageError
from infra.records import Request
from infra.runs.acceptance import terms_for
from infra.runs.engine import engine_of
from infra.selection.machine_spec import MachineSpec
from infra.settings import Settings
from packs.skypilot.agent.managed import NUM_GPUS, REPORT, SUBMITTED_AT, exit_code, job_here
from packs.skypilot.control import job_view, price_table, task
from packs.skypilot.control.client import Client
from packs.skypilot.control.managed_jobs import ManagedJobs
from tests.world import ROOT

TOKEN = "sw1-abcdefgh-0123456789abcdef"
STEPS = (Step("fetch", ("-m", "store.uploader", "fetch")), Step("run", ("-m", "infra.agent.shell"), everywhere=True))
JOB = Job(run="bert-1", token=TOKEN, steps=STEPS, limits=Limits(time_s=3600.0, micro_usd_per_hour=7), secrets=("KEY",),
          beside=Step("carry", ("-m", "store.uploader", "carry")),
          group=NodeGroup(run="bert-1", port=21000, words_port=21001, key="k"))  # fmt: skip


def make_task(**keys):
    return task.task_of(JOB, nodes=2, keys=keys, bundle=Path("/b"), secrets={"KEY": "v", "OTHER": "w"}, now=1000.0)


def test_job_becomes_a_task_with_the_guard_as_its_command():
    said = make_task(
        resources={"infra": "slurm/loop", "job_recovery": {"strategy": "FAILOVER", "max_restarts_on_errors": 9}}
    )
    assert said == {
        "name": TOKEN,
        "num_nodes": 2,
        "workdir": "/b",
        "run": task.RUN,
        "envs": {SUBMITTED_AT: "1000"},
        "secrets": {"KEY": "v"},
        "resources": {
            "infra": "slurm/loop",
            "job_recovery": {"strategy": "FAILOVER", "max_restarts_on_errors": 0, "recover_on_exit_codes": [75]},
        },
    }
    assert "packs.skypilot.agent.managed" in said["run"]


def test_variables_of_the_job_and_login_at_a_registry_reach_skypilot():
    login = {f"SKYPILOT_DOCKER_{one}": one for one in ("USERNAME", "PASSWORD", "SERVER")}
    job = replace(JOB, secrets=("KEY", *login))
    said = task.task_of(
        job, nodes=1, keys={"envs": {"HOOK_URL": "u"}}, bundle=Path("/b"), secrets={"KEY": "v", **login}, now=1000.0
    )
    assert said["envs"] == {"HOOK_URL": "u", SUBMITTED_AT: "1000"}
    assert said["secrets"] == {"KEY": "v", **login}


def test_each_node_gets_the_job_with_its_nodes_and_its_waiting_time():
    sent = Job.from_json(JOB.to_json())
    ips = {"SKYPILOT_NODE_IPS": "10.0.0.5\n10.0.0.9", SUBMITTED_AT: "1000"}
    first = job_here(sent, {**ips, "SKYPILOT_NODE_RANK": "0"}, "eth0", 1090.0)
    assert first == replace(
        JOB,
        limits=replace(JOB.limits, billed_s=90.0),
        group=NodeGroup(
            run="bert-1",
            rank=0,
            addresses=("10.0.0.5", "10.0.0.9"),
            interface="eth0",
            port=21000,
            words_port=21001,
            key="k",
        ),
    )
    second = job_here(sent, {**ips, "SKYPILOT_NODE_RANK": "1"}, "eth0", 1090.0)
    assert (second.group.rank, [one.name for one in second.steps], second.beside) == (1, ["run"], None)
    alone = job_here(sent, {"SKYPILOT_NODE_IPS": "10.0.0.5", NUM_GPUS: "4"}, "", 500.0)
    assert alone.group == NodeGroup() and (alone.limits.billed_s, alone.num_gpus) == (0.0, 4)


def test_task_restarts_only_after_the_exit_code_of_a_preemption(tmp_path):
    pod = PodFolder(tmp_path)
    write_json(stop_file(pod), {"state": LEFT})
    assert exit_code(pod) == 75
    for state, code in (("succeeded", 0), ("failed", 1), ("limit", 1)):
        write_json(pod.verdict, {"state": state})
        assert exit_code(pod) == code


def test_skypilot_recovers_its_own_runs_costs_money_and_is_unreachable(tmp_path):
    jobs = ManagedJobs(Client(lambda: tmp_path, tmp_path), tmp_path)
    assert jobs.restarts_runs and engine_of(jobs) is jobs
    terms = terms_for(Settings.load(ROOT, environ={"HOME": str(tmp_path)}), jobs)
    assert terms.accept is None and terms.admit is not None


def test_flags_request_resources_and_override_a_file():
    request = Request(
        run="a",
        gpu="A100:8,H100:8",
        cpus=16,
        memory_bytes=128 * 10**9,
        spot=True,
        cloud="AWS",
        region="us-east-1",
        max_micro_usd_per_hour=20_500_000,
    )
    assert task.resources_of(request) == {
        "infra": "aws/us-east-1",
        "accelerators": {"A100": 8, "H100": 8},
        "use_spot": True,
        "cpus": "16+",
        "memory": "128+",
        "max_hourly_cost": 20.5,
    }
    said = {"disk_tier": "best", "any_of": [{"infra": "runpod", "accelerators": "A10:1"}, {"infra": "aws"}]}
    typed = MachineSpec(gpu="H100", num_gpus=4, cloud="slurm")
    found, notes = task.overlaid(said, vars(typed), Request(run="a", gpu="H100", num_gpus=4, cloud="slurm"))
    assert found == {"disk_tier": "best", "any_of": [{}, {}], "accelerators": "H100:4", "infra": "slurm"}
    assert said["any_of"][0]["infra"] == "runpod" and notes == []
    spot, notes = task.overlaid({"use_spot": True}, vars(MachineSpec(cloud="slurm")), Request(run="a", cloud="slurm"))
    assert spot == {"infra": "slurm"} and notes == ["use_spot has no effect: SkyPilot has no spot machines on slurm"]


@pytest.mark.parametrize(
    ("resources", "nodes", "mounts", "words"),
    [
        ({"infra": "runpod"}, 2, False, "num_nodes: SkyPilot has no several nodes on runpod; set num_nodes: 1"),
        (
            {"infra": "runpod/US"},
            1,
            True,
            "file_mounts: SkyPilot has no buckets as folders on runpod; write mode: MOUNT",
        ),
        ({"infra": "shadeform", "use_spot": True}, 1, False, "use_spot: SkyPilot has no spot machines on shadeform"),
        ({"any_of": [{"cloud": "slurm"}, {"infra": "ssh/p"}], "use_spot": True}, 1, False, "spot machines on slurm"),
        ({"infra": "slurm", "ports": 80}, 1, False, "ports: SkyPilot has no open ports on slurm; leave them out"),
        ({"infra": "lium"}, 1, False, "SkyPilot has no back end for lium"),
    ],
)
def test_unsupported_request_of_a_cloud_is_refused_before_the_request(resources, nodes, mounts, words):
    with pytest.raises(UsageError, match=words):
        task.check({"resources": resources}, nodes, mounts, "job.yaml")


def test_other_requests_are_left_to_skypilot():
    for infra in ("kubernetes", "k8s", "nebius/eu-north1"):  # depends on the cluster, and on the kind of machine
        asked = {"infra": infra, "network_tier": "best", "disk_tier": "best", "use_spot": True}
        task.check({"resources": asked}, 2, True, "job.yaml")
    task.check({"resources": {"infra": "runpod", "network_tier": "standard", "disk_tier": "best"}}, 1, False, "a.yaml")
    with pytest.raises(UsageError, match="disk_tier: SkyPilot has no the choice of a disk's speed on k8s"):
        task.check({"resources": {"infra": "k8s", "disk_tier": "ultra"}}, 1, False, "job.yaml")
    task.check({"resources": {"infra": "aws", "use_spot": True, "ports": 80}}, 4, True, "job.yaml")
    task.check({"resources": {"accelerators": "H100:8", "use_spot": True}}, 2, False, "job.yaml")


TABLE = """\x1b[33mSome warning\x1b[0m
Considered resources (2 nodes):
------------------------------------------------------------------------
 INFRA             INSTANCE            vCPUs   Mem(GB)   GPUS     COST ($)   CHOSEN
------------------------------------------------------------------------
 RunPod (US)       1x_A100_SECURE      8       80        A100:1   3.38       \x1b[32m   ✔\x1b[0m
 AWS (us-east-1)   p4d.24xlarge[Spot]  96      1152      A100:8   21.57
 Slurm (loop)      -                   1       0         -        0.00
------------------------------------------------------------------------
"""


def test_optimizer_table_is_read_as_offers():
    found = price_table.read(TABLE, 2, "skypilot", 5.0)
    assert (found.chosen.offer_id, found.chosen.micro_usd_per_hour) == ("runpod/US/1x_A100_SECURE", 1_690_000)
    spot, own = found.alternatives
    assert (spot.spot, spot.instance_type, spot.num_gpus, spot.cpus) == (True, "p4d.24xlarge", 8, 96)
    assert (own.is_own, own.micro_usd_per_hour, own.gpu, own.region) == (True, 0, "", "loop")
    with pytest.raises(NoOffer, match="No resource satisfying"):
        price_table.read("No resource satisfying H100:9", 1, "skypilot", 5.0)


def printed(**parts):
    return REPORT + json.dumps(parts)


def test_output_of_a_job_returns_as_the_files_of_a_pod():
    progress = {"token": TOKEN, "run": "bert-1", "step": "run", "state": "running", "steps": [], "updated_at": 3.0}
    text = "\n".join(
        [
            "├── Waiting for task resources on 2 nodes.",
            "\x1b[36m(head, rank=0, pid=19603)\x1b[0m run | step 1",
            "\x1b[36m(worker1, rank=1, pid=7, ip=10.0.0.9)\x1b[0m run | other | words",
            "\x1b[36m(head, rank=0, pid=19603)\x1b[0m "
            f"{printed(progress=progress, guard={'token': TOKEN}, verdict={})}",
            f"(worker1, rank=1, pid=7, ip=10.0.0.9) {printed(progress={'token': TOKEN, 'step': 'wrong'})}",
        ]
    )
    log = job_view.read(text)
    assert log.steps == {
        "skypilot": "├── Waiting for task resources on 2 nodes.\n",
        "run": "step 1\n",
        "run.1": "other | words\n",
    }
    row = {"job_id": 4, "status": "RUNNING", "recovery_count": 1}
    found = job_view.words(row, log, TOKEN, "bert-1", 9.0)
    assert found["progress"] == {**progress, "recoveries": 1} and not found["verdict"] and found["guard"]["alive"]
    gone = job_view.words({**row, "status": "RECOVERING"}, log, TOKEN, "bert-1", 9.0)
    assert gone["progress"]["step"] == "SkyPilot: RECOVERING" and not gone["verdict"]
    strange = job_view.words(row, log, "sw1-other", "bert-1", 9.0)
    assert strange["progress"]["step"] == "" and strange["guard"] == {"token": "sw1-other", "alive": True}


@pytest.mark.parametrize(
    ("status", "told", "state", "reason"),
    [
        ("SUCCEEDED", "succeeded", "succeeded", "said"),
        ("FAILED", "limit", "limit", "said"),
        ("CANCELLED", "stopped", "stopped", "said"),
        ("SUCCEEDED", "", "succeeded", "SkyPilot: SUCCEEDED"),
        ("FAILED", "succeeded", "failed", "SkyPilot: FAILED why"),
        ("FAILED_NO_RESOURCE", "", "failed", "SkyPilot: FAILED_NO_RESOURCE why"),
        ("RUNNING", "stopped", "", ""),
    ],
)
def test_verdict_is_final_when_skypilot_reports_the_end_of_the_job(status, told, state, reason):
    verdict = {"token": TOKEN, "state": told, "reason": "said"}
    log = job_view.read(printed(verdict=verdict if told else {}))
    row = {"status": status, "failure_reason": "" if status == "SUCCEEDED" else "why"}
    found = job_view.words(row, log, TOKEN, "bert-1", 9.0)
    assert (found["verdict"].get("state", ""), found["verdict"].get("reason", "")) == (state, reason)


def test_settings_of_a_cloud_are_kept_as_written():
    config = {
        "gcp": {"enable_gpu_direct": True},
        "kubernetes": {
            "pod_config": {
                "spec": {
                    "containers": [
                        {
                            "resources": {
                                "limits": {"vpc.amazonaws.com/efa": 4},
                                "requests": {"vpc.amazonaws.com/efa": 4},
                            }
                        }
                    ]
                }
            }
        },
    }
    said = make_task(resources={"accelerators": "H100:8", "network_tier": "best", "disk_tier": "best"}, config=config)
    assert said["config"] == config
    assert {"network_tier": "best", "disk_tier": "best"}.items() <= said["resources"].items()


AS_WRITTEN = (
    {"image_id": "docker:ubuntu:22.04"},
    {"infra": "aws", "image_id": {"us-east-1": "ami-1"}},
    {"infra": "gcp", "accelerators": "tpu-v5e-8", "accelerator_args": {"runtime_version": "v2"}},
    {"accelerators": "H100:0.5"},
    {"any_of": [{"infra": "aws"}, {"infra": "kubernetes", "image_id": "docker:a"}]},
    {"gpus": "A10G:1", "memory": "16384MB"},
    {"infra": "a-cloud-of-tomorrow/there"},
)


@pytest.mark.parametrize("said", AS_WRITTEN, ids=range(len(AS_WRITTEN)))
def test_resources_reach_skypilot_as_written(said):
    keys, notes = task.overlaid(said, vars(MachineSpec()), Request(run="a"))
    assert (keys, notes) == (said, [])
    task.check({"resources": said}, 1, False, "job")
    more = {key: {"a": "b"} for key in ("volumes", "managed_secrets", "file_mounts", "api_server_access", "inputs")}
    assert {key: make_task(resources=said, **more)[key] for key in more} == more


def test_alternative_that_a_cloud_lacks_does_not_refuse_the_others():
    ways = {"any_of": [{"infra": "shadeform"}, {"infra": "aws"}], "use_spot": True}
    task.check({"resources": ways}, 1, False, "job")
    with pytest.raises(UsageError, match="no spot machines on shadeform"):
        task.check({"resources": {**ways, "any_of": ways["any_of"][:1]}}, 1, False, "job")


def test_flag_overrides_the_alias_of_its_key():
    typed, request = vars(MachineSpec(gpu="H100", num_gpus=8)), Request(run="a", gpu="H100", num_gpus=8)
    keys, _ = task.overlaid({"gpus": "A100:1", "memory": "8+"}, typed, request)
    assert keys == {"accelerators": "H100:8", "memory": "8+"}
