"""Whole launches on rehearsed markets, per vendor: from the offer to the last bill, and every early end.

Clients, journal, hand-over, agent and uploader are real; pods are local processes. One world, one store and one user
serve all tests. Waiting runs in parallel: pods with a limit live in a separate world, from the first test
to the last.
"""

import contextlib
import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest

from infra.agent.process import identify
from infra.ledger.journal import Journal
from infra.market import gpus
from infra.rehearsal import attach
from tests.world import ROOT, World, until

pytestmark = [
    pytest.mark.process,
    pytest.mark.needs("sshd", "ssh-keygen"),  # For the machines of the market.
    pytest.mark.timeout(400),  # Guard against hangs, with eight other tests at work.
]
# Cheap machines: several with one GPU each, because a launch keeps one number of GPUs.
VENDORS = {"runpod": "L40S,A100-80GB", "lium": "RTX4090,RTX3090,RTX5090", "shadeform": "L40S,L40,A6000"}
ONE_THREAD = ("--env", "OMP_NUM_THREADS=1")  # See tests/world.py; a pod has only the variables of its job.
SPOT = {"runpod": "L40S", "lium": "A6000,RTX4090,L40S,H100"}
KEYS = {f"{name.upper()}_API_KEY": "" for name in VENDORS}
ENDED = ("limit", "stopped")  # stopped: the vendor was faster, and the last records had not reached the store.
DEAR = ("--gpu", "A100-80GB", "--num-gpus", "8")  # 11.04 USD/h at Shadeform: a dollar lasts 326 s.


class Rehearsed(World):
    """An installation with a separate rehearsal for all commands."""

    @property
    def base(self) -> Path:
        return attach.worlds_folder(self.folder / "state" / "journal.db")

    @property
    def world(self) -> attach.Running:
        return attach.find(self.base)

    @property
    def store(self) -> Path:
        return self.world.folder / "artifacts"

    def truth(self) -> dict:
        return self.world.truth()

    def calls(self, name: str) -> int:
        return sum(call["call"] == name for call in self.world.calls())

    def status(self) -> dict:
        """Return the rows of `status` by run."""
        return {row["run"]: row for row in self.json("status", "--rehearse")}

    def machines(self, run: str) -> list[dict]:
        """Return the true state of all machines rented for a run, oldest first."""
        ids = [pod["id"] for pod in self.json("cost", run, "--rehearse", "--offline")["pods"]]
        return [pod for pod in self.truth()["pods"] if pod["id"] in ids]

    def run_in_parallel(self, lines: dict[str, list[str]]) -> dict[str, subprocess.CompletedProcess]:
        """Run commands at the same time; return the result of each."""
        begun = {name: self.begin(*line, "--rehearse") for name, line in lines.items()}
        done = {}
        for name, process in begun.items():
            out, err = process.communicate(timeout=300)
            assert "Traceback" not in err, err
            done[name] = subprocess.CompletedProcess(lines[name], process.returncode, out, err)
        return done


def world_of(folder: Path, speed: float):
    user = Rehearsed(
        folder,
        {
            **KEYS,
            "SLIPWAY_BOOT_S": "600",
            "SLIPWAY_NOTIFY": f"""
        echo "$SLIPWAY_RUN $SLIPWAY_STATE $SLIPWAY_COST_USD" >> {folder}/notices""",
            "SLIPWAY_HOOK_HANGS": f"command echo $$ >> {folder}/hanging; [ -e {folder}/over ] || sleep 10000",
            "SLIPWAY_HOOK_TOLD": f'command echo "$SLIPWAY_STATE" >> {folder}/told',
        },
    )
    attach.start(user.base, speed=speed)
    yield user
    with contextlib.suppress(attach.NoWorld):
        user.inv("rehearse", "--stop")
    assert until(lambda: not user.processes(), "the end of everything")


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    yield from world_of(tmp_path_factory.mktemp("user"), 60)


@pytest.fixture
def user(shared):
    """Yield a user without injected faults and without live runs."""
    shared.world.send_command("/faults", {})
    yield shared
    shared.world.send_command("/faults", {})
    shared.inv("down", "--all", "--rehearse")
    assert shared.truth()["billing"] == shared.truth()["running"] == 0


