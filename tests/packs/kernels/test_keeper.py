"""Kernels of a training: the plan with the expected gain, the keeper beside a run, and a second start."""

import json
import sys
import threading
from dataclasses import asdict, replace

import pytest
import torch

from data.config import StepContext
from infra.agent.job import Job, Step
from infra.errors import UsageError
from infra.flags import Typed
from infra.records import HeldArtifact, Inventory, Plan, Request
from infra.settings import Settings
from packs.kernels.control.flags import KernelFlags, with_kernels
from packs.kernels.control.signing_key import VARIABLE, secrets_of
from packs.kernels.records.job_variables import COLD, JOB_KEY, MODE, OWN, RENTED
from packs.kernels.records.work_shape import shape_of
from packs.kernels.trainer import stored_kernels
from packs.kernels.trainer.stored_bundles import FOLDER
from packs.kernels.trainer.stored_kernels import StoredKernels
from tests.trainer.conftest import tiny
from tests.world import ROOT
from trainer.config import CheckpointOptions, PhaseConfig
from trainer.device import Machine
from trainer.kernels import KernelWork
from trainer.parallel.process_group import Ranks

COMPILED = replace(tiny(steps=2), compile="always")
CPU = Machine(torch.device("cpu"), torch.float32, 1)
FILES = {"fxgraph/ab/graph": b"graph" * 100, "cd/kernel.so": b"\x7fELF" * 500}


def planned(config: PhaseConfig, environ: dict[str, str], *kept: HeldArtifact, cold: bool = False) -> Plan:
    """Return the plan of a base phase with the part of this pack."""
    making = asdict(StepContext(store="s", name="base_checkpoints/tiny", fingerprint="f"))
    content = json.loads(json.dumps({"making": making, "spec": asdict(config)}))
    step = Step("base", ("-m", "trainer", "base"), "train", content, together=("-m", "trainer.spread"))
    plan = Plan("target", "s", (), Job("run", "", (step,)), Request(run="run"))
    spec = Typed(added=(KernelFlags(cold=cold),))
    return with_kernels(plan, spec, Settings.load(ROOT, environ=environ), Inventory("s", kept=kept), None)


def held(**about: object) -> HeldArtifact:
    return HeldArtifact(f"{FOLDER}/n-00002", "n-00002", "", about, 1_000_000)


LOCAL = {"SLIPWAY_PROVIDER": "local", "SLIPWAY_STORE": "store"}
ON_PODS = {"SLIPWAY_PROVIDER": "runpod", "RUNPOD_API_KEY": "r" * 20, "SLIPWAY_STORE": "s3://bucket/folder"}


def test_plan_shows_the_expected_gain_of_kernels_with_the_same_shape():
    ours = held(shape=shape_of(COMPILED), machine="a CPU", compile_s=43.0)
    plan = planned(COMPILED, LOCAL, ours, held(shape="other", machine="x", compile_s=999.0), held(shape=1, machine=2))
    assert plan.job.environ == {MODE: OWN}
    (note,) = plan.notes
    assert "compiled kernels of this shape, 1.0 MB" in note and "(a CPU)" in note and "43 s shorter" in note
    assert planned(COMPILED, LOCAL).notes == ()


def test_plan_prints_no_control_characters_of_a_store():
    note = planned(COMPILED, LOCAL, held(shape=shape_of(COMPILED), machine="a\x1b[2J\nb", compile_s=1e400)).notes[0]
    assert note.isprintable() and "0.0 s shorter" in note


def test_cold_start_has_neither_kernels_of_others_nor_a_gain():
    plan = planned(COMPILED, LOCAL, held(shape=shape_of(COMPILED), machine="a CPU", compile_s=43.0), cold=True)
    assert plan.job.environ == {MODE: COLD} and "--cold" in plan.notes[0] and len(plan.notes) == 1


def test_plan_without_compilation_is_unchanged():
    assert planned(replace(COMPILED, compile="never"), LOCAL).job.environ == {}


def test_rented_machines_need_the_key_of_the_user_and_get_a_derived_key():
    plan = planned(COMPILED, ON_PODS)
    assert plan.job.environ == {MODE: RENTED} and VARIABLE in plan.notes[0]
    assert secrets_of(Settings.load(ROOT, environ=ON_PODS)) == {}
    keyed = {**ON_PODS, VARIABLE: "0123456789abcdef"}
    assert planned(COMPILED, keyed).notes == ()
    (derived,) = secrets_of(Settings.load(ROOT, environ=keyed)).values()
    assert len(derived) == 64 and keyed[VARIABLE] not in derived


