"""The nodes of a partition and requests for them; the output of squeue; requeued runs. No cluster is asked."""

import json
import math
from dataclasses import replace

import pytest

from infra.agent import state
from infra.agent.job import Job, Limits, NodeGroup, PodFolder
from infra.errors import AuthError, NoOffer, SlipwayError
from infra.records import Address, Offer, Request
from packs.slurm.agent import commands, queue, step
from packs.slurm.control.clusters import SlurmClusters
from packs.slurm.control.inventory import Queue, SlurmCluster
from packs.slurm.control.partitions import fit, gres_of, kinds_of, options_of, state_of

ROW = {"node": "n1", "partition": "gpu", "state": "mixed", "cpus": "64", "memory_mib": "500000", "time": "1-00:00:00",
       "gres": "gpu:h100:8(S:0-1)"}  # fmt: skip
TOKEN = "sw1-abcdefgh-0123456789abcdef"
ADDRESS = Address("ada", "login.example.org", 22, "/key", "/")
GPU_QUEUE = Queue(account="physics", qos="long", time_s=7200.0, options=("--constraint=ib",))
CLUSTER = SlurmCluster(name="fx", address=ADDRESS, partitions={"gpu": GPU_QUEUE, "cpu": Queue()})


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("gpu:a100:4(S:0-1)", (("a100", 4),)),
        ("gpu:4", (("", 4),)),
        ("gpu:h100:8,craynetwork:4,gpu:t4:1(IDX:0)", (("h100", 8), ("t4", 1))),
        ("(null)", ()),
        ("lustre:1", ()),
        ("gpu:h100", ()),
    ],
)
def test_gpus_of_a_gres_are_parsed(text, found):
    assert gres_of(text) == found


def test_unavailable_nodes_do_not_count():
    states = ["idle", "allocated", "mixed", "down*", "drained", "draining", "idle*", "maint", "idle~", "completing"]
    (kind,) = kinds_of([{**ROW, "state": one} for one in states])
    assert (kind.count, kind.up) == (10, 5)  # A node that is asleep (~) is woken on demand.


@pytest.mark.parametrize(
    ("asked", "problem", "gres"),
    [
        ({"gpu": "H100", "num_gpus": 8}, "", "h100"),
        ({"gpu": "A10G,H100", "num_gpus": 1}, "", "h100"),
        ({"num_gpus": 2}, "", "h100"),
        ({"gpu": "A100", "num_gpus": 1}, "the nodes have h100:8", ""),
        ({"gpu": "H100", "num_gpus": 9}, "the nodes have h100:8", ""),
        ({"cpus": 65}, "the nodes have 64 CPUs", ""),
        ({"memory_bytes": 10**12}, "the nodes have 524 GB of memory", ""),
        ({"nodes": 2}, "1 of 1 such nodes can get work; the request needs 2", ""),
        ({}, "", ""),
    ],
)
def test_request_fits_or_is_refused_with_the_reason(asked, problem, gres):
    assert fit(kinds_of([ROW])[0], Request(run="new", **asked)) == (problem, gres)


@pytest.mark.parametrize(
    ("gres", "asked", "found"),
    [
        ("gpu:a100_3g.20gb:4(S:0-1)", {"gpu": "A100", "num_gpus": 1}, ("the nodes have a100_3g.20gb:4", "")),
        ("gpu:a100_3g.20gb:4,gpu:a100:2", {"gpu": "A100", "num_gpus": 1}, ("", "a100")),
        ("gpu:a100_3g.20gb:4,gpu:a100:2", {"num_gpus": 1}, ("", "a100")),
        ("gpu:a100_3g.20gb:4,gpu:a100:2", {"gpu": "A100-MIG-3G.20GB", "num_gpus": 1}, ("", "a100_3g.20gb")),
        ("gpu:1g.10gb:7", {"num_gpus": 1}, ("", "1g.10gb")),
        ("gpu:h100_1g.10gb+me:7", {"gpu": "H100", "num_gpus": 1}, ("the nodes have h100_1g.10gb+me:7", "")),
    ],
)
def test_a_slice_is_given_only_for_a_slice_or_for_any_gpu(gres, asked, found):
    assert fit(kinds_of([{**ROW, "gres": gres}])[0], Request(run="new", **asked)) == found


