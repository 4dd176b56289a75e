"""A launch, planned and checked without terminal interaction: open questions, cost, refusals."""

import json
import time
from dataclasses import asdict, replace

import pytest

from data.config import ConfigError
from flows.planning.training_plan import refuse_other_origin
from flows.pods import held_pods
from flows.runs import launch
from flows.specs.launch import LaunchSpec
from infra.agent.job import Job, Step
from infra.errors import NoOffer, UsageError
from infra.ledger.journal import Journal
from infra.ledger.op import Op
from infra.market import gpus
from infra.names import new_token
from infra.records import HeldArtifact, Inventory, Offer, Plan, PlannedArtifact, Request
from infra.selection import registry
from infra.settings import Settings
from store.artifacts import references
from store.artifacts.artifacts import Store
from tests.world import ROOT
from trainer.config import ImportSpec, PhaseConfig
from trainer.fingerprints import CheckoutCode
from trainer.recipes import tiny
from trainer.rewards import jail

pytestmark = pytest.mark.process

BASE = "base_checkpoints/tiny"


@pytest.fixture
def settings(tmp_path):
    mine = {"SLIPWAY_STATE_FILE": "journal.db", "SLIPWAY_PODS": "pods", "SLIPWAY_STORE": "store"}
    environ = {name: str(tmp_path / path) for name, path in mine.items()}
    return Settings.load(ROOT, {"profile": "tiny"}, environ={**environ, "HOME": str(tmp_path)})


@pytest.fixture
def journal(settings):
    with Journal.open(settings.state_file) as opened:
        yield opened


def resolved(settings, made="", **flags):
    found = launch.resolve(LaunchSpec(**{"phase": "base", **flags}), settings)
    return replace(found, work=replace(found.work, remake_policy=made or found.work.remake_policy))


def test_a_variable_names_the_accelerator_as_the_flags_do(tmp_path):
    def asked(*given, **flags):
        environ = {
            "HOME": str(tmp_path),
            "SLIPWAY_STATE_FILE": str(tmp_path / "journal.db"),
            "RUNPOD_API_KEY": "k" * 24,
        }
        found = Settings.load(ROOT, {"profile": "tiny", "provider": "runpod"}, given, environ)
        request = resolved(found, provider="runpod", **flags).request
        return gpus.read_set(request.gpu, request.num_gpus)

    assert asked("ACCELERATOR=A100:1") == asked(gpu="A100", num_gpus=1) == (("A100", 1),)
    assert asked("ACCELERATOR=A100:8", gpu="H100:2") == (("H100", 2),), "a flag outweighs a variable"


def test_an_artifact_of_different_code_needs_a_decision_of_the_user(settings, journal, tmp_path, monkeypatch):
    told = []
    monkeypatch.setattr(CheckoutCode, "of", lambda *_: {"commit": "cd" * 20})
    monkeypatch.setattr(
        CheckoutCode, "changed_files", lambda _, before, folders: ("trainer/loop.py",) if before else ()
    )
    first = launch.prepare(resolved(settings), journal, settings, told.append)
    assert not first.needs_decision and [one.name for one in first.plan.job.steps][-1] == "base"
    made = tmp_path / "made"
    made.mkdir()
    (made / "weights").write_text("w")
    (fingerprint,) = [one.fingerprint for one in first.plan.artifacts if one.name == BASE]
    Store(settings.store).publish(made, BASE, fingerprint, {"code": {"commit": "ab" * 20}})
    found = launch.prepare(resolved(settings), journal, settings, told.append)
    assert found.needs_decision and [one.name for one in found.plan.doubtful] == [BASE]
    assert not launch.prepare(resolved(settings, dry_run=True), journal, settings, told.append).needs_decision
    kept = launch.prepare(resolved(settings, "keep"), journal, settings, told.append)
    assert not kept.needs_decision and kept.plan.job is None
    anew = launch.prepare(resolved(settings, remake=True), journal, settings, told.append)
    assert not anew.needs_decision and [one.name for one in anew.plan.job.steps][-1] == "base"
    assert told == [] and journal.ops() == []