@pytest.fixture
def slow(tmp_path):
    """Yield a user in a world with a slow clock, so that a dollar pays for real work."""
    yield from world_of(tmp_path, 8)


def line(vendor: str, *more: str, gpu: str = "") -> list[str]:
    """Return a launch with a separate name on the vendor."""
    name = more[more.index("--run-name") + 1]
    train = ("--phase", "base", "--tag", name, *ONE_THREAD)
    return ["launch", "--provider", vendor, "--gpu", gpu or VENDORS[vendor], *train, *more]


def weights(store: Path, folder: str) -> bytes:
    return next((store / folder / "hf").glob("*.safetensors")).read_bytes()


@dataclass(frozen=True)
class Filed:
    """Pods of three files, one per vendor, without a supervisor: until a dollar, an hour, or idle."""

    user: Rehearsed
    prices: dict[str, float]  # USD/h
    said: dict[str, subprocess.CompletedProcess]
    made: dict[str, dict]
    created: int


@pytest.fixture(scope="module")
def filed(tmp_path_factory):
    for user in world_of(tmp_path_factory.mktemp("filed"), 60):
        user.world.send_command("/faults", {"machines": [{"trait": "idle gpus", "count": None}]})
        prices = {
            name: float(
                user.json("offers", "--rehearse", "--provider", name, "--gpu", gpu)["offers"][0]["usd_per_hour"]
            )
            for name, gpu in VENDORS.items()
        }
        lines = {}
        for name, gpu in VENDORS.items():
            pod = {"provider": name, "gpu": gpu, "num_gpus": 0}
            path = user.folder / f"set-{name}.yaml"
            path.write_text(
                json.dumps(
                    {
                        "pods": [
                            {**pod, "name": f"dollar-{name}", "spend_limit": f"{prices[name] * 0.75:.2f}"},
                            {**pod, "name": f"hour-{name}", "ttl_hours": 0.75},
                            {**pod, "name": f"idle-{name}", "idle_stop_minutes": 20, "ttl_hours": 3},
                        ]
                    }
                )
            )
            lines[name] = ["apply", str(path), "--yes"]
        said = user.run_in_parallel(lines)
        made = {pod["run"]: pod for pod in user.json("pod.list", "--rehearse")}
        yield Filed(user, prices, said, made, user.calls("create"))


@pytest.mark.nightly
def test_apply_creates_the_pods_of_each_file(filed):
    """Runs first, so that the pods reach their ends during the other tests."""
    for one in filed.said.values():
        assert one.returncode == 0, one.stderr
    for name in VENDORS:
        assert [row.split()[:2] for row in filed.said[name].stdout.splitlines()[1:4]] == [
            ["+", f"{kind}-{name}"] for kind in ("dollar", "hour", "idle")
        ]
    names = {f"{kind}-{name}" for kind in ("dollar", "hour", "idle") for name in VENDORS}
    # A pod may have ended by now.
    assert filed.made.keys() <= names and all(pod["stays"] for pod in filed.made.values())
    assert filed.created == len(names)


