"""The placement of a service's replicas: own machines, spot machines, on-demand machines; and the spend limit."""

import contextlib
import json
import shutil
from dataclasses import replace
from decimal import Decimal
from pathlib import Path

import pytest

from infra.agent.process import find
from infra.ledger import service_rows
from infra.ledger.journal import Journal
from infra.rehearsal import attach
from infra.units import cents, micro_usd
from serve.policy import service_state
from serve.policy.service_state import Version, WantedService
from tests.end_to_end.services import GUARD_S, Installation, say, serving
from tests.end_to_end.test_street_ssh import with_machines
from tests.hosts import loopback
from tests.serve.engine.test_engines import model as sized_model
from tests.world import World, until

pytestmark = pytest.mark.process


@pytest.mark.nightly
def test_replicas_on_own_machines_are_reached_by_ssh_and_leave_no_files(tmp_path):
    with contextlib.ExitStack() as stack:
        boxes = []
        for name in ("left", "right"):
            (tmp_path / name).mkdir()
            boxes.append(stack.enter_context(loopback(tmp_path / name)))
        installation = Installation(with_machines(tmp_path, *boxes), tmp_path)
        stack.callback(installation.world.inv, "serve.down", "--all")
        model = installation.model("A")
        line = ("serve.up", "demo", "--model", str(model), "--provider", "ssh", "--config", installation.config())
        url = installation.world.json(*line)["endpoint"]
        assert {say(url)[1] for _ in range(4)} == {"demo-0", "demo-1"}
        with installation.journal() as journal:
            tokens = [op.token for op in journal.ops(live=True)]
        homes = {
            installation.world.inv("serve.ssh", "demo", "--replica-id", number, "--", "pwd").strip() for number in "01"
        }
        assert {Path(home).parents[2] for home in homes} == {box.folder for box in boxes}
        for box in boxes:
            assert [one.name for one in (box.folder / ".slipway" / "models").iterdir()] != []

        boxes[0].stop()  # The engine lives on but cannot be reached: the other replica answers.
        until(lambda: len(serving(installation)) == 1, "a replica that is not ready", GUARD_S)
        assert len({say(url)[1] for _ in range(4)}) == 1
        boxes[0].start()
        until(lambda: serving(installation) == {0, 1}, "the same replica, ready again", GUARD_S)
        installation.world.inv("serve.down", "demo")
        assert not [one for token in tokens for one in find(token)]
        assert not [pod for box in boxes for pod in (box.folder / ".slipway" / "pods").glob("demo*")]


def test_placement_prefers_own_machines_then_cheapest_spot_then_on_demand(tmp_path):
    with contextlib.ExitStack() as stack:
        (tmp_path / "box").mkdir()
        installation = Installation(with_machines(tmp_path, stack.enter_context(loopback(tmp_path / "box"))), tmp_path)
        installation.world.extra.update(RUNPOD_API_KEY="", LIUM_API_KEY="", SHADEFORM_API_KEY="")
        stack.callback(installation.world.inv, "rehearse", "--stop")
        config = installation.config(resources={"use_spot": True}, slipway={"spend_limit": "40"})
        line = (
            "serve.up",
            "demo",
            "--model",
            str(installation.model("A")),
            "--provider",
            "any",
            "--config",
            config,
            "--rehearse",
            "--dry-run",
        )
        shown = installation.world.json(*line)["placement"]
        assert {one["kind"] for one in shown} == {"spot", "on-demand"}

        market = attach.find(attach.worlds_folder(tmp_path / "state" / "journal.db"))
        shutil.copy(tmp_path / "pools.yaml", market.folder)  # A rehearsal reads own machines here.
        own, *rented = installation.world.json(*line)["placement"]
        assert own["kind"] == "own" and {one["kind"] for one in rented} == {"spot", "on-demand"}
        order = [(one["kind"] == "on-demand", Decimal(one["usd_per_hour"])) for one in rented]
        assert order == sorted(order) and order[0][0] < order[-1][0]


def test_no_gpu_is_rented_that_is_too_small_for_the_model(tmp_path):
    keys = {"RUNPOD_API_KEY": "", "LIUM_API_KEY": "", "SHADEFORM_API_KEY": ""}
    installation = Installation(World(tmp_path, keys), tmp_path)
    large = sized_model(tmp_path / "large", 30_000_000_000)  # 60 GB of weights, in a sparse file.
    words = ("serve.up", "demo", "--model", str(large), "--engine", "vllm", "--provider", "runpod", "--rehearse")

    def config(**resources):
        return installation.config(
            resources=resources, slipway={"spend_limit": "40", "engine": {"max_model_len": 4096}}
        )

    try:
        said = installation.world.run(*words, "--config", config(accelerators="L40S:1"))
        err = said.stderr
        assert said.returncode == 2 and "does not fit: the model needs 63.0 GB of the GPU (weights 60.0" in err
        assert "--gpu with more memory, or num_gpus 2" in err and installation.world.json("serve.status") == []
        installation.world.json(*words, "--config", config(accelerators="L40S:2"), "--dry-run")
        shown = installation.world.json(*words, "--config", config(accelerators=["L40S:1", "H100:1"]), "--dry-run")
        assert shown["placement"] and {one["gpu"].split("-")[0] for one in shown["placement"]} == {"H100"}
    finally:
        installation.world.inv("rehearse", "--stop")