def test_options_of_a_job_combine_its_request_and_its_partition():
    request = Request(run="new", num_gpus=2, gpu="H100", cpus=8, memory_bytes=64 * 10**9, nodes=2)
    offer = Offer(provider="slurm", offer_id="fx/gpu", instance_type="gpu", gpu="h100", num_gpus=2)
    common = [
        "--partition=gpu",
        "--account=physics",
        "--qos=long",
        "--gres=gpu:h100:2",
        "--cpus-per-task=8",
        "--mem=61036M",
    ]
    assert options_of(CLUSTER, request, offer, Limits()) == [*common, "--time=120", "--constraint=ib"]
    limited = options_of(CLUSTER, request, offer, Limits(time_s=3600.0))
    assert limited == [*common, "--time=65", "--constraint=ib"], "the guard's limit comes before Slurm's"
    endless = replace(CLUSTER, partitions={"gpu": replace(GPU_QUEUE, time_s=math.inf)})
    assert options_of(endless, request, offer, Limits()) == [*common, "--time=UNLIMITED", "--constraint=ib"]
    assert options_of(endless, request, offer, Limits(time_s=3600.0)) == limited
    bare = Offer(provider="slurm", offer_id="fx/cpu", instance_type="cpu")
    assert options_of(CLUSTER, Request(run="new"), bare, Limits()) == ["--partition=cpu"]


def test_rows_of_squeue_are_parsed_with_any_reason():
    said = f"12|PENDING|gpu|1|1:00||{TOKEN}|(ReqNodeNotAvail, a|b)\n9|RUNNING|gpu|2|3:00|n[1-2]|x|None\nodd\n"
    first, second = queue.rows(said, queue.JOB)
    assert state_of(first) == ("queued", "Slurm job 12 waits in gpu ((ReqNodeNotAvail, a|b))")
    assert state_of(second) == ("running", "Slurm job 9 on n[1-2]")
    assert state_of({}) == ("", "")


