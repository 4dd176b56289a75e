"""Plans made from flags about reinforcement learning."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from data.config import ConfigError, Persona
from infra.errors import UsageError
from infra.records import Inventory, Request
from tests.world import ROOT
from trainer import plan as planning
from trainer import recipes, spread
from trainer.errors import Refused
from trainer.parallel.process_group import Ranks
from trainer.phases import rl as phase_rl
from trainer.plan import compare, estimates, rollout_engine
from trainer.plan.phase_needs import needs_of
from trainer.profiles.derived_phases import learning_on_policy
from trainer.records import rl_config
from trainer.records.rl_config import RlConfig
from trainer.rollouts import vllm_child
from trainer.rollouts.vllm_engine import EngineProcess, EngineSettings, Vllm


def recipe(phases, **more):
    who = Persona(name="Ada", maker="us", purpose="to help")
    return planning.recipe(planning.TrainingRequest(phases=phases, profile="tiny", persona=who, **more))


def test_gpus_of_a_partial_machine_are_counted_within_the_run():
    request = Request(run="a", num_gpus=2, devices="5,6")
    rollout_engine.check(RlConfig(engine="vllm", engine_devices=(1,)), request)
    said = r"GPU 5 does not exist; --devices 5,6 means GPUs 0 to 1. Name other GPUs, or name 6 GPUs in --devices"
    with pytest.raises(UsageError, match=said):
        rollout_engine.check(RlConfig(engine="vllm", engine_devices=(5,)), request)


@pytest.mark.parametrize("changes", [{}, {"embed_norm": True}, {"mlp": "relu2"}])
def test_vllm_is_refused_in_a_plan_for_a_shape_that_only_our_engine_knows(changes):
    whole = recipe(("rl",), rl={"engine": "vllm", "engine_devices": (1,)})["rl"].spec
    config = replace(whole, model=replace(whole.model, **changes))
    if not changes:
        return needs_of(config).check(config, Request(run="a", num_gpus=2))
    with pytest.raises(UsageError, match="--engine vllm: vLLM does not support a.*Use --engine embedded"):
        needs_of(config).check(config, Request(run="a", num_gpus=2))


def test_rl_shows_its_task_to_sft_and_changes_sft_no_further():
    alone, both = (recipe(("sft",)), recipe(("sft", "rl")))
    assert alone["sft"].spec.mixture == recipes.tiny().phases["sft"].mixture and "sort" not in alone["sft"].inputs
    assert sum(both["sft"].spec.mixture.values()) == pytest.approx(1)
    assert both["sft"].spec.mixture["sort"] == both["rl"].spec.rl.shown > 0
    assert both["sft"].inputs["sort"] == both["rl"].inputs["sort"] == "sort" and both["rl"].inputs["sft"] == "sft"
    assert both["mid"].spec == alone["mid"].spec and both["rl"].artifact == "chatrl_checkpoints/tiny"


def test_rl_task_is_a_name_a_file_or_several_with_checked_settings(tmp_path):
    mine = tmp_path / "mine.jsonl"
    mine.write_text('{"question": "1 + 1", "answer": "2"}\n')
    nodes = recipe(("rl",), tasks={"gsm8k": 3.0, str(mine): 1.0}, problems=str(tmp_path), rl={"beta": 0.1})
    assert nodes["rl"].spec.mixture == {"gsm8k": 3.0, "mine": 1.0} and nodes["rl"].inputs["mine"] == "mine"
    assert nodes["mine"].spec.task == "file" and nodes["gsm8k"].spec.source == str(tmp_path)
    config = nodes["rl"].spec
    assert (config.rl.beta, config.num_frozen) == (0.1, 1)
    assert nodes["sft"].spec.mixture["gsm8k"] == config.rl.shown  # A file has no demonstrations.
    with pytest.raises(UsageError, match="did you mean 'sort'"):
        recipe(("rl",), tasks={"sorts": 1.0})


def test_rl_flags_are_parsed_and_a_reward_file_is_sent_as_text():
    found = rl_config.parse_reward("def reward(question, answer, completion): ...", True)
    assert found == {"unsafe_rewards": True, "reward": "def reward(question, answer, completion): ..."}
    assert rl_config.parse_reward("", False) == {}
    assert rl_config.parse_tasks("sort=1,gsm8k=3") == {"sort": 1.0, "gsm8k": 3.0} and rl_config.parse_tasks("") is None
    assert rl_config.parse_reward("", False, "vllm") == {"engine": "vllm"}
    assert rl_config.parse_reward("", False, "vllm", 1) == {"engine": "vllm", "lag": 1}
    divided = rl_config.parse_reward("", False, "vllm", answering="1,2", training="0")
    assert divided == {"engine": "vllm", "engine_devices": (1, 2), "train_devices": (0,)}
    assert rl_config.parse_reward("", False, "vllm", tensor_parallel=2)["engine_tensor_parallel"] == 2
    with pytest.raises(ConfigError, match="--engine vlm: known: embedded, vllm"):
        rl_config.parse_reward("", False, "vlm")
    with pytest.raises(ConfigError, match="expected a task"):
        rl_config.parse_tasks("sort=much")


@pytest.mark.parametrize(
    ("gpus", "nodes", "devices", "problem"),
    [
        (0, 1, {}, ""),
        (4, 1, {"engine_devices": (1,)}, ""),
        (4, 1, {"train_devices": (3,)}, ""),
        (4, 1, {"engine_devices": (0,), "train_devices": (3, 2)}, ""),
        (
            4,
            1,
            {},
            "needs GPUs for answers out of 4. For example, --engine-devices 3 leaves the other GPUs for training",
        ),
        (4, 2, {"engine_devices": (1,)}, "Remove --nodes"),
        (
            0,
            1,
            {"engine_devices": (1,)},
            "--engine-devices 1: the number of GPUs of the machine is unknown. Set --num-gpus",
        ),
        (2, 1, {"engine_devices": (0, 1)}, "--engine-devices 0,1: no GPU of 2 remains to train. .* --num-gpus 3"),
        (2, 1, {"train_devices": (0, 1)}, "--train-devices 0,1: no GPU of 2 remains to answer. .* --num-gpus 3"),
        (
            *(4, 1, {"engine_devices": (1, 6), "train_devices": (0,)}),
            "--engine-devices 1,6 --train-devices 0: GPU 6 does not exist; --num-gpus 4 means GPUs 0 to 3. .*-gpus 7",
        ),
        (
            1,
            1,
            {"train_devices": (1,)},
            "--train-devices 1: GPU 1 does not exist; --num-gpus 1 means GPU 0. Name other GPUs",
        ),
    ],
)
def test_vllm_uses_gpus_of_one_machine_that_do_not_train(gpus, nodes, devices, problem):
    request = Request(run="a", num_gpus=gpus, nodes=nodes)
    rl = RlConfig(engine="vllm", **devices)
    if problem:
        with pytest.raises(UsageError, match=problem):
            rollout_engine.check(rl, request)
        return
    rollout_engine.check(rl, request)
    rollout_engine.check(RlConfig(), replace(request, nodes=2))


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        ({"engine_devices": (1,)}, "the engine embedded has no separate GPUs"),
        ({"train_devices": (0, 1)}, "train_devices is 0,1, but the engine embedded has no separate GPUs"),
        ({"engine": "vllm", "train_devices": (0, 0)}, "train_devices is 0,0; the list names a GPU twice"),
        ({"engine": "vllm", "engine_devices": (-1,)}, "engine_devices is -1; GPU numbers start at 0"),
        (
            {"engine_tensor_parallel": 2},
            "engine_tensor_parallel is 2, but the engine embedded has no tensor parallelism",
        ),
        ({"engine": "vllm", "engine_tensor_parallel": 0}, "engine_tensor_parallel is 0"),
        (
            {"engine": "vllm", "engine_devices": (1, 2, 3), "engine_tensor_parallel": 2},
            r"engine_tensor_parallel is 2, which does not divide the 3 GPUs for answers \(1,2,3\)",
        ),
        (
            {"engine": "vllm", "engine_devices": (1, 2), "train_devices": (0, 1)},
            "GPU 1 is in both --engine-devices 1,2 and --train-devices 0,1; .* Remove one of the two flags",
        ),
        ({"lag": 2}, "it must be 0 or 1, the age of answers in updates"),
        ({"lag": 1, "dynamic_sampling": 1}, "needs the weights before the update"),
        ({"lag": 1, "correction": 0.0}, "treat answers of older weights"),
    ],
)
def test_conflicting_flags_are_refused(words, problem):
    with pytest.raises(ConfigError, match=problem):
        RlConfig(**words)


def test_learning_rate_of_a_foreign_model_is_reported():
    profile = recipes.smoke()
    own, usual = profile.phases["rl"], learning_on_policy(profile.phases["rl"], profile.phases["rl"].model)
    (said,) = compare.about_rates(profile, [usual])
    assert "the learning rate is 3e-06" in said and "instead of the profile's 0.0001" in said
    assert said.endswith("--set rl.optimizer.lr=RATE") and compare.about_rates(profile, [own]) == ()


def test_engine_with_full_memory_names_the_command_to_use(tmp_path):
    opening = EngineSettings(tmp_path, tmp_path, room=512, side_by_side=128, temperature=1.0, memory_share=0.9)
    log = tmp_path / "vllm.log"
    one = EngineProcess(opening, "0", log, 1.0)
    log.write_text("ValueError: No available memory for the cache blocks.\n")
    said = one._last_log_line()
    assert "--set rl.rl.side_by_side=64" in said and "rl.rl.engine_memory=0.95" in said and "up to 512 tokens" in said
    log.write_text("KeyError: 'x'\n")
    assert "--set" not in one._last_log_line()


def resolved(num_gpus, **rl):
    """Return the plan of the phase rl, and the step."""
    who = Persona(name="Ada", maker="us", purpose="to help")
    wanted = planning.TrainingRequest(phases=("rl",), profile="tiny", persona=who, rl={"engine": "vllm", **rl})
    request = Request(run="r", num_gpus=num_gpus)
    plan = planning.resolve(wanted, Inventory("s"), ROOT, run="r", request=request)
    return plan, plan.job.steps[-1]


@pytest.mark.parametrize(
    ("devices", "words", "told"),
    [
        (
            {"engine_devices": (2, 1), "engine_tensor_parallel": 2},
            ("0,3", "2,1"),
            "rl: GPUs 0,3 train, GPUs 2,1 answer; vLLM: 1 process, the model over 2 GPUs each (tensor parallel), "
            "with 0.9 of the memory of each GPU",
        ),
        (
            {"train_devices": (3,), "engine_memory": 0.7},
            ("3", "0,1,2"),
            "rl: GPU 3 trains, GPUs 0,1,2 answer; vLLM: 3 processes, the model on a GPU each, with 0.7 of the memory "
            "of each GPU",
        ),
        (
            {"engine_devices": (0,), "train_devices": (2, 3)},
            ("2,3", "0"),
            "rl: GPUs 2,3 train, GPU 0 answers, GPU 1 has no work; vLLM: 1 process, the model on a GPU each, with 0.9 "
            "of the memory of each GPU",
        ),
    ],
)
def test_plan_assigns_gpus_to_training_and_answers_and_the_step_follows(devices, words, told):
    plan, step = resolved(4, **devices)
    training, answering = words
    assert step.together == ("-m", "trainer.spread", "--train", training, "--answer", answering)
    assert told in plan.notes
    others = {one.together for one in plan.job.steps[:-1] if one.together}
    assert others == {("-m", "trainer.spread")}, "the phases before rl train on all"
    alone, usual = resolved(0)
    assert usual.together == ("-m", "trainer.spread") and not any(one.startswith("rl: GPU") for one in alone.notes)
    assert [one.fingerprint for one in alone.artifacts] == [one.fingerprint for one in plan.artifacts]
    with pytest.raises(UsageError, match="GPU 4 does not exist"):
        resolved(4, engine_devices=(4,))
    with pytest.raises(UsageError, match="--engine-tensor-parallel 2 does not divide the 3 GPUs for answers"):
        resolved(4, train_devices=(0,), engine_tensor_parallel=2)
    with pytest.raises(UsageError, match="--engine-tensor-parallel 4 does not divide the 2 attention heads"):
        resolved(5, engine_devices=(1, 2, 3, 4), engine_tensor_parallel=4)


def test_estimate_covers_the_training_gpus():
    nodes = recipe(("rl",), rl={"engine": "vllm", "train_devices": (2,)})
    request = Request(run="r", num_gpus=4)
    assert list(estimates.gpu_layouts(nodes["rl"].spec, request)) == ["ddp"]
    assert list(estimates.gpu_layouts(recipe(("rl",))["rl"].spec, request)) == ["ddp", "fsdp"]


def test_machine_with_fewer_gpus_than_planned_is_refused_and_a_cpu_machine_trains_on_its_cpu(capfd):
    assert spread.divide_gpus(["--train", "0", "--answer", "1", "-m", "trainer"], 0) == ([], [], ["-m", "trainer"])
    with pytest.raises(ValueError, match="GPU 5 does not exist: this machine has 2"):
        spread.divide_gpus(["--train", "0", "--answer", "1,5", "-m", "trainer"], 2)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("torch.cuda.device_count", lambda: 2)
        assert spread.main(["--train", "3", "--answer", "1", "-m", "trainer"]) == 2
    assert "GPU 3 does not exist: this machine has 2" in capfd.readouterr().err


SPREAD = """
import sys, torch
from trainer import spread
torch.cuda.device_count = lambda: 4
sys.exit(spread.main(sys.argv[1:]))
"""
MEMBER = """
import json, os, pathlib, sys
own = {name: os.environ.get(name) for name in ("LOCAL_RANK", "CUDA_VISIBLE_DEVICES", "SLIPWAY_ANSWERING_DEVICES")}
pathlib.Path(sys.argv[1], own["LOCAL_RANK"]).write_text(json.dumps(own))
"""


@pytest.mark.day_cases(1)
@pytest.mark.process
@pytest.mark.parametrize(
    ("seen", "words", "training", "answering", "over", "each"),
    [
        ("", ["--train", "3,1", "--answer", "2,0"], "3,1", "2,0", 1, ["2", "0"]),
        ("", ["--train", "3,1", "--answer", "2,0"], "3,1", "2,0", 2, ["2,0"]),
        ("4,5,6,7", ["--train", "1,0", "--answer", "3"], "5,4", "7", 1, ["7"]),
        ("4,5,6,7", ["--train", "0", "--answer", "1,2,3"], "4", "5,6,7", 3, ["5,6,7"]),
    ],
)
def test_training_processes_see_only_their_gpus_and_each_engine_its_share_of_the_others(
    tmp_path, monkeypatch, seen, words, training, answering, over, each
):
    """Torchrun starts the processes for real; only the number of GPUs is simulated."""
    (tmp_path / "member.py").write_text(MEMBER)
    environ = {**os.environ, "CUDA_VISIBLE_DEVICES": seen, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    command = [sys.executable, "-c", SPREAD, *words, str(tmp_path / "member.py"), str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = [json.loads(one.read_text()) for one in sorted(tmp_path.glob("[0-9]"))]
    assert [int(one["LOCAL_RANK"]) for one in found] == [*range(len(training.split(",")))]
    assert {one["CUDA_VISIBLE_DEVICES"] for one in found} == {training}
    assert {one["SLIPWAY_ANSWERING_DEVICES"] for one in found} == {answering}
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", training)
    monkeypatch.setenv("SLIPWAY_ANSWERING_DEVICES", answering)
    engines = engine_on(tmp_path, "cuda", engine_tensor_parallel=over).processes
    assert [one.worker.environ["CUDA_VISIBLE_DEVICES"] for one in engines] == each
    assert [one.worker.command[-2:] for one in engines] == [["serve-cuda", "trainer.rollouts.vllm_child"]] * len(each)
    asked = {
        "open": "folder",
        "dtype": "bfloat16",
        "room": 64,
        "side_by_side": 8,
        "memory_share": 0.8,
        "temperature": 1.0,
        "rank": 0,
    }
    opened = [vllm_child.options({**asked, "tensor_parallel": one.tensor_parallel}) for one in engines]
    assert {one["tensor_parallel_size"] for one in opened} == {over} and opened[0]["gpu_memory_utilization"] == 0.8


def engine_on(folder, device, **rl) -> Vllm:
    phase: Any = SimpleNamespace(
        tokenizer=SimpleNamespace(stops=[1], vocab_size=0),
        tokenizer_folder=folder,
        ranks=Ranks(),
        machine=SimpleNamespace(device=torch.device(device)),
        checkpoints=SimpleNamespace(folder=folder),
        config=SimpleNamespace(sequence_len=64),
        change=None,
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SLIPWAY_WORK", str(folder))
        return phase_rl.engine_of(phase, RlConfig(engine="vllm", **rl))


def test_engine_without_a_gpu_is_refused_and_a_cpu_engine_names_none(tmp_path, monkeypatch):
    monkeypatch.delenv("SLIPWAY_ANSWERING_DEVICES", raising=False)
    with pytest.raises(Refused, match="needs separate GPUs, .* Start the run with --engine-devices 1"):
        engine_on(tmp_path, "cuda")
    (only,) = engine_on(tmp_path, "cpu").processes
    assert "CUDA_VISIBLE_DEVICES" not in only.worker.environ
