"""A run with a killed pod and a lost disk continues elsewhere from the uploader's uploads in the store."""

import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from infra.agent.job import Job, Limits, Step
from infra.agent.process import end_all
from infra.runs.sync.sync_step import with_uploader
from store.run_sync.run_folder import RunFolder, by_folder
from tests.infra.agent.world import World, module, names, until
from tests.programs import source
from tests.trainer import conftest as trainer
from tests.world import ROOT
from trainer.config import CheckpointOptions

pytestmark = pytest.mark.process

RUN = "brave-otter-1"
COUNT = source("chain")


def chain(name: str) -> str:
    """Return the result of an undisturbed count."""
    found = name
    for done in range(1, 21):
        found = hashlib.sha256(f"{found} {done}".encode()).hexdigest()
    return found


class Pods:
    """Pods of one run, one after the other, over one store."""

    def __init__(self, root: Path) -> None:
        self.root, self.store = root, root / "store"
        self.worlds: list[World] = []

    def new(self, *steps: Step, every_s: float = 0.2, **more: Any) -> World:
        world = World(self.root / f"pod{len(self.worlds)}")
        self.worlds.append(world)
        for floor in ("store", "data", "trainer"):
            shutil.copytree(ROOT / floor, world.pod.code / floor, ignore=shutil.ignore_patterns("__pycache__"))
        world.program("count", COUNT)
        world.job(*steps, **more)
        plain = Job.from_json(world.pod.job.read_text())
        assert with_uploader(plain, str(self.store), RUN) == plain  # The pod has no environment of an uploader.
        trains = replace(plain, steps=tuple(replace(step, environment="train") for step in plain.steps))
        job = with_uploader(trains, str(self.store), RUN)
        assert with_uploader(job, "elsewhere", RUN) == job
        assert job.beside is not None
        carry = replace(job.beside, environment="", config={**job.beside.config, "every_s": every_s})
        fetch = replace(job.steps[0], environment="")  # This interpreter has all imports of the uploader.
        world.pod.job.write_text(replace(job, steps=(fetch, *plain.steps), beside=carry).to_json())
        return world

    def lose(self, world: World) -> None:
        """Kill every process of the pod at once, and remove the disk."""
        end_all(world.token, 0.0)
        assert not world.members()
        shutil.rmtree(world.pod.root)

    @property
    def folder(self) -> RunFolder:
        return RunFolder(str(self.store), RUN)

    def there(self, name: str) -> str:
        return self.folder.read(name).decode()


def acknowledged(world: World) -> dict[str, float]:
    path = world.pod.acknowledged
    return json.loads(path.read_text()) if path.exists() else {}


@pytest.fixture
def pods(tmp_path: Path) -> Iterator[Pods]:
    one = Pods(tmp_path)
    yield one
    for world in one.worlds:
        world.end()


def counting(pods: Pods, name: str, hold: int = 0, store: str = "store") -> Step:
    making = {"store": str(pods.root / store), "name": name, "fingerprint": f"print-{name}", "inputs": {}}
    return Step(name, ("-m", "count"), config={"making": making, "hold": hold})


def test_run_killed_with_its_pod_continues_from_the_store_to_the_same_result(pods):
    steps = (counting(pods, "first"), counting(pods, "second", hold=12))
    one = pods.new(*steps)
    one.start()
    newest = "work/checkpoints/second-f00d/step-000000010"
    until(lambda: {newest, "state/marks/first.json"} <= acknowledged(one).keys(), "half of it is in the store")
    until(lambda: one.progress()["in_store"].get("second-f00d/step-000000010"), "status knows it")
    until(lambda: "second from 0" in pods.there("logs/second.log"), "its log is there")
    pods.lose(one)
    two = pods.new(*steps)
    (two.pod.code / "GO").touch()
    two.start()
    verdict = two.verdict()
    assert (verdict["state"], verdict["reason"]) == ("succeeded", "")
    assert names(two.progress()["steps"]) == {"fetch": "done", "first": "reused", "second": "done"}
    assert two.step("fetch")["result"]["marks"] == ["first"]
    for name in ("first", "second"):
        assert (pods.store / name / "result").read_text() == chain(name)
    log = pods.there("logs/second.log")
    assert log == "second from 0\nsecond from 10\n" == two.pod.log("second").read_text()
    lines = [json.loads(line) for line in pods.there("work/runs/second/metrics.jsonl").splitlines()]
    assert [line["step"] for line in lines] == list(range(1, 21))
    assert pods.there("logs/agent.log").count("fetch: exit code 0") == 2  # Of both pods.
    assert json.loads(pods.there("state/ending.json"))["state"] == "succeeded"