@pytest.mark.nightly
def test_failed_offers_and_slow_boots_are_skipped_and_success_ends_the_run(user):
    user.world.send_command(
        "/faults",
        {
            "machines": [
                rule
                for vendor in VENDORS
                for rule in ({"trait": "ghost", "vendor": vendor}, {"trait": "hang", "vendor": vendor, "skip": 1})
            ]
        },
    )
    lines = {name: line(name, "--run-name", f"whole-{name}", "--spend-limit", "5", "--yes") for name in VENDORS}
    begun = {name: user.begin(*words, "--rehearse") for name, words in lines.items()}

    def at_work() -> list[dict]:
        rows = [row for row in user.status().values() if row["state"] == "running" and row["ssh"] and row["ends"]]
        return rows if {row["run"] for row in rows} == {f"whole-{name}" for name in VENDORS} else []

    for row in until(at_work, "work on all of them"):
        name, armed = row["provider"], " ".join(row["ends"])
        assert row["run"] == f"whole-{name}" and row["limit_usd"] == "5.00" and row["ssh"].startswith("ssh -i "), row
        assert float(row["usd_per_hour"]) > 0 and float(row["spent_usd"]) > 0, row
        own = name == "runpod" or f"{name}'s timer is armed" in armed or f"{name}'s spend limit is armed" in armed
        assert own and "guard alive" in armed, row
    seen = user.json("audit", "--rehearse")["machines"]
    assert {(one["provider"], one["whose"]) for one in seen} == {(name, "claimed") for name in VENDORS}
    for name, process in begun.items():
        _, err = process.communicate(timeout=300)
        assert process.returncode == 0, err
        assert "no address in time" in err and f"whole-{name} succeeded" in err, err
        assert "bits per byte" in user.inv("logs", f"whole-{name}", "--rehearse", "--file", "base")
        late, *slow, good = user.machines(f"whole-{name}")  # Slow: on a busy machine a second launch may be too late.
        assert late["active_at"] is None and good["ended_by"] in ("pod", "client"), (late, good)
        assert err.count("was given back") == 1 + len(slow), err
        paid = user.json("cost", f"whole-{name}", "--rehearse")
        assert float(paid["usd"]) * 1e6 >= good["billed_micro_usd"] > 0
        assert weights(user.store, f"base_checkpoints/whole-{name}")
    notices = dict(one.split()[:2] for one in (user.folder / "notices").read_text().splitlines())
    assert all(notices[f"whole-{name}"] == "succeeded" for name in VENDORS)
    assert not list((user.world.folder / "journal-keys").iterdir())  # The pods' keys were removed with the pods.
    words = line("runpod", "--run-name", "again", "--seed", "2", "--dry-run")  # The remaining names.
    err = user.run(*words, "--rehearse").stderr
    assert err.count("tried last: runpod") >= 2, err


@pytest.mark.nightly
def test_preempted_run_ends_with_the_parameters_of_an_undisturbed_run(user):
    """Test a vendor that keeps preempted machines, and a vendor with volumes that removes them."""
    user.world.send_command("/faults", {"preempt_at_work": dict.fromkeys(SPOT, 1)})
    more = {"runpod": [], "lium": ["--volume", "vol-rehearsal"]}
    words = ("--seed", "7", "--use-spot", "--spend-limit", "20", "--yes", "--json")
    calm = ("--phase", "base", "--tag", "calm", *ONE_THREAD, "--seed", "7", "--yes")
    local = user.begin("launch", "--provider", "local", *calm)
    done = user.run_in_parallel(
        {name: line(name, "--run-name", f"spot-{name}", *words, *more[name], gpu=gpu) for name, gpu in SPOT.items()}
    )
    for name, one in done.items():
        assert one.returncode == 0, one.stderr
        told = json.loads(one.stdout)
        assert told["state"] == "succeeded" and told["run"] == f"spot-{name}", one.stderr
        assert told["recoveries"] == user.status()[f"spot-{name}"]["recoveries"] == 1, one.stderr
        taken, last = user.machines(f"spot-{name}")
        assert taken["offer"] and last["ended_by"] in ("client", "pod")
    _, said = local.communicate(timeout=300)
    assert local.returncode == 0, said
    calm = weights(user.folder / "artifacts", "base_checkpoints/calm")
    assert {name: weights(user.store, f"base_checkpoints/spot-{name}") == calm for name in SPOT} == dict.fromkeys(
        SPOT, True
    )
    kept = user.world.folder / "volumes" / "lium" / "vol-rehearsal" / "slipway" / "spot-lium" / "work" / "runs" / "base"
    assert (kept / "metrics.jsonl").is_file()


@pytest.fixture
def waiting(user, request):
    """Return a run that was preempted while no offer existed, and the followed logs."""
    run = request.node.name.rpartition("_")[2]
    more = ("--run-name", run, "--steps", "400", "--use-spot", "--spend-limit", "20", "--yes", "--detach")
    user.inv(*line("runpod", *more), "--rehearse")
    until(lambda: user.status()[run]["in_store"], "a checkpoint in the store")
    (first,) = user.machines(run)
    follower = user.begin("logs", run, "--rehearse", "--follow")
    user.world.send_command("/sold-out", {"is": True})
    try:
        user.world.send_command("/preempt", {"id": first["id"]})
        # The run waits from the moment its pod is gone. The note names the missing machine after the first attempt.
        tried = "it could not go on at once: "
        row = until(lambda: tried in (row := user.status()[run])["note"] and row, "the first attempt")
        assert (row["state"], row["recoveries"]) == ("waiting", 0), row
        assert user.truth()["billing"] == 0
        yield run, follower
    finally:
        user.world.send_command("/sold-out", {"is": False})
        user.inv("down", run, "--rehearse")
        follower.communicate(timeout=60)


