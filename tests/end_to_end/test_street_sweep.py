"""Several pods at once, each with a sequence of runs: on this machine, and on two machines over SSH."""

import json
import signal
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from infra.agent.environments import cache_folder
from infra.rehearsal import attach
from store import packs
from tests.end_to_end.test_street_market import VENDORS, Rehearsed
from tests.loopback import loopback
from tests.world import ONE_THREAD, World, until

# Timeout for several simultaneous trainings on any number of cores.
pytestmark = [pytest.mark.pack("sweeps"), pytest.mark.process, pytest.mark.timeout(300)]


@pytest.fixture
def world(tmp_path):
    one = World(tmp_path, dict(ONE_THREAD))
    yield one
    one.inv("down", "--all")


def write(world: World, names: str) -> str:
    runs = [{"name": name, "seed": number} for number, name in enumerate(names)]
    path = world.folder / "runs.yaml"
    path.write_text(json.dumps({"each": {"profile": "tiny", "phase": "base"}, "runs": runs}))
    return str(path)


def spans(lanes: list[list[str]], pods: dict[str, Path]) -> list[list[tuple[float, float]]]:
    """Return the start and the end of each run of each lane."""

    def span(run: str) -> tuple[float, float]:
        state = pods[run] / run / "state"
        steps = json.loads((state / "progress.json").read_text())["steps"]
        return steps[0]["started_at"], json.loads((state / "verdict.json").read_text())["at"]

    return [[span(run) for run in lane] for lane in lanes]


def check(lanes: list[list[tuple[float, float]]]) -> None:
    """Check that each lane runs one run at a time, and that all lanes run at once."""
    for lane in map(sorted, lanes):
        assert all(one[1] <= two[0] for one, two in zip(lane, lane[1:], strict=False)), lanes
    every = [one for lane in lanes for one in lane]
    most = max(sum(began <= at < ended for began, ended in every) for at, _ in every)
    assert most == len(lanes), lanes


def runs_by_pod(runs: list[dict]) -> list[list[str]]:
    """Return the finished runs of each pod, in order."""
    return [[one["run"] for one in runs if one["pod"] == pod] for pod in dict.fromkeys(one["pod"] for one in runs)]


def lanes_in(plan: dict) -> list[list[str]]:
    return [lane["runs"] for lane in plan["lanes"]]


@pytest.mark.nightly
def test_three_local_pods_run_four_trainings_and_a_second_sweep_has_no_work(world):
    file = write(world, "abcd")  # The test of two machines below has two runs in each lane.
    lanes = lanes_in(world.json("sweep", file, "--pods", "3", "--dry-run"))
    assert lanes == [["runs.a", "runs.d"], ["runs.b"], ["runs.c"]]
    done = world.json("sweep", file, "--pods", "3")["runs"]
    assert [one["state"] for one in done] == ["succeeded"] * 4
    assert len({one["score"] for one in done}) == 4
    check(spans(runs_by_pod(done), dict.fromkeys((one["run"] for one in done), world.folder / "pods")))
    again = world.json("sweep", file, "--pods", "9")
    assert {one["state"] for one in again["runs"]} == {"succeeded"}
    assert len(world.json("status")) == 4, "no run was begun a second time"
    assert again["idle_pods"] == 5
    assert [one["score"] for one in again["runs"]] == [one["score"] for one in done]
    first = json.loads((world.folder / "sweeps" / "runs" / "runs.b.jsonl").read_text().splitlines()[0])
    assert (first["config"]["seed"], first["config"]["steps"]) == (1, 12), "what was asked for has arrived"
    if "page" in packs.installed():
        page = (world.folder / "sweeps" / "runs" / "page.html").read_text()
        assert all(f'"curves runs.{arm} base step"' in page for arm in "abcd") and "--seed=" in page
    else:
        assert not (world.folder / "sweeps" / "runs" / "page.html").exists()
    best = min(done, key=lambda one: one["score"])["run"]
    kept = world.json("sweep", "runs", "--promote", best.replace(".", "/"), "--tag", "chosen")["artifact"]
    assert kept == "base_checkpoints/chosen" and kept in {one["name"] for one in world.json("ckpt.list")}