@pytest.mark.parametrize("over", ["COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "PREEMPTED"])
def test_job_ended_by_slurm_is_not_alive(over):
    assert not queue.lives({"state": over})
    assert queue.lives({"state": "COMPLETING"}), "its processes may be there still"
    assert queue.lives({"state": "REQUEUE_HOLD"})


class Login:
    """A scripted login node: the pods of the file system, and the jobs of the queue."""

    python, agent = "python3", "packs.slurm.agent"

    def __init__(self, pods=(), jobs=(), refusal="", deaf="", ended=()):
        self.pods, self.jobs, self.refusal, self.deaf, self.ended = list(pods), list(jobs), refusal, deaf, list(ended)
        self.asked, self.files = [], {}

    def run(self, words, *, stdin=None, timeout_s, cwd=None, env=None):
        from infra.transport.protocol import Result

        verb, *more = words[2:]
        self.asked.append((verb, *more))
        if self.deaf and verb in ("jobs", "partitions"):
            return Result(0, json.dumps({"unheard": self.deaf}), "")
        answers = {
            "pods": {"pods": self.pods},
            "jobs": {"jobs": self.jobs},
            "partitions": {"nodes": [ROW]},
            "ended": {"jobs": self.ended},
            "test": {"problem": self.refusal},
            "mark": {"folder": "/home/ada/.slipway/pods/new"},
        }
        return Result(0, json.dumps(answers[verb]), "")

    def put(self, content, path, mode=0o644):
        self.files[str(path)] = content


def job(name, number="12", state="RUNNING"):
    return {
        "job": number,
        "state": state,
        "partition": "gpu",
        "nodes": "1",
        "left": "",
        "at": "n1",
        "name": name,
        "reason": "None",
    }


def test_own_job_without_a_folder_is_listed_and_foreign_jobs_are_not():
    marker = {"run": "new", "token": TOKEN, "folder": "/home/ada/.slipway/pods/new"}
    other = TOKEN.replace("0", "9")
    login = Login([marker], [job(other, "9", "COMPLETED"), job(TOKEN), job(other, "13", "PENDING"), job("mine", "14")])
    found = SlurmClusters((CLUSTER,), lambda _: login).list()
    assert [(one.run, one.token, one.state, bool(one.address)) for one in found] == [
        ("new", TOKEN, "running", True),
        ("", other, "queued", False),
    ]


def test_end_of_a_job_is_read_from_squeue_and_later_from_the_accounting():
    marker = {"run": "new", "token": TOKEN, "folder": "/home/ada/.slipway/pods/new"}
    for login in (Login([marker], [job(TOKEN, state="TIMEOUT")]), Login([marker], ended=[job(TOKEN, state="TIMEOUT")])):
        (found,) = SlurmClusters((CLUSTER,), lambda _, login=login: login).list()
        assert (found.state, found.note) == ("", "Slurm job 12 has ended: TIMEOUT")
    asked = [words for words in login.asked if words[0] == "ended"]
    assert asked == [("ended", TOKEN)]


SACCT = """#!/bin/sh
printf '7|OUT_OF_MEMORY|sw1-a\\n9|CANCELLED by 1000|sw1-b\\n12|RUNNING|sw1-b\\n'
"""  # As sacct writes; the last line is a possible accounting entry of a removed job.


@pytest.mark.process
def test_accounting_reports_ends_and_never_a_live_job(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    (tmp_path / "sacct").write_text(SACCT)
    (tmp_path / "sacct").chmod(0o755)
    found = [(one["job"], one["state"], one["name"]) for one in queue.ended("sw1-a", "sw1-b")["jobs"]]
    assert found == [("7", "OUT_OF_MEMORY", "sw1-a"), ("9", "CANCELLED", "sw1-b")]
    (tmp_path / "sacct").write_text("#!/bin/sh\necho 'Slurm accounting storage is disabled' >&2; exit 1\n")
    assert queue.ended("sw1-a") == {"jobs": []}


def test_silent_queue_is_no_proof_of_absence():
    login = Login(deaf="slurm_load_jobs error: Unable to contact slurm controller (connect failure)")
    with pytest.raises(SlipwayError, match="Unable to contact slurm controller"):
        SlurmClusters((CLUSTER,), lambda _: login).find(f"{TOKEN}@fx")


def test_refusal_of_sbatch_is_an_unavailable_offer_and_leaves_no_files():
    login = Login(refusal="sbatch: error: Invalid account or account/partition combination specified")
    provider = SlurmClusters((CLUSTER,), lambda _: login)
    (offer,) = provider.offers(Request(run="new", gpu="H100", num_gpus=1))
    assert (offer.offer_id, offer.gpu, offer.num_gpus) == ("fx/gpu", "h100", 1)
    with pytest.raises(NoOffer, match="Invalid account"):
        provider.create(Request(run="new"), offer, TOKEN, Limits())
    assert "mark" not in [verb for verb, *_ in login.asked]
    login.refusal = ""
    pod = provider.create(Request(run="new"), offer, TOKEN, Limits())
    assert pod.pod_id == f"{TOKEN}@fx"
    options = json.loads(login.files["/home/ada/.slipway/pods/new/state/sbatch.json"])["options"]
    assert "--gres=gpu:h100:1" in options


def test_login_node_that_refuses_the_connection_is_named():
    def connect(_):
        raise AuthError("fx refuses this key")

    with pytest.raises(AuthError, match="no cluster has answered:\n  fx: fx refuses this key"):
        SlurmClusters((CLUSTER,), connect).offers(Request(run="new"))
    assert SlurmClusters.restarts_runs


def test_end_of_a_machine_is_a_stop_unless_an_engine_restarts_the_job(monkeypatch):
    monkeypatch.delenv(state.ENGINE, raising=False)
    assert state.machine_end_state() == "stopped"
    monkeypatch.setenv(state.ENGINE, "slurm")
    assert state.machine_end_state() == state.LEFT


def test_files_of_an_attempt_are_archived_and_a_stop_request_is_kept(tmp_path):
    pod, work = PodFolder(tmp_path), Job(run="a", token=TOKEN, steps=())
    clocks = {"boot_id": "x", "boot_s": 1.0, "wall_s": 1.0}
    state.write_json(state.report(pod, "guard"), {"token": TOKEN, "elapsed_s": 40.0, "clocks": clocks})
    state.ask_to_stop(pod, state.LEFT, "the machine is taken away", 60.0)
    step.tidy(pod, work)
    assert not state.stop_file(pod).exists()
    assert state.read_json(state.report(pod, "guard")) == {"token": TOKEN, "elapsed_s": 40.0, "clocks": None}
    state.ask_to_stop(pod, "stopped", "asked to stop", 60.0)
    step.tidy(pod, work)
    assert state.read_json(state.stop_file(pod))["state"] == "stopped"


def test_nodes_of_one_job_are_sibling_folders(tmp_path):
    group = NodeGroup(run="a", rank=2, addresses=("a", "a.1", "a.2"))
    folder = commands.node_folder(tmp_path / "a", 2)
    assert folder.root == tmp_path / "a.2"
    assert commands.leader_of(folder, Job(run="a.2", token=TOKEN, steps=(), group=group)).root == tmp_path / "a"
    assert "srun --nodes=3 --ntasks=3 --ntasks-per-node=1" in commands.script(PodFolder(tmp_path / "a"), 3)


def test_nodes_use_addresses_that_all_other_nodes_reach():
    said = [{"there": {"10.0.0.1": "eth0", "10.1.0.1": "ib0"}}, {"there": {"10.0.0.2": "eth0", "10.1.0.2": "ib0"}}]
    heard = [{"reached": {"1": ["10.1.0.2"]}}, {"reached": {"0": ["10.0.0.1", "10.1.0.1"]}}]
    assert step.choose(said, heard) == [("10.0.0.1", "eth0"), ("10.1.0.2", "ib0")]
    with pytest.raises(state.AgentError, match="node 1"):
        step.choose(said, [{"reached": {"1": []}}, heard[1]])