@pytest.mark.nightly
def test_run_that_waits_for_a_machine_can_be_ended_and_resumed(user, waiting):
    run, follower = waiting
    assert follower.stderr is not None and any(f"{run} waits for a machine: " in line for line in follower.stderr)
    user.inv("down", run, "--rehearse")
    assert user.status()[run]["state"] == "stopped"
    _, said = follower.communicate(timeout=60)
    assert f"{run} stopped" in said, said
    user.world.send_command("/sold-out", {"is": False})
    user.inv("resume", run, "--rehearse", "--detach", "--yes")
    assert user.status()[run]["state"] in ("running", "succeeded")


@pytest.mark.nightly
def test_waiting_run_takes_the_first_machine_after_its_supervisor_was_killed(user, waiting):
    run, _ = waiting
    os.kill(user.json("supervisor", "--rehearse")["pid"], signal.SIGKILL)
    assert user.status()[run]["state"] == "waiting"  # The next command starts a new supervisor.
    until(lambda: user.json("supervisor", "--rehearse")["runs"] == [run], "that it is kept")
    user.world.send_command("/sold-out", {"is": False})
    done = until(lambda: (row := user.status()[run])["state"] == "succeeded" and row, "its end", 300)
    assert done["recoveries"] == 1


@pytest.mark.nightly
def test_failed_work_ends_its_pod_or_keeps_it_on_request(user):
    corpus = user.folder / "corpus.jsonl"
    corpus.write_text('{"no_text": 1}\n')
    more = ("--source", str(corpus), "--spend-limit", "5", "--yes", "--on-failure")
    done = user.run_in_parallel(
        {
            f"{kind}-{name}": line(name, "--run-name", f"{kind}-{name}", *more, kind)
            for kind, name in (("keep", "lium"), *(("end", name) for name in VENDORS))
        }
    )
    for name, one in done.items():
        assert one.returncode == 1 and f"{name} failed" in one.stderr, one.stderr
        assert f"inv logs --rehearse {name} --errors" in one.stderr, one.stderr
    assert {pod["run"] for pod in user.json("pod.list", "--rehearse")} == {"keep-lium"}
    rows = user.status()
    assert all(rows[name]["state"] == "failed" for name in done)
    user.inv("down", "keep-lium", "--rehearse")
    assert user.json("pod.list", "--rehearse") == []


@pytest.mark.nightly
def test_offer_is_chosen_by_number_and_down_returns_after_the_vendor_ended_the_pod(user):
    said = typed(user, ["9\n", "x\n", "q\n"], "--provider", "shadeform", "--profile", "d20", "--phase", "base")
    assert said.count("Select instance [1-3] or 'q' to quit:") == 3 and "nothing was rented" in said
    before = user.calls("create")
    lines = [
        line(name, "--run-name", f"menu-{name}", "--detach", "--spend-limit", "5", "--steps", "5000")
        for name in VENDORS
    ]
    with ThreadPoolExecutor(len(lines)) as pool:
        said = "".join(pool.map(lambda words: typed(user, ["2\n"], *words[1:]), lines))
    assert all(f"inv down --rehearse menu-{name}" in said for name in VENDORS), said
    assert user.calls("create") == before + 3
    rows = user.status()
    for name in VENDORS:
        user.inv("logs", f"menu-{name}", "--rehearse")
        assert rows[f"menu-{name}"]["state"] == "running", rows[f"menu-{name}"]
        log = user.store / "logs" / f"menu-{name}" / "environment.log"
        until(log.exists, "an uploader at work")
    user.inv("down", "--all", "--rehearse")
    assert user.truth()["billing"] == user.truth()["running"] == 0
    rows = user.status()
    assert all(rows[f"menu-{name}"]["state"] == "stopped" for name in VENDORS)
    assert not list((user.world.folder / "journal-keys").iterdir())


