"""The plan made of flags about reinforcement learning."""

from dataclasses import replace

import pytest

from data.config import ConfigError, Persona
from infra.errors import UsageError
from infra.records import Request
from trainer import plan as planning
from trainer import recipes, spread
from trainer.config import Keeping
from trainer.plan import compare, rollout_engine
from trainer.profiles.street import learning_on_policy
from trainer.records import rl_words
from trainer.records.rl_config import RlConfig
from trainer.reuse import Choice
from trainer.rollouts.vllm_engine import EngineProcess, Opening


def recipe(phases, **more):
    who = Persona(name="Ada", maker="us", purpose="to help")
    return planning.recipe(planning.Wanted(phases=phases, profile="tiny", persona=who, **more))


def test_where_rl_is_asked_for_sft_is_shown_its_task_and_is_else_what_it_was():
    alone, both = (recipe(("sft",)), recipe(("sft", "rl")))
    assert alone["sft"].spec.mixture == recipes.tiny().phases["sft"].mixture and "sort" not in alone["sft"].inputs
    assert sum(both["sft"].spec.mixture.values()) == pytest.approx(1)
    assert both["sft"].spec.mixture["sort"] == both["rl"].spec.rl.shown > 0
    assert both["sft"].inputs["sort"] == both["rl"].inputs["sort"] == "sort" and both["rl"].inputs["sft"] == "sft"
    assert both["mid"].spec == alone["mid"].spec and both["rl"].artifact == "chatrl_checkpoints/tiny"


def test_a_task_of_rl_is_a_name_a_file_or_several_and_its_settings_are_checked(tmp_path):
    mine = tmp_path / "mine.jsonl"
    mine.write_text('{"question": "1 + 1", "answer": "2"}\n')
    nodes = recipe(("rl",), tasks={"gsm8k": 3.0, str(mine): 1.0}, problems=str(tmp_path), rl={"beta": 0.1})
    assert nodes["rl"].spec.mixture == {"gsm8k": 3.0, "mine": 1.0} and nodes["rl"].inputs["mine"] == "mine"
    assert nodes["mine"].spec.task == "file" and nodes["gsm8k"].spec.source == str(tmp_path)
    config = nodes["rl"].spec
    assert (config.rl.beta, config.num_frozen) == (0.1, 1)
    assert nodes["sft"].spec.mixture["gsm8k"] == config.rl.shown  # of a file there are no demonstrations
    with pytest.raises(UsageError, match="did you mean 'sort'"):
        recipe(("rl",), tasks={"sorts": 1.0})


def test_words_about_rl_are_read_and_a_reward_travels_as_text():
    found = rl_words.parse_reward("def reward(question, answer, completion): ...", True)
    assert found == {"unsafe_rewards": True, "reward": "def reward(question, answer, completion): ..."}
    assert rl_words.parse_reward("", False) == {}
    assert rl_words.parse_tasks("sort=1,gsm8k=3") == {"sort": 1.0, "gsm8k": 3.0} and rl_words.parse_tasks("") is None
    assert rl_words.parse_reward("", False, "vllm") == {"engine": "vllm"}
    assert rl_words.parse_reward("", False, "vllm", 2, 1) == {"engine": "vllm", "engine_devices": 2, "lag": 1}
    with pytest.raises(ConfigError, match="--engine vlm: known: embedded, vllm"):
        rl_words.parse_reward("", False, "vlm")
    with pytest.raises(ConfigError, match="expected a task"):
        rl_words.parse_tasks("sort=much")


@pytest.mark.parametrize(
    ("gpus", "nodes", "devices", "problem"),
    [
        (0, 1, 0, ""),
        (4, 1, 1, ""),
        (4, 1, 0, "--engine-devices 1, and the others train"),
        (4, 2, 1, "leave out --nodes"),
        (2, 1, 2, "none is left to train; --num-gpus 3 or more"),
    ],
)
def test_vllm_answers_on_gpus_of_one_machine_that_do_not_train(gpus, nodes, devices, problem):
    request = Request(run="a", num_gpus=gpus, nodes=nodes)
    rl = RlConfig(engine="vllm", engine_devices=devices)
    if problem:
        with pytest.raises(UsageError, match=problem):
            rollout_engine.check(rl, request)
        return
    rollout_engine.check(rl, request)
    rollout_engine.check(RlConfig(), replace(request, nodes=2))


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        ({"engine_devices": 1}, "the engine embedded has no GPU of its own"),
        ({"lag": 2}, "at most one update old"),
        ({"lag": 1, "dynamic_sampling": 1}, "asks weights that are gone"),
        ({"lag": 1, "loss": "plain"}, "plain has no ratio"),
    ],
)
def test_what_cannot_go_together_is_refused(words, problem):
    with pytest.raises(ConfigError, match=problem):
        RlConfig(**words)


def test_a_rate_that_somebody_elses_model_brings_is_told():
    profile = recipes.smoke()
    own, usual = profile.phases["rl"], learning_on_policy(profile.phases["rl"], profile.phases["rl"].model)
    (said,) = compare.about_rates(profile, [usual])
    assert "the learning rate is 3e-06" in said and "not the profile's 0.0001" in said
    assert said.endswith("--set rl.optimizer.lr=RATE") and compare.about_rates(profile, [own]) == ()


def test_an_engine_whose_memory_was_full_says_what_to_type(tmp_path):
    opening = Opening(tmp_path, tmp_path, room=512, side_by_side=128, temperature=1.0, memory_share=0.9)
    log = tmp_path / "vllm.log"
    one = EngineProcess(opening, "0", log, 1.0)
    log.write_text("ValueError: No available memory for the cache blocks.\n")
    said = one._last_words()
    assert "--set rl.rl.side_by_side=64" in said and "rl.rl.engine_memory=0.95" in said and "up to 512 tokens" in said
    log.write_text("KeyError: 'x'\n")
    assert "--set" not in one._last_words()


def test_the_gpus_that_answer_do_not_train(monkeypatch):
    nodes = recipe(("rl",), rl={"engine": "vllm", "engine_devices": 1})
    step = compare._step(nodes["rl"], nodes, {name: Choice("f" * 16, {}) for name in nodes}, "/store", Keeping())
    assert step.together == ("-m", "trainer.spread", "--spare", "1")
    begun = []
    monkeypatch.setattr("torch.cuda.device_count", lambda: 4)
    monkeypatch.setattr("torch.distributed.run.run", lambda words: begun.append(words))
    assert spread.main(["--spare", "1", "-m", "trainer", "rl"]) == 0
    assert begun[0].nproc_per_node == "3" and begun[0].training_script == "trainer"
    assert spread.main(["--spare", "4", "-m", "trainer", "rl"]) == 2 and len(begun) == 1