def test_more_replicas_on_rented_machines_need_a_yes(tmp_path):
    keys = {"RUNPOD_API_KEY": "", "LIUM_API_KEY": "", "SHADEFORM_API_KEY": ""}
    installation = Installation(World(tmp_path, keys), tmp_path)
    config = installation.config(1, resources={"accelerators": "L40S:1"}, slipway={"spend_limit": "40"})
    version = Version(
        number=1,
        document=json.loads(Path(config).read_text()),
        engine="torch",
        provider="runpod",
        model="hf://user/repo",
    )
    line = ("serve.scale", "demo", "--min-replicas", "4", "--rehearse")
    try:
        market = attach.start(attach.worlds_folder(tmp_path / "state" / "journal.db"), speed=60)
        with Journal.open(market.folder / attach.JOURNAL, installation.world.environ) as journal:
            wanted = service_state.write(WantedService(versions=(version,)))
            service_rows.write_desired_state(journal, "demo", wanted, None)
            shown = installation.world.json(*line, "--dry-run")
            assert shown["min_replicas"] == 4
            asked = installation.world.run(*line)
            price = cents(4 * micro_usd(shown["placement"][0]["usd_per_hour"]))
            assert f"4 replicas: about {price} USD/h; limit for all replicas: 40.00 USD" in asked.stderr
            assert asked.returncode == 2 and "nothing was changed. Pass --yes" in asked.stderr
            assert service_rows.find(journal, "demo").wanted == wanted and not market.truth()["pods"]
            resources = {"accelerators": "L40S:1", "max_hourly_cost": 0.001}
            far = replace(version, document={**version.document, "resources": resources})
            service_rows.write_desired_state(journal, "far", service_state.write(WantedService(versions=(far,))), None)
            asked = installation.world.run("serve.scale", "far", *line[2:])
            assert "far: the controller asks again until a machine fits; limit for all replicas: 40.00 " in asked.stderr
            assert asked.returncode == 2 and "nothing was changed. Pass --yes" in asked.stderr
    finally:
        installation.world.inv("rehearse", "--stop")


@pytest.mark.nightly
def test_preempted_replicas_are_replaced_within_the_budget(tmp_path):
    keys = {"RUNPOD_API_KEY": "", "LIUM_API_KEY": "", "SHADEFORM_API_KEY": ""}
    installation = Installation(World(tmp_path, keys), tmp_path)
    model, resources = installation.model("A"), {"accelerators": "L40S:1", "use_spot": True}
    config = installation.config(resources=resources, slipway={"spend_limit": "40"})
    line = ("serve.up", "demo", "--model", str(model), "--provider", "runpod", "--config", config, "--rehearse")
    try:
        shown = installation.world.json(*line, "--dry-run")["placement"]
        assert [one["kind"] for one in shown[:2]] == ["spot", "on-demand"]
        asked = installation.world.run(*line)
        refused = asked.stderr
        usd_per_hour = 2 * Decimal(shown[0]["usd_per_hour"])
        price = f"2 replicas: about {usd_per_hour:.2f} USD/h; limit for all replicas: 40.00 USD"
        assert asked.returncode == 2 and price in refused
        assert "nothing was changed. Pass --yes" in refused and not installation.world.json(
            "serve.status", "--rehearse"
        )
        installation.world.json(*line, "--yes")
        market = attach.find(attach.worlds_folder(tmp_path / "state" / "journal.db"))
        first = next(pod for pod in market.truth()["pods"] if pod["state"] == "running")
        market.send_command("/preempt", {"id": first["id"]})

        def replaced():
            found = installation.world.json("serve.status", "demo", "--rehearse")
            return found["ready"] == 2 and 2 in {one["id"] for one in found["replicas"]}

        until(replaced, "a replacement", GUARD_S)
        with Journal.open(market.folder / "journal.sqlite") as journal:
            assert sum(op.cap for op in journal.ops() if op.is_live) <= 40_000_000
        installation.world.inv("serve.down", "demo", "--rehearse")
        assert {pod["state"] for pod in market.truth()["pods"]} <= {"gone", "deleting"}
    finally:
        installation.world.inv("serve.down", "--all", "--rehearse")
        installation.world.inv("rehearse", "--stop")
