"""Evaluation on a reinforcement learning task: greedy accuracy, and pass@1 and pass@k by sampling.

`measure` returns one value per problem; `of_mean` aggregates the values to a mean with an interval.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from data.problems.problem import read
from data.tokens.tokenizer import Tokenizer
from trainer.evaluation import intervals
from trainer.model.decoder import Decoder
from trainer.records.rl_config import RlConfig, pass_at
from trainer.rewards.task_rewards import judge_of
from trainer.rollouts.policy import Embedded, Policy, stops

FILE = "test.jsonl"
MOST = 1024  # problems per task
EACH = 8  # samples per problem: k of pass@k
DRAWN = 256  # problems with sampled answers
LONGEST = 512  # maximum answer tokens for tasks with worked solutions
MEAN = "normal, over problems"  # for fractional values, such as pass@1 of eight samples


def measure(model: Decoder, tokenizer: Tokenizer, task: str, folder: Path, unsafe: bool) -> dict[str, list[float]]:
    """Return, by measure name, a value between 0 and 1 per problem. Raises InputError, Refused.

    unsafe: run code of answers without a sandbox.
    """
    problems = [(task, one) for one in read(folder / FILE)[:MOST]]
    exact = max(len(tokenizer.encode(one.answer)) for _, one in problems) + 8
    room = model.config.max_position_embeddings
    config = RlConfig(
        max_new=min(exact if task not in ("gsm8k", "math", "mbpp") else LONGEST, room // 2),
        unsafe_rewards=unsafe,
        samples_each=EACH,
    )
    judge = judge_of(task, config)
    engine = Embedded(stops(tokenizer), config.side_by_side)
    engine.load_weights(model)
    policy = Policy(engine, tokenizer, {task: judge}, config, room)
    try:
        with torch.inference_mode():
            greedy = policy.greedy(problems)
            drawn = policy.round(problems[:DRAWN], EACH, policy.sampling, 0)
    finally:
        judge.close()
    right = [
        sum(one.is_right for one in drawn.rewards[start : start + EACH]) for start in range(0, len(drawn.rewards), EACH)
    ]
    return {
        f"task {task}": [float(one.is_right) for one in greedy.rewards],
        f"task {task} pass@1": [pass_at(1, one, EACH) for one in right],
        f"task {task} pass@{EACH}": [pass_at(EACH, one, EACH) for one in right],
    }


def of_mean(values: list[float], material: str) -> dict[str, Any]:
    """Return the mean of the values with an interval: Wilson for 0/1 values, else normal and clipped to [0, 1]."""
    if set(values) <= {0.0, 1.0}:
        found, method = intervals.share(int(sum(values)), len(values)), intervals.WILSON
    else:
        found, method = intervals.ratio(values, [1.0] * len(values)), MEAN
        found = replace(found, low=max(0.0, found.low), high=min(1.0, found.high))
    return {**found.to_dict(), "unit": "share", "of": len(values), "method": method, "material": material}
