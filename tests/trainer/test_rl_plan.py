"""What the plan makes of words about reinforcement learning."""

import pytest

from data.config import ConfigError, Persona
from infra.errors import UsageError
from trainer import plan as planning
from trainer.profiles.street import TALK
from trainer.records import rl_words


def recipe(phases, **more):
    who = Persona(name="Ada", maker="us", purpose="to help")
    return planning.recipe(planning.Wanted(phases=phases, profile="tiny", persona=who, **more))


def test_where_rl_is_asked_for_sft_is_shown_its_task_and_is_else_what_it_was():
    alone, both = (recipe(("sft",)), recipe(("sft", "rl")))
    assert alone["sft"].spec.mixture == TALK and "sort" not in alone["sft"].inputs
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
    with pytest.raises(ConfigError, match="--engine vlm: known: embedded, vllm"):
        rl_words.parse_reward("", False, "vlm")
    with pytest.raises(ConfigError, match="expected a task"):
        rl_words.parse_tasks("sort=much")