@pytest.mark.nightly
def test_failed_run_stops_no_other_run_and_an_interrupted_sweep_continues(world, stock):
    world.take(stock)
    corpus = world.folder / "corpus.jsonl"
    corpus.write_text('{"no_text": 1}\n')
    runs = [
        {"name": "short", "ttl": "1s", "steps": 999},
        {"name": "long", "steps": 60},
        {"name": "after", "seed": 3},
        {"name": "broken", "source": str(corpus)},
    ]
    path = world.folder / "runs.yaml"
    path.write_text(json.dumps({"pods": 1, "each": {"profile": "tiny", "phase": "base"}, "runs": runs}))
    sweep = world.begin("sweep", str(path))
    steps = world.folder / "pods" / "runs.long" / "work" / "runs" / "base" / "metrics.jsonl"
    until(lambda: steps.exists() and steps.stat().st_size, "the second one")
    sweep.send_signal(signal.SIGINT)
    _, err = sweep.communicate(timeout=60)
    assert sweep.returncode == 130 and "start the remaining runs" in err.lower(), err
    assert {one["run"] for one in world.json("status")} == {"runs.short", "runs.long"}
    done = world.json("sweep", str(path), code=1)["runs"]
    states = {one["run"]: one["state"] for one in done}
    wanted = {"short": "limit", "long": "succeeded", "after": "succeeded", "broken": "failed"}
    assert states == {f"runs.{name}": state for name, state in wanted.items()}
    reason = next(one["reason"] for one in done if one["run"] == "runs.broken")
    assert "no_text" in reason, reason


@pytest.mark.nightly
def test_two_machines_run_two_trainings_each(world, tmp_path):
    with ExitStack() as stack:
        there = f"SLIPWAY_ENVIRONMENTS={cache_folder.default_cache()}"
        hosts = [stack.enter_context(loopback(tmp_path / name, there)) for name in ("one", "two")]
        python = getattr(sys, "_base_executable", sys.executable)
        machines = [
            {"ip": host.address.host, "port": host.address.port, "identity_file": host.address.key, "python": python}
            for host in hosts
        ]
        user = hosts[0].address.user
        (tmp_path / "pools.yaml").write_text(json.dumps({"box": {"user": user, "hosts": machines}}))
        world.extra.update(SLIPWAY_POOLS=str(tmp_path / "pools.yaml"), SLIPWAY_ACCEPT_FREE_GB="1")
        file = write(world, "abcd")
        plan = world.json("sweep", file, "--provider", "ssh", "--dry-run")
        assert lanes_in(plan) == [["runs.a", "runs.c"], ["runs.b", "runs.d"]]
        done = world.json("sweep", file, "--provider", "ssh")["runs"]
        assert [one["state"] for one in done] == ["succeeded"] * 4, done
        homes = {f"box/127.0.0.1:{host.address.port}": host.folder / ".slipway" / "pods" for host in hosts}
        check(spans(runs_by_pod(done), {one["run"]: homes[one["pod"]] for one in done}))
        world.inv("down", "--all")


@pytest.mark.day_cases(3)
@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("runs: []", "with at least one run"),
        ("runs: [{name: a}]\nruns: [{name: b}]", "is given twice"),
        ("runs: [{name: a, sed: 1}]", "unknown key 'sed'"),
        ("runs: [{name: a, seed: one}]", "seed is 'one'"),
        ("runs: [{name: a}, {name: a}]", "two runs have the name a"),
        ("runs: [{seed: 1}]", "name is missing"),
        ("pods: 0\nruns: [{name: a}]", "pods is 0"),
        (
            "runs: [{name: a, tag: t, phase: base}, {name: b, tag: t, seed: 5, phase: base}]",
            "give the runs different tags",
        ),
        ("runs: [{name: a, phase: bas}]", "trial runs.a: unknown phase 'bas'"),
    ],
)
def test_invalid_file_is_refused_with_the_place(tmp_path, text, told):
    (tmp_path / "runs.yaml").write_text(text)
    sweep = World(tmp_path).run("sweep", str(tmp_path / "runs.yaml"))
    out, err = sweep.stdout, sweep.stderr
    assert (sweep.returncode, out) == (2, "") and told in err, err


@pytest.fixture
def renter(tmp_path):
    """Return a user with keys, a file of two runs, and a rehearsal."""
    user = Rehearsed(tmp_path, {f"{name.upper()}_API_KEY": "a-key" for name in VENDORS})
    each = {"profile": "tiny", "phase": "base", "gpu": "L40S", "spend_limit": "7.50"}
    runs = [{"name": "a", "steps": 2}, {"name": "b", "steps": 3}]
    (tmp_path / "runs.yaml").write_text(json.dumps({"each": each, "runs": runs}))
    attach.start(user.base, speed=60)
    yield user, str(tmp_path / "runs.yaml")
    attach.stop(user.base)