@pytest.mark.parametrize(
    ("about", "said"),
    [
        (
            {"spec": {"adopted": True}, "inputs": {"tokenizer": {"name": "imported/llama"}}},
            "imported/llama.*--init imported/llama; ",
        ),
        ({"spec": {"adopted": True}, "inputs": {"tokenizer": {"name": "tokenizer"}}}, "an imported model, "),
        ({"spec": {"adopted": False}, "inputs": {"tokenizer": {"name": "tokenizer"}}}, ""),
        ({"inputs": ["odd"], "spec": 1}, ""),
    ],
)
def test_a_name_of_a_model_of_a_different_origin_moves_with_a_flag_only(settings, journal, tmp_path, about, said):
    made = tmp_path / "made"
    made.mkdir()
    (made / "weights").write_text("w")
    Store(settings.store).publish(made, "chatsft_checkpoints/mine", "a-v1-b", about)
    wanted = resolved(settings, phase="base+mid+sft", tag="mine")
    if said:
        with pytest.raises(
            UsageError, match=f"chatsft_checkpoints/mine is a model that starts from {said}.*--move-tag$"
        ):
            launch.prepare(wanted, journal, settings, print)
    moving = wanted if not said else resolved(settings, phase="base+mid+sft", tag="mine", move_tag=True)
    found = launch.prepare(moving, journal, settings, print)
    assert ("chatsft_checkpoints/mine", "stale") in [(one.name, one.state) for one in found.plan.artifacts]


def test_a_name_stays_with_the_imported_model_of_its_start():
    init = ImportSpec(source="/models/llama", model=tiny().phases["sft"].model, has_tokenizer=True)
    of_llama, of_second = (
        {"spec": {"adopted": True}, "inputs": {"init": {"name": name}}}
        for name in ("imported/llama", "imported/second.llama")
    )
    plan = Plan("t", "store", (PlannedArtifact("chatsft_checkpoints/mine", "stale", "sft"),), None, Request(run="a-1"))

    def checked(about, init, tag="", source="/models/llama"):
        held = HeldArtifact("chatsft_checkpoints/mine", "a-v1-b", about=about)
        origin = HeldArtifact("imported/second.llama", "a-v1-c", about={"source": source})
        refuse_other_origin(plan, init, Inventory("store", {one.name: one for one in (held, origin)}), tag)

    for tag in ("", "second", "third"):
        checked(of_llama, init, tag)
        checked(of_second, init, tag)
        checked({"spec": {"adopted": True}}, init, tag)
    gone = {"spec": {"adopted": True}, "inputs": {"init": {"name": "imported/third.llama"}}}
    checked(gone, init, "third")
    qwen = replace(init, source="hf://some/qwen")
    for about, other, tag in (
        (of_llama, qwen, ""),
        (of_llama, qwen, "second"),
        (of_second, qwen, "second"),
        ({"spec": {"adopted": False}}, init, ""),
    ):
        with pytest.raises(UsageError, match="this plan starts from imported/(qwen|llama).*--tag NAME"):
            checked(about, other, tag)
    with pytest.raises(UsageError, match="this plan starts from imported/llama"):
        checked(of_second, init, source="/models/second.llama")


def test_a_plan_names_the_runs_at_work_with_an_earlier_artifact_and_no_ended_run(settings, journal, tmp_path):
    made = tmp_path / "made"
    made.mkdir()
    (made / "weights").write_text("w")
    Store(settings.store).publish(made, BASE, "a-v1-b", {})
    for run in ("old-1", "live-2", "theirs-3"):
        references.hold(settings.store, run, f"run {run}", {("base_checkpoints", "a-v1-b")}, time.time())
    for run in ("old-1", "live-2"):
        journal.plan(token=new_token(journal.installation), run=run, vendor="local")
    journal.advance(journal.ops(run="old-1")[-1], "unsent", reason="it ended")
    plan = launch.prepare(resolved(settings), journal, settings, print).plan
    (why,) = [one.reason for one in plan.artifacts if one.name == BASE]
    assert why.endswith("; run live-2, run theirs-3 keep the earlier artifact"), why
    assert len(references.live_leases(settings.store, time.time())) == 3, "an ended run can be resumed"
    assert not any("store.gc" in note for note in plan.notes), "store.gc removes nothing this young"


def test_options_of_a_source_reach_its_step_and_change_the_artifact(settings, journal, tmp_path):
    (tmp_path / "one.jsonl").write_text('{"body": "some text", "stars": 3}\n')
    (tmp_path / "two.txt").write_text("more text\n")
    source = f"{tmp_path}/one.jsonl=0.7,{tmp_path}/two.txt=0.3"

    def text_of(**flags):
        plan = launch.prepare(resolved(settings, source=source, **flags), journal, settings, print).plan
        (step,) = [one for one in plan.job.steps if one.name == "text"]
        return step.config["spec"], step.config["making"]["fingerprint"]

    said = {"text_column": "body", "filter": "stars > 2", "exhausted": "all"}
    spec, fingerprint = text_of(**said)
    assert {name: spec[name] for name in said} == said
    others = [
        text_of(**{**said, name: other})[1]
        for name, other in (("text_column", "title"), ("filter", "stars > 1"), ("exhausted", "first"))
    ]
    assert len({fingerprint, *others}) == 4
    for name, wrong, why in (("filter", "open('x')", "filter"), ("exhausted", "none", "known: first, all")):
        with pytest.raises(ConfigError, match=why):
            text_of(**{**said, name: wrong})