def test_pod_with_only_damaged_checkpoints_does_not_start_from_scratch(pods):
    step = counting(pods, "first", hold=7)
    one = pods.new(step)
    one.start()
    newest = "work/checkpoints/first-f00d/step-000000005"
    until(lambda: newest in acknowledged(one), "it is in the store")
    pods.lose(one)
    (pods.store / "runs" / RUN / newest / "weights").write_text("x" * 64)
    two = pods.new(step)
    two.start()
    verdict = two.verdict()
    assert (verdict["state"], verdict["step"]) == ("failed", "fetch")
    assert "no checkpoint of work/checkpoints/first-f00d in" in verdict["tail"] and "step-000000005" in verdict["tail"]
    assert json.loads(pods.there("state/ending.json"))["step"] == "fetch"
    assert [name for name in pods.folder.file_sizes() if name.startswith("logs/error-")]


def test_last_save_of_a_stopped_step_is_stored_before_the_verdict(pods):
    one = pods.new(counting(pods, "first", hold=12), every_s=3600)
    one.start()
    until(lambda: "work/checkpoints/first-f00d/step-000000010" in acknowledged(one), "it counts")
    until(lambda: one.lines("runs/first/metrics.jsonl")[11:], "it is held")
    stopped = one.call("stop", {"SLIPWAY_GRACE_S": "10"})
    assert (stopped["verdict"]["state"], stopped["verdict"]["reason"]) == ("stopped", "asked to stop")
    assert by_folder(pods.folder.file_sizes())["work/checkpoints/first-f00d"][0].endswith("step-000000012")
    assert json.loads(pods.there("state/ending.json"))["state"] == "stopped"
    assert pods.there("work/runs/first/metrics.jsonl").count("\n") == 12


def test_unreachable_store_costs_no_work_and_the_verdict_lists_missing_uploads(pods):
    # The last uploads have 12 % of an hour, on a clock that runs 200 times faster: two seconds.
    step = counting(pods, "first", hold=12, store="another")
    one = pods.new(step, limits=Limits(time_s=3600.0), clock_scale=200.0)
    one.start()
    until(lambda: "work/checkpoints/first-f00d/step-000000010" in acknowledged(one), "it counts")
    pods.store.rename(pods.root / "away")
    pods.store.write_text("a file is in the way")
    (one.pod.code / "GO").touch()
    verdict = one.verdict()
    assert verdict["state"] == "succeeded" and (pods.root / "another" / "first" / "result").read_text() == chain(
        "first"
    )
    assert verdict["reason"].startswith("not in the store yet: work/checkpoints/first-f00d/step-000000020")
    assert "work/checkpoints/first-f00d/step-000000020" not in acknowledged(one)
    assert "not carried, retrying until the upload succeeds: " in one.pod.log("carry").read_text()


inputs = trainer.inputs
# The trainer of the lost pod stops right after the save of its twentieth step.
HOLD = """

import signal
_finish = Checkpoints.finish
def _held(self, *words):
    saved = _finish(self, *words)
    if saved.step == 20:
        os.kill(os.getpid(), signal.SIGSTOP)
    return saved
Checkpoints.finish = _held
"""


@pytest.mark.nightly
@pytest.mark.timeout(240)
def test_training_killed_with_its_pod_ends_with_the_same_parameters(inputs, tmp_path):
    pods, weights = Pods(tmp_path), []
    try:
        for store in ("undisturbed", "store"):
            shutil.copytree(inputs[0], tmp_path / store, copy_function=os.link)
        for store, kills in (("undisturbed", False), ("store", True)):
            pods.store = tmp_path / store
            world = trainer.World(pods.store, tmp_path, inputs[1])
            config = {
                "making": asdict(world.making()),
                "spec": asdict(trainer.tiny(steps=40)),
                "keeping": asdict(CheckpointOptions(save_every=10, reserve_bytes=0)),
            }
            step = module("base", config=json.loads(json.dumps(config)))
            step = replace(step, words=("-m", "trainer", "base"))
            pod = pods.new(step, environ={"OMP_NUM_THREADS": "1"})
            if kills:
                with (pod.pod.code / "trainer" / "checkpoints" / "checkpoint.py").open("a") as file:
                    file.write(HOLD)
                pod.start()
                saved = f"work/checkpoints/base-{'f' * 12}/step-000000020"
                until(lambda pod=pod, saved=saved: saved in acknowledged(pod), "half of it is there", 120)
                pods.lose(pod)
                pod = pods.new(step, environ={"OMP_NUM_THREADS": "1"})
            pod.start()
            until(pod.pod.verdict.exists, "its end", within_s=120)
            assert pod.verdict()["state"] == "succeeded", pod.words()
            assert ("resuming from step 20 of 40" in pod.pod.records("base").read_text()) == kills
            folder = pods.store / "base_checkpoints" / "tiny"
            weights.append(next((folder / "hf").glob("*.safetensors")).read_bytes())
            figures = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
            assert [line["step"] for line in figures] == list(range(1, 41))
        assert weights[0] == weights[1]
    finally:
        for one in pods.worlds:
            one.end()