@pytest.mark.nightly
@pytest.mark.pack("bits")
def test_sweep_with_a_key_shows_its_cost_and_asks_before_renting(renter):
    user, path = renter
    out_of_reach = user.json("sweep", path, "--yes", code=2)["error"]  # The store is a folder of this machine.
    assert "trial runs.a: artifacts would go to" in out_of_reach and "nothing was rented" in out_of_reach
    here = user.json("sweep", "examples/sweeps/runs.yaml", "--provider", "local", "--dry-run")
    assert len(here["runs"]) == 3 and {one["most_usd"] for one in here["runs"]} == {"0.00"}
    said = user.run("sweep", "ablation_haar", "--provider", "local", "--dry-run").stderr
    assert (
        "this machine runs the toy version, ablation_haar_toy" in said and "toy of ablation_haar, 4M parameters" in said
    ), said
    assert "4,462,848 parameters; steps of the first run: base 144, bits1 0, bits1.9 48, bits2 96" in said, said
    refused = user.run("sweep", path, "--rehearse")
    err = refused.stderr
    assert refused.returncode == 2 and "15.00 USD in all at most" in err and "Pass --yes" in err, err
    planned = user.json("sweep", path, "--rehearse", "--dry-run")
    assert [one["most_usd"] for one in planned["runs"]] == ["7.50", "7.50"]
    each = {"profile": "tiny", "phase": "base"}  # Neither a machine nor a limit.
    (user.folder / "open.yaml").write_text(
        json.dumps({"each": each, "runs": [{"name": "a", "steps": 2}, {"name": "b", "steps": 3}]})
    )
    for more, machine in (
        ((), "open.a and 1 other run: machine: 1 x RTX4090 at 0.28 USD/h"),
        (("--pack", "2"), "each run: machine: 1 x RTX4090 at 0.342 USD/h"),
    ):
        planning = user.run("sweep", str(user.folder / "open.yaml"), "--rehearse", "--dry-run", *more)
        err = planning.stderr
        assert planning.returncode == 0 and machine in err, err
        assert "all runs together: neither --ttl nor --spend-limit is given: the limit is " in err, err
        assert 5 <= float(err.partition("the limit is ")[2].partition(" USD")[0]) < 50 and "based on a table" in err
    assert user.truth()["pods"] == []


@pytest.fixture
def keyless_user(tmp_path):
    """Return a user without a key, and a rehearsal."""
    user = Rehearsed(tmp_path, {f"{name.upper()}_API_KEY": "" for name in VENDORS} | ONE_THREAD)
    attach.start(user.base, speed=20)
    yield user
    attach.stop(user.base)


@pytest.mark.nightly  # In daily runs tests/packs/sweeps/test_sweep_specs.py covers the toy recipes and their machines.
def test_named_sweep_of_large_models_is_rehearsed_with_toys_on_the_requested_machines(keyless_user):
    planning = keyless_user.run("sweep", "lr_sweep", "--rehearse", "--dry-run")
    out, err = planning.stdout, planning.stderr
    said = out + err
    assert planning.returncode == 0 and "rl 100 steps of Qwen/Qwen2.5-1.5B-Instruct on gsm8k, 512 answers" in said, said
    assert (
        "rl 12 steps of a model of 147,904 parameters on sort" in said and "8 A100-80GB-SXM at lium, 9.60 USD/h" in said
    )
    assert (
        "vLLM answers on GPU 1,2,3,4 of a pod: 1 process, each with the model over 4 GPUs (tensor parallel) and 0.9"
        in said
    ), said
    assert "28.80 USD" in said and "cost of all runs together: 115.20 USD" in said, said
    assert "dry run: nothing was rented, and no run was started" in said and keyless_user.truth()["pods"] == []
    done = keyless_user.json("sweep", "custom_advanced", "--rehearse", "--yes")["runs"]
    assert [(one["state"], one["steps"], one["pod"]) for one in done] == [("succeeded", 12, "advanced-pod")]
    truth = keyless_user.truth()
    assert truth["billing"] == 0 and [pod["offer"].partition("/")[0] for pod in truth["pods"]] == ["lium"], truth


@pytest.mark.pack("bits")
@pytest.mark.pack("trackers")
def test_plan_of_an_ablation_names_model_cost_and_tracking_project(keyless_user):
    planning = keyless_user.run("sweep", "ablation_haar", "--rehearse", "--dry-run")
    out, err = planning.stdout, planning.stderr
    said = " ".join((out + err).split())
    assert planning.returncode == 0 and "bits1.9 2,000, bits2 1,000 steps of HuggingFaceTB/SmolLM2-135M" in said, said
    assert "2 runs, a machine each, 8 GPU-hours (4 to 6 h each): " in said and " a run" in said, said
    assert "cost of all runs together: " in said and "W&B project wrinklefree-ablation" in said, said
    planned = keyless_user.json("sweep", "ablation_haar", "--rehearse", "--dry-run")["runs"]
    assert all(0 < float(one["usd"][0]) < float(one["usd"][1]) for one in planned), planned
    assert {one["toy_of"] for one in planned} == {
        "bits1 0, bits1.9 2,000, bits2 1,000 steps of HuggingFaceTB/SmolLM2-135M"
    }