def test_a_dry_run_without_a_suitable_machine_is_refused(settings, journal):
    found = launch.prepare(resolved(settings, gpu="B200", num_gpus=64, dry_run=True), journal, settings, print)
    with pytest.raises(NoOffer, match=r"the requested GPUs \(64 B200\)"):
        launch.check(found, settings, "./inv launch --with-missing", print)
    assert launch.check(replace(found, resolved=resolved(settings)), settings, "", print).offers == ()


def test_a_code_reward_without_isolation_is_refused_before_the_start(settings, journal, monkeypatch):
    asked = [resolved(settings, phase="sft+rl", task="mbpp", unsafe_rewards=one) for one in (False, True)]
    held, unheld = (launch.prepare(one, journal, settings, print) for one in asked)
    assert launch.check(held, settings, "", print).offers == ()
    monkeypatch.setattr(jail, "kind", lambda: "")
    monkeypatch.setattr(jail, "problem", lambda one: "the kernel has none")
    with pytest.raises(UsageError, match="rl: .*landlock: the kernel has none; .*--unsafe-rewards.*No work has begun"):
        launch.check(held, settings, "", print)
    launch.check(unheld, settings, "", print)


@pytest.mark.parametrize(("rl", "mixture", "why"), [
    ({"reward": "def reward(q, a, c): return 1"}, {"sort": 1.0}, "--reward"),
    ({"unsafe_rewards": True}, {"sort": 1.0}, "--unsafe-rewards"),
    ({}, {"mbpp": 0.5, "sort": 0.5}, "task mbpp"),
])  # fmt: skip
def test_a_pod_with_foreign_code_gets_no_self_end_key(rl, mixture, why):
    phases = tiny().phases

    def job(phase: PhaseConfig) -> Job:
        config = {"spec": asdict(phase), "keeping": {}}
        return Job("r", "t", (Step("it", ("-m", "trainer", "it"), config=config, together=("-m", "trainer.spread")),))

    learns = phases["rl"]
    with pytest.raises(UsageError, match=why):
        launch.refuse_foreign_code(job(replace(learns, rl=replace(learns.rl, **rl), mixture=mixture)))
    launch.refuse_foreign_code(job(replace(learns, mixture={"sort": 1.0, "math": 1.0})))
    # sft reads the data, and runs no code
    launch.refuse_foreign_code(job(replace(phases["sft"], mixture={"mbpp": 0.1, "identity": 0.9})))


def test_only_rented_pods_get_a_self_end_key(settings):
    with pytest.raises(UsageError, match="--self-end applies to rented machines"):
        resolved(settings, self_end=True)


@pytest.mark.parametrize(("flags", "own", "what"), [
    ({"phase": "rl", "reward": "examples/reward.py"}, {}, "--reward: step rl"),
    ({"phase": "rl", "task": "mbpp"}, {}, "task mbpp: step rl"),
    ({"phase": "base", "track": "examples/tracker.py"}, {}, "--track tracker: step track-tracker"),
    ({"phase": "sft+smooth"}, {"SLIPWAY_EXTENSIONS": "examples/own/smooth.py"}, "extension smooth: step smooth"),
    ({"phase": "base"}, {"SLIPWAY_EXTENSIONS": "examples/own/sentences.py", "SLIPWAY_SOURCE": "sentences"},
     "extension sentences: step text"),
])  # fmt: skip
def test_no_self_end_key_reaches_code_of_a_third_party(settings, journal, tmp_path, flags, own, what):
    environ = {one: str(tmp_path / path) for one, path in (("SLIPWAY_STORE", "store"), ("HOME", "."))}
    settings = Settings.load(ROOT, {"profile": "tiny"}, environ={**environ, **own})
    job = launch.prepare(launch.resolve(LaunchSpec(**flags), settings), journal, settings, print).plan.job
    with pytest.raises(UsageError, match=f"--self-end cannot be used with {what} runs code on the pod"):
        launch.refuse_foreign_code(job)


@pytest.mark.parametrize(("said", "why"), [
    ("evals=", "--budget: "), ("evals=x", "--budget: "), ("evals=0", "--budget is 0; give an amount above 0"),
    ("=3", "expected NAME, or NAME=USD"), ("two words=3", "expected NAME, or NAME=USD"),
    ("evals", "budget 'evals' does not exist; known: none"),
])  # fmt: skip
def test_an_insufficient_budget_is_refused_with_the_plan(said, why, settings, journal):
    vendor = {"provider": "runpod", "runpod_api_key": "x" * 32, "runpod_url": "http://127.0.0.1:9"}
    settings = replace(settings, **vendor, sources={**settings.sources, "provider": ""})
    with pytest.raises(UsageError, match=why):
        launch.prepare(resolved(settings, budget=said), journal, settings, print)