@pytest.mark.nightly
def test_run_preempted_twice_has_the_same_parameters_and_notifies_once(user):
    words = ["rehearse", "--provider", "runpod", "--phase", "sft", "--use-spot", "--preempt", "2", "--yes", "--json"]
    told = json.loads(user.inv(*words, "--gpu", "H100", "--num-gpus", "1", "--notify", "hangs,told"))
    assert (told["launch"]["state"], told["launch"]["recoveries"]) == ("succeeded", 2)
    assert sorted((user.folder / "told").read_text().split()) == [*["preempted"] * 2, *["recovered"] * 2, "succeeded"]
    hung = [int(pid) for pid in (user.folder / "hanging").read_text().split()]
    assert len(hung) >= 5  # The hook may have been retried.
    until(lambda: not [pid for pid in hung[:5] if identify(pid)], "the end of hooks that hang")
    (user.folder / "over").touch()
    user.inv("launch", "--provider", "local", "--phase", "sft", "--yes")
    # An earlier test may have made the base model under a different name; the last model depends on both before.
    assert weights(user.store, "chatsft_checkpoints/tiny") == weights(
        user.folder / "artifacts", "chatsft_checkpoints/tiny"
    )


@pytest.mark.nightly  # The work done within the dollar depends on the load of the machine.
@pytest.mark.timeout(300)
def test_spend_limit_ends_a_run_with_a_dead_launcher_and_a_higher_limit_continues_it(slow):
    user = slow
    words = ["launch", "--rehearse", "--provider", "shadeform", *DEAR, "--phase", "mid", "--spend-limit", "1", "--yes"]
    launcher = user.begin(*words, "--set", "mid.steps=1000")  # More than any machine does for a dollar.
    assert launcher.stderr is not None
    seen = []
    while not seen or seen[-1] and "✓ tokens" not in seen[-1]:  # In the middle of the run.
        seen.append(launcher.stderr.readline())
    assert seen[-1], "".join(seen)
    os.killpg(launcher.pid, signal.SIGKILL)
    launcher.communicate()
    until(lambda: user.truth()["billing"] == 0, "an end")
    (pod,) = user.truth()["pods"]
    poll_usd = 11.04 * 60 / 3600
    assert pod["billed_micro_usd"] <= (1 + 2 * poll_usd) * 1e6  # Observed, and billed, by the minute.
    assert user.json("status", "--rehearse")[0]["state"] in ("lost", "waiting", *ENDED)  # Never at work.
    run = until(lambda: [row for row in user.json("status", "--rehearse") if row["state"] in ENDED], "an end")[0]
    folder = user.store / "logs" / run["run"]
    assert folder.is_dir()
    assert user.json("audit", "--rehearse")["machines"] == []
    refused = user.run("resume", run["run"], "--rehearse")
    said = refused.stderr
    assert refused.returncode == 5 and "--spend-limit" in said
    user.inv("resume", run["run"], "--rehearse", "--spend-limit", "20", "--yes")
    (row,) = user.json("status", "--rehearse")
    assert (row["run"], row["state"]) == (run["run"], "succeeded")
    log = (folder / "text.log").read_text()
    assert user.truth()["billing"] == 0 and log.count("documents") <= 1  # Finished steps are not repeated.