@pytest.mark.nightly
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "name", ["lr_sweep", "multi_dataset", "model_size", "batch_grid", "ablation_haar", "ablation_saliency"]
)
def test_every_named_sweep_finishes_in_a_rehearsal(keyless_user, name):
    sweep = keyless_user.run("sweep", name, "--rehearse", "--yes", "--json", timeout_s=800)
    out, err = sweep.stdout, sweep.stderr
    assert sweep.returncode == 0, err
    done = json.loads(out)["runs"]
    assert {one["state"] for one in done} == {"succeeded"} and keyless_user.truth()["billing"] == 0
    if name == "lr_sweep":  # In turn on each pod.
        assert [one["pod"] for one in done] == ["lr-pod-0", "lr-pod-0", "lr-pod-1", "lr-pod-1"]


@pytest.mark.nightly
def test_one_limit_covers_all_runs_and_the_remainder_goes_to_the_next(renter):
    user, path = renter
    done = user.json("sweep", path, "--rehearse", "--yes", "--pods", "2", "--spend-limit", "12")
    assert [one["state"] for one in done["runs"]] == ["succeeded"] * 2, (
        "one after the other: 7.50 is set aside for each"
    )
    assert 0 < float(done["usd"]) <= 12


@pytest.mark.nightly
def test_trailing_arm_is_stopped_and_the_best_arm_is_found(world):
    each = {"profile": "tiny", "phase": "base", "steps": 120, "base.schedule.warmup_steps": 2}
    axes = {"base.optimizer.muon_lr": [0.02, 1e-5, 2e-5]}
    document = {"each": each, "axes": axes, "seeds": [1, 2], "early_stop": True}
    path = world.folder / "early.yaml"
    path.write_text(json.dumps(document))
    done = world.json("sweep", str(path))
    states = [one["state"] for one in done["runs"]]
    assert set(states) <= {"succeeded", "stopped early", "not begun"} and states.count("stopped early") >= 1
    assert done["arms"][0]["arm"] == "muon_lr-0.02" and len(done["arms"][0]["scores"]) == 2
    assert done["saved_s"] > 0


@pytest.mark.nightly
def test_sweep_over_a_market_rents_one_pod_per_run_and_leaves_none(renter):
    user, path = renter
    done = user.json("sweep", path, "--rehearse", "--yes")["runs"]
    assert [one["state"] for one in done] == ["succeeded"] * 2
    truth = user.truth()
    assert (len(truth["pods"]), truth["billing"]) == (2, 0)


@pytest.mark.nightly
def test_preempted_trial_continues_and_the_sweep_reports_it(renter, tmp_path):
    user, _ = renter
    user.world.send_command("/faults", {"preempt_at_work": {"lium": 1}})
    each = {"profile": "tiny", "phase": "base", "gpu": "RTX4090", "num_gpus": 2, "use_spot": True}
    (tmp_path / "taken.yaml").write_text(json.dumps({"each": each, "runs": [{"name": "a"}]}))
    words = ["sweep", str(tmp_path / "taken.yaml"), "--provider", "lium", "--spend-limit", "30"]
    sweep = user.run(*words, "--rehearse", "--yes", "--json")
    out, err = sweep.stdout, sweep.stderr
    assert sweep.returncode == 0 and json.loads(out)["runs"][0]["state"] == "succeeded", err
    assert "taken/a was resumed after the loss of the pod (1 time so far)" in err, err


@pytest.mark.nightly
def test_trials_wait_for_the_only_machine_of_a_market(renter, tmp_path):
    user, _ = renter
    each = {"profile": "tiny", "phase": "base", "gpu": "RTX4090", "num_gpus": 2, "use_spot": True}
    (tmp_path / "one.yaml").write_text(
        json.dumps({"each": each, "runs": [{"name": f"r{n}", "seed": n} for n in (1, 2, 3)]})
    )
    words = ["sweep", str(tmp_path / "one.yaml"), "--provider", "lium", "--pods", "2", "--spend-limit", "30"]
    done = user.json(*words, "--rehearse", "--yes")["runs"]
    assert [one["state"] for one in done] == ["succeeded"] * 3
    assert user.truth()["billing"] == 0 and len({pod["offer"] for pod in user.truth()["pods"]}) == 1