def test_a_launch_of_five_steps_and_an_hour_is_small(settings, journal):
    found = launch.prepare(resolved(settings, phase="base+sft", steps=5, ttl="1h"), journal, settings, print)
    steps = {one.name: one.config["spec"]["steps"] for one in found.plan.job.steps if one.name in ("base", "sft")}
    assert steps == {"base": 5, "sft": 5} and found.resolved.limits.time_s == 3600


@pytest.fixture
def renting(tmp_path):
    mine = {"SLIPWAY_STATE_FILE": "journal.db", "SLIPWAY_PODS": "pods", "SLIPWAY_STORE": "store"}
    environ = {name: str(tmp_path / path) for name, path in mine.items()}
    return Settings.load(
        ROOT,
        {"profile": "tiny", "provider": "runpod"},
        environ={**environ, "HOME": str(tmp_path), "RUNPOD_API_KEY": "k" * 20},
    )


def test_the_first_plan_has_the_minimum_number_of_gpus(renting):
    def drafted(**flags) -> int:
        one = resolved(renting, provider="runpod", **flags)
        return one.work.draft_request(one.request, renting).num_gpus

    assert drafted() == 1 and drafted(gpu="H100") == 1 and drafted(num_gpus=4) == 4
    answering = {"phase": "rl", "engine": "vllm", "init": ""}
    assert drafted(**answering) == 2 and drafted(**answering, engine_devices="2,3") == 4
    one = resolved(renting, provider="runpod")
    vendor = registry.provider(renting, "runpod")
    plan = one.work.plan(renting, one.work.draft_request(one.request, renting), vendor, one.limits)
    assert (plan.job.torch, plan.job.num_gpus) == ("cuda", 1)
    bare = one.work.plan(renting, one.request, vendor, one.limits)
    assert bare.job.torch == "cpu" and bare.request.work_disk_bytes < plan.request.work_disk_bytes
    named = replace(one.request, gpu="H100:8,A100:4")
    assert one.work.plan(renting, named, vendor, one.limits).job.torch == "cuda"


def test_an_own_machine_is_planned_for_the_number_beside_the_kind(settings, renting):
    def asked(settings, **flags):
        request = resolved(settings, **flags).request
        return request.gpu, request.num_gpus

    assert asked(settings, gpu="H100:8") == ("H100", 8) and asked(settings, gpu="H100,A100") == ("H100,A100", 0)
    assert asked(settings, gpu="H100:8,A100:4") == ("H100:8,A100:4", 0)
    assert asked(renting, gpu="H100:8", provider="runpod") == ("H100:8", 0)


@pytest.mark.parametrize(
    ("machine", "gpu", "number"),
    [
        ({"gpu": "H100:8"}, "H100", 8),
        ({"gpu": "A100:1,H100:8", "num_gpus": 8}, "H100", 8),
        ({"instance_type": "gpu_8x_h100", "num_gpus": 8}, "", 8),
        ({"gpu": "H100", "num_gpus": 4}, "H100", 4),
    ],
)
def test_work_on_a_held_pod_uses_every_gpu_of_the_pod(renting, machine, gpu, number):
    work, job = resolved(renting, provider="runpod").work, Job(run="box", token="t1", steps=(), kind="hold")
    asked = json.dumps(asdict(Request(run="box", provider="market", **machine)))
    op = Op(token="t1", run="box", vendor="runpod", state="READY", job=job.to_json(), request=asked)
    plan = held_pods.plan(op, work, renting)
    assert (plan.request.gpu, plan.request.num_gpus) == (gpu, number)
    assert (plan.job.num_gpus, plan.job.torch) == (number, "cuda")


def test_a_launch_is_planned_for_the_picked_configuration(renting):
    one, two, again = (
        Offer(provider="runpod", offer_id=f"offer-{at}", gpu="L40S", num_gpus=many) for at, many in enumerate((1, 2, 2))
    )
    vendor = registry.provider(renting, "runpod")
    for all_configs, offers, number in ((True, (two, again), 2), (False, (two, one, again), 1)):
        asked = resolved(renting, provider="runpod", all_configs=all_configs, on_failure="keep")
        asked = replace(asked, request=replace(asked.request, gpu="L40S", num_gpus=1))
        plan = asked.work.plan(renting, asked.request, vendor, asked.limits, one)
        found = launch.with_picked_offers(launch.Launch(resolved=asked, plan=plan), [two, one, again], renting)
        assert found.offers == offers and found.plan.job.num_gpus == found.plan.request.num_gpus == number
    assert launch.with_picked_offers(found, [], renting).offers == ()