def test_short_key_is_refused_by_a_plan_and_stops_no_other_command():
    short = {**ON_PODS, VARIABLE: "short"}
    with pytest.raises(UsageError, match="openssl rand -hex 32"):
        planned(COMPILED, short)
    assert secrets_of(Settings.load(ROOT, environ=short)) == {}


def test_shape_has_the_settings_that_change_kernels():
    assert shape_of(COMPILED) == shape_of(replace(COMPILED, steps=9, seed=2, rows=8))
    for change in ({"micro_rows": 1}, {"sequence_len": 16}, {"recompute": True}, {"dtype": "bfloat16"}):
        assert shape_of(replace(COMPILED, **change)) != shape_of(COMPILED)


def keeper(store: str, config: PhaseConfig = COMPILED) -> StoredKernels:
    work = KernelWork(config=config, machine=CPU, parallel="ddp", ranks=Ranks(), store=store)
    found = StoredKernels(work)
    if found.is_used:
        found.looking.join()
    return found


@pytest.mark.process
def test_keeper_restores_kernels_of_the_same_work_only(tmp_path, monkeypatch):
    monkeypatch.setenv(MODE, OWN)
    store = str(tmp_path / "store")
    first = keeper(store)
    assert first.space is not None and first.found == {}
    first.space.publish(FILES, 50.0, "a machine")
    cache = tmp_path / "cache"
    keeper(store).restore(cache)
    assert {path: (cache / path).read_bytes() for path in FILES} == FILES
    assert keeper(store, replace(COMPILED, micro_rows=1)).found == {}
    monkeypatch.setenv(MODE, COLD)
    assert not keeper(store).is_used
    monkeypatch.delenv(MODE)
    assert not keeper(store).is_used


@pytest.mark.process
def test_unusable_store_is_a_note_and_no_error(tmp_path, monkeypatch):
    records = tmp_path / "records.jsonl"
    monkeypatch.setenv("SLIPWAY_RECORDS", str(records))
    monkeypatch.setenv(MODE, RENTED)
    monkeypatch.delenv(JOB_KEY, raising=False)
    for store in ("s3://bucket/folder", "/dev/null/store"):
        found = keeper(store)
        found.restore(tmp_path / "cache")
        assert found.found == {} and not (tmp_path / "cache").exists()
    assert records.read_text().count("kernels: not kept") == 2


@pytest.mark.process
@pytest.mark.parametrize("is_at_end", [False, True])
def test_slow_upload_does_not_hold_up_the_end_of_the_training(tmp_path, monkeypatch, is_at_end):
    """The upload of the first step, or of the last step, continues beside evaluation and publication."""
    from torch._dynamo.utils import counters

    monkeypatch.setenv(MODE, OWN)
    monkeypatch.setattr(stored_kernels, "PUBLISH_S", 0.01)
    one, begun, arrived = keeper(str(tmp_path / "store")), threading.Event(), threading.Event()

    def publish(*given):
        begun.set()
        assert arrived.wait(600)

    monkeypatch.setattr(one, "_publish", publish)
    (tmp_path / "kernel.so").write_bytes(b"kernel")
    monkeypatch.setitem(counters["inductor"], "fxgraph_cache_miss", 0 if is_at_end else 1)
    one.keep(tmp_path)
    monkeypatch.setitem(counters["inductor"], "fxgraph_cache_miss", 2)
    one.keep(tmp_path)
    assert begun.wait(600) and one.publishing.is_alive()
    arrived.set()
    one.publishing.join()


@pytest.mark.nightly
@pytest.mark.process
@pytest.mark.timeout(3600)
def test_second_start_compiles_nothing_and_has_the_same_bits(world, monkeypatch):
    """Three trainings with one store: the first compiles, the second restores, the third is cold."""
    keeping = CheckpointOptions(reserve_bytes=0)
    losses, notes = {}, {}
    for name, mode in (("first", OWN), ("second", OWN), ("cold", COLD)):
        monkeypatch.setenv(MODE, mode)
        making = replace(world.making(fingerprint=name), name=f"base_checkpoints/{name}")
        process = world.start(COMPILED, keeping, making, work=name)
        assert process.communicate()[1] is not None and process.returncode == 0
        rows = (world.work(name) / "runs/base/metrics.jsonl").read_text().splitlines()
        losses[name] = [json.loads(row)["loss"] for row in rows]
        notes[name] = [one["text"] for one in world.records(name) if one["kind"] == "note"]
    print(json.dumps(notes, indent=1), file=sys.stderr)
    assert losses["first"] == losses["second"] == losses["cold"]
    assert any("0 graphs taken" in note for note in notes["first"])
    assert any("0 graphs compiled" in note for note in notes["second"])
    assert any("restored from the store" in note for note in notes["second"])
    assert not any("kernels" in note for note in notes["cold"])
