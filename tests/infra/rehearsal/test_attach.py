"""A user's own world: start, reuse, entry, preemption, end; and effects on machines at work."""

import contextlib
import json
import os
import signal
from pathlib import Path

import pytest

from infra.agent.job import Limits, PodFolder
from infra.agent.process import is_alive
from infra.errors import UsageError
from infra.ledger.journal import Journal
from infra.names import new_token
from infra.providers.by_name import open_market
from infra.records import Request
from infra.rehearsal import attach
from infra.settings import Settings
from tests.hosts import until

pytestmark = pytest.mark.process

ROOT = Path(__file__).parents[3]
KIND = Request(run="r", gpu="RTX4090", num_gpus=1)


@pytest.fixture
def base(tmp_path):
    yield tmp_path / "journal-rehearsal"
    with contextlib.suppress(attach.NoWorld):
        attach.stop(tmp_path / "journal-rehearsal")


def load(world, **flags):
    return Settings.load(ROOT, flags, environ={"SLIPWAY_REHEARSAL": str(world.folder), "RUNPOD_API_KEY": "a real one"})


def test_a_world_is_reused_until_its_end_and_leaves_no_files_to_the_next(base, monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    with pytest.raises(attach.NoWorld, match="no rehearsal runs; start a rehearsal with: inv rehearse"):
        attach.find(base)
    first = attach.start(base, speed=600)
    assert attach.find(base) == first and first.truth()["pods"] == [] and first.speed == 600
    with pytest.raises(UsageError, match="already runs .*inv rehearse --stop"):
        attach.start(base, speed=600)
    settings = load(first)
    assert settings.runpod_api_key == first.about["runpod"]["key"] != "a real one"
    assert (settings.sources["runpod_url"], settings.clock_scale) == ("rehearsal", 600)
    assert settings.state_file.parent == first.folder and not settings.pools.exists()
    assert load(first, store="elsewhere").sources["store"] == "--store"
    with Journal.open(settings.state_file):
        assert list((tmp_path / "config" / "slipway").iterdir())
    assert attach.stop(base) == first and not is_alive(first.identity)
    with pytest.raises(attach.NoWorld, match="the last rehearsal ended at .*stopped by a signal"):
        attach.find(base)
    assert first.folder.exists()
    second = attach.start(base, speed=60)
    assert not first.folder.exists() and list((tmp_path / "config" / "slipway").iterdir()) == []
    assert second.folder != first.folder
    with pytest.raises(UsageError, match="no rehearsal was found there"):
        load(first)


def test_a_killed_world_is_reported_as_dead(base):
    world = attach.start(base, speed=600)
    os.kill(world.identity.pid, signal.SIGKILL)
    until(lambda: not is_alive(world.identity), "the end of the world")
    with pytest.raises(attach.NoWorld, match=f"has died .process {world.identity.pid}"):
        attach.find(base)
    with pytest.raises(attach.NoWorld, match="does not answer"):
        world.truth()
    assert attach.start(base, speed=600).folder != world.folder


def test_an_idle_world_without_requests_ends_by_itself(base):
    world = attach.start(base, speed=600, idle_s=0.2)
    until(lambda: not is_alive(world.identity), "the end of the world")
    with pytest.raises(attach.NoWorld, match="idle for 0.2 s"):
        attach.find(base)


def test_invalid_arguments_start_no_world(base, tmp_path):
    wrong = tmp_path / "offers.json"
    wrong.write_text('[{"vendor": "nobody"}]')
    with pytest.raises(UsageError, match=str(wrong)):
        attach.start(base, "--offers", str(wrong), speed=600)
    with pytest.raises(UsageError, match="positive"):
        attach.start(base, speed=0)
    with pytest.raises(attach.NoWorld):
        attach.find(base)


def rent(market):
    """Return an answering pod of the world, and the pod's files."""
    offer = min(market.offers(KIND), key=lambda one: one.micro_usd_per_hour)
    made = market.create(KIND, offer, new_token("0a1b2c3d"), Limits(time_s=86400.0))

    def up():
        pod = market.find(made.pod_id)
        return pod if pod and pod.address else None

    pod = until(up, "a pod with an address")
    home = market.reach(pod).run(["sh", "-c", 'printf %s "$HOME"'], timeout_s=20).stdout
    return pod, PodFolder(Path(home) / ".slipway" / "pods" / "r")


def acknowledge(market, pod, files, step, after_s=1.0):
    """Write the file of the pod's uploader after a checkpoint has reached the store, `after_s` after the fetch."""
    way = market.reach(pod)
    done = way.run(["mkdir", "-p", str(files.mark("fetch").parent)], timeout_s=20)
    assert done.exited == 0, done.stderr
    if not files.mark("fetch").exists():
        way.put(b"{}", files.mark("fetch"))
    at = files.mark("fetch").stat().st_mtime + after_s
    way.put(json.dumps({f"work/checkpoints/sft-0/step-{step:09d}": at}).encode(), files.acknowledged)


@pytest.mark.day_cases(1)
@pytest.mark.needs("sshd", "ssh-keygen")
@pytest.mark.parametrize("vendor", ["runpod", "lium"])
def test_a_machine_at_work_is_preempted_after_each_new_checkpoint(base, vendor):
    world = attach.start(base, speed=600)
    assert world.send_command("/faults", {"preempt_at_work": 2}) == {}
    market = open_market(vendor, load(world))

    def truth_of(pod):
        return next(one for one in world.truth()["pods"] if one["id"] == pod.pod_id)

    def look_again():
        """Wait for two looks, so that a look began after this call."""
        looks = world.truth()["looks"]
        until(lambda: world.truth()["looks"] >= looks + 2, "two more looks at the disks")

    first, files = rent(market)
    assert files.root.is_relative_to(world.folder)
    look_again()
    assert truth_of(first)["state"] == "running"
    acknowledge(market, first, files, 10)
    until(lambda: truth_of(first)["ended_by"] == "preempted", "a preemption")
    market.delete(first.pod_id)
    until(lambda: not files.root.exists(), "files that are gone with their machine")
    second, files = rent(market)
    acknowledge(market, second, files, 10, after_s=-100.0)  # a checkpoint of the first pod, copied to the second
    look_again()
    assert (truth_of(second)["state"], world.truth()["preemptions_left"]) == ("running", 1)
    acknowledge(market, second, files, 20)
    until(lambda: truth_of(second)["ended_by"] == "preempted", "a second preemption")
    third, files = rent(market)
    acknowledge(market, third, files, 30)
    look_again()
    assert truth_of(third)["state"] == "running" and world.truth()["preemptions_left"] == 0