@pytest.mark.nightly
def test_dry_run_creates_no_pod_and_no_question_is_asked_without_a_terminal(user):
    unmade = ("--set", "base.seed=7")  # Earlier tests may have trained the usual model.
    before = user.calls("create")
    for name in ("runpod", "lium", "shadeform"):
        offers = user.json("offers", "--rehearse", "--provider", name)["offers"]  # Earlier tests may hold the cheapest.
        offers = [one for one in offers if one["gpu"] and gpus.is_for_training(one["gpu"])]
        kinds = "|".join({one["gpu"] for one in offers})  # The cheapest offer may be doubtful, and comes last.
        (note,) = (
            one
            for one in user.json("launch", "--rehearse", "--provider", name, *unmade, "--dry-run")["notes"]
            if one.startswith("machine: ")
        )
        said = rf"machine: 1 x ({kinds}) at 0\.\d+ USD/h; the price decides: the plan needs 1\.2 GB of memory on each"
        assert re.match(said, note), (said, note)
    one_gpu = ("--gpu", "H100", "--num-gpus", "1")
    short = user.run("launch", "--rehearse", *unmade, "--dry-run", *one_gpu, "--spend-limit", "0.01")
    said = short.stderr
    assert short.returncode == 2 and "before the work begins" in said and "0.17 USD" in said, said
    guide = ("launch", "--rehearse", "--provider", "shadeform", "--profile", "d20", "--phase", "base")
    refused = user.run(*guide)
    said = refused.stderr
    assert "recipe d20 names 8 x B200" in said and "Available B200 Instances" in said
    assert refused.returncode == 2 and "Pass --yes, or --cloud, --region and --instance-type" in said
    assert "hyperstack" in said and said.index("33.60") < said.index("35.84") < said.index("38.40")
    alone = user.run(*guide, "--gpu", "H100", "--dry-run")
    said = alone.stderr
    assert alone.returncode == 0 and "machine: 8 x H100-SXM at 31.92 USD/h; recipe d20 names 8 GPUs" in said, said
    open_pod = user.run("pod.create", "--rehearse", "--dry-run")
    said = open_pod.stderr
    assert open_pod.returncode == 2 and "no machine is specified, and no work implies a machine" in said, said
    held = user.run("launch", "--rehearse", "--provider", "lium", *unmade, "--deploy-only", "--dry-run")
    said = held.stderr
    assert held.returncode == 0 and re.search(r"machine: 1 x \S+ at 0\.\d+ USD/h", said), said
    large = user.begin(
        "launch",
        "--rehearse",
        "--provider",
        "lium",
        "--profile",
        "qwen3_4b",
        "--phase",
        "base",
        "--gpu",
        "RTX4090",
        "--num-gpus",
        "1",
        "--dry-run",
    )
    _, said = large.communicate(timeout=60)
    assert large.returncode == 2 and "The smallest change: --gpu RTXPRO6000 (1 x RTXPRO6000, 1.29 USD/h)" in said, said
    assert user.calls("create") == before


@pytest.mark.nightly
@pytest.mark.pack("control_host")
def test_question_lists_the_ends_of_a_finished_pod_and_dry_runs_change_no_state(user):
    before = user.calls("create")
    words = ("--phase", "base", "--steps", "33", "--run-name", "itself", "--spend-limit", "5", "--detach")
    said = typed(user, ["c\n"], "--provider", "lium", *words)
    assert "./inv control.up HOST" in said and "--detach --control HOST" in said and "nothing was rented" in said
    said = typed(user, ["s\n", "q\n"], "--provider", "lium", *words)
    assert said.count("'s': ") == said.count("'c': ") == 1, "once it is chosen, it is not offered again"
    assert "--self-end: the pod deletes itself" in said and "nothing was rented" in said
    said = typed(user, ["q\n"], "--provider", "runpod", *words)
    assert "'s': " not in said, "its pods delete themselves"
    for line_of in (("launch", "--provider", "lium", "--yes", *words), ("down", "--all"), ("status",)):
        process = user.run("--dry", *line_of, "--rehearse")
        said = process.stderr
        assert process.returncode == 0
        assert ("dry run: nothing was started" if line_of[0] == "launch" else f"{line_of[0]} has no --dry-run") in said
    assert user.calls("create") == before
    said = typed(user, ["s\n", "1\n", "y\n"], "--provider", "shadeform", *words)
    assert "the key of your whole Shadeform account" in said and user.calls("create") == before + 1
    with Journal.open(user.world.folder / attach.JOURNAL) as journal:
        (op,) = (op for op in journal.ops() if op.run == "itself")
    assert op.read_job().self_end and json.loads(op.asked)["meant"]["self_end"] is True
    user.inv("down", "itself", "--rehearse")


@pytest.mark.nightly
def test_pods_of_files_end_at_their_dollar_their_hour_and_when_idle(filed):
    """The vendor or the pod itself ends the pod; a later command only records the end."""
    user = filed.user
    until(lambda: not user.json("pod.list", "--rehearse"), "their ends")
    rows, truth = user.status(), {pod["id"]: pod for pod in user.truth()["pods"]}
    costs = {row["run"]: row for row in user.json("cost", "--rehearse")["pods"]}
    for name in VENDORS:
        for kind in ("dollar", "hour", "idle"):
            # The pod left no record.
            known = ("limit", "stopped") if (kind, name) == ("idle", "runpod") else ("limit",)
            assert rows[f"{kind}-{name}"]["state"] in known, rows[f"{kind}-{name}"]
            pod = truth[costs[f"{kind}-{name}"]["id"]]
            assert pod["micro_usd_per_hour"] == 0 and pod["ended_by"], pod
        paid = costs[f"dollar-{name}"]
        limit_s = 3600 * 0.75 * filed.prices[name] / float(paid["usd_per_hour"])
        # The timer in RunPod's container is due at most two minutes of the vendor's clock after the limit, and reads a
        # clock of whole real seconds, of which each is a minute of the vendor's clock here.
        late_s = {"runpod": 120 + 2 * 60, "shadeform": 180}
        most_s = limit_s + late_s[name] if name in late_s else 3660  # Lium's timer knows only whole hours.
        assert truth[paid["id"]]["billed_micro_usd"] <= most_s * float(paid["usd_per_hour"]) / 3600 * 1e6, paid
    assert user.calls("create") == filed.created
    assert user.json("audit", "--rehearse")["machines"] == []


def typed(user: Rehearsed, answers: list[str], *words: str) -> str:
    """Return the output of `inv launch` on a terminal with these typed answers."""
    controller, terminal = pty.openpty()
    line = [sys.executable, "-m", "invoke", "launch", "--rehearse", *words]
    process = subprocess.Popen(
        line, cwd=ROOT, env=user.environ, stdin=terminal, stdout=terminal, stderr=terminal, start_new_session=True
    )
    os.close(terminal)
    said, deadline, rest = "", time.monotonic() + 120, list(answers)
    while time.monotonic() < deadline:
        if select.select([controller], [], [], 0.2)[0]:
            try:
                said += os.read(controller, 65536).decode(errors="replace")
            except OSError:  # The other end was closed.
                break
        if rest and said.count("to quit: ") + said.count("[y/N] ") > len(answers) - len(rest):
            os.write(controller, rest.pop(0).encode())
    os.close(controller)
    assert process.wait(60) == 0, said
    return said


def test_supervisor_ends_the_machine_rented_by_a_killed_launch(user):
    """The pod was not handed over yet, so no run continues, and the vendor's own limit is hours away."""
    process = user.begin(
        *line("lium", "--run-name", "halfway", "--seed", "9", "--spend-limit", "5", "--yes"), "--rehearse"
    )
    until(lambda: user.truth()["billing"], "a machine")
    process.kill()
    process.communicate()
    assert user.json("supervisor", "--rehearse")["state"] == "running"
    until(lambda: not user.truth()["billing"], "its end, which nobody has typed")
    until(lambda: user.json("supervisor", "--rehearse")["state"] == "not needed", "the end of the supervisor")
    assert user.status()["halfway"]["state"] == "stopped"


@pytest.mark.nightly  # A minute; tests/infra/runs/test_pod_keeper.py covers the decisions.
def test_preempted_pod_of_a_set_returns_until_it_is_ended(user, tmp_path):
    """The next command restarts the killed supervisor; a changed key does not cause a second pod."""
    file = tmp_path / "desk.yaml"
    desk = "{name: desk, provider: lium, gpu_type: RTX4090, gpu_count: 1, ttl_hours: 8, recover: %s}"
    for recovers in ("false", "true"):
        file.write_text(f"set: desks\npods: [{desk % recovers}]\n")
        said = user.run("apply", str(file), "--rehearse", "--yes").stderr
        assert ("a new pod takes the place of a pod that the vendor takes away" in said) == (recovers == "true"), said
    (first,) = user.machines("desk")
    until(lambda: user.json("supervisor", "--rehearse")["runs"] == ["desk"], "that it is kept")
    os.kill(user.json("supervisor", "--rehearse")["pid"], signal.SIGKILL)
    user.world.send_command("/preempt", {"id": first["id"]})
    back = until(lambda: (row := user.status()["desk"])["recoveries"] and row["state"] == "idle" and row, "it back")
    first, second = user.machines("desk")
    assert first["ended_by"] == "preempted" and second["state"] == "running"
    assert back["limit_in_s"] < 8 * 3600 - 60  # Within the limit of the first.
    assert [one["action"] for one in user.json("apply", str(file), "--rehearse")["steps"]] == ["keep"]
    user.inv("down", "desk", "--rehearse")
    until(lambda: user.json("supervisor", "--rehearse")["state"] == "not needed", "the end of the supervisor")
    assert len(user.machines("desk")) == 2 and user.status()["desk"]["state"] == "stopped"
