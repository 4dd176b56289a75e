"""Settings of the phase rl: rollouts, rewards, loss, and the parser of their flags. Light: no torch here."""

import math
from dataclasses import dataclass
from typing import Any

from data.config import ConfigError
from data.references import COLUMNS
from trainer.records.fields import check_bounds, newer, rounding

LOSSES = ("dapo", "grpo", "dr_grpo", "gspo", "plain")
ENGINES = ("embedded", "vllm")


@dataclass(frozen=True, kw_only=True)
class RlConfig:
    """Group-relative policy optimisation. The rows of a step are answers: `group` answers per prompt.

    Sources: Shao et al., arXiv 2402.03300 (GRPO); Yu et al., arXiv 2503.14476 (DAPO); Liu et al., arXiv 2503.20783 (Dr.
    GRPO); Zheng et al., arXiv 2507.18071 (GSPO); nanochat, scripts/chat_rl.py (plain).
    """

    group: int = 8
    """Answers per prompt; divides `rows`."""
    max_new: int = 256
    """Maximum tokens of an answer."""
    temperature: float = 1.0
    """Temperature of sampling and of the log-probabilities in the loss."""
    top_k: int = 0
    """Sample only from this many of the likeliest ids; 0 = all, as the loss assumes."""
    top_p: float = 1.0
    """Sample only from the likeliest ids with this total probability."""
    loss: str = "dapo"
    """`dapo`: mean over all tokens of the batch; `grpo`: mean over the tokens of each answer, then over answers;
    `dr_grpo`: each answer divided by `max_new` tokens, and advantages not divided by the standard deviation; `gspo`: a
    single ratio per answer; `plain`: no ratio, no clipping, no division by the standard deviation."""
    clip_low: float = 0.2
    """Lower clip range: the ratio to the sampling policy is clipped to at least 1 - clip_low."""
    clip_high: float = 0.28
    """Upper clip range: the ratio to the sampling policy is clipped to at most 1 + clip_high."""
    beta: float = 0.0
    """Weight of the KL divergence (k3) from the model at the start of the phase; 0 = none, and no copy of the start
    model is kept."""
    num_iterations: int = 1
    """Updates on the same answers."""
    correction: float = 2.0
    """Maximum importance weight of a token whose probability differs between the engine, with `lag` of earlier weights,
    and the trainer; 0 = no correction."""
    dynamic_sampling: int = 0
    """Maximum number of retries with other prompts, replacing prompts whose answers all have the same reward."""
    overlong: int = 0
    """Number of last tokens of `max_new` with a length penalty of up to 1; 0 = none."""
    mask_truncated: bool = False
    """Exclude truncated answers from the loss."""
    reward: str = ""
    """Text of a Python file with `reward(question, answer, completion)`, replacing the reward of the task."""
    engine: str = "embedded"
    """Engine for the answers. `embedded`: the model in training; `vllm`: vLLM in separate processes with new weights
    before each step: a single process on a machine without a GPU, else a process on each of `engine_devices`, or on
    each group of `engine_tensor_parallel` of them."""
    engine_devices: tuple[int, ...] = rounding(())
    """GPUs of the machine, counted from 0, for vLLM; () = all except `train_devices`."""
    train_devices: tuple[int, ...] = rounding(())
    """GPUs of the machine for training; () = all except `engine_devices`."""
    engine_tensor_parallel: int = rounding(1)
    """GPUs per vLLM process for the model; divides the number of `engine_devices` and the attention heads of the
    model."""
    engine_memory: float = rounding(0.9)
    """Share of the memory of each engine GPU for vLLM."""
    lag: int = newer(0)
    """1: the answers of a step come from the weights before the last update, so that vLLM generates while the model
    learns."""
    eval_every: int = 10
    """Steps between measurements on the watched problems; 0 = only at the end."""
    eval_problems: int = 64
    """Number of problems in each measurement."""
    test_problems: int = 1024
    """Number of held-out problems for the final measurement with greedy answers."""
    drawn_problems: int = newer(256)
    """Number of problems with sampled answers, for pass@1 and pass@k: k answers each cost k times as much."""
    samples_each: int = 8
    """Sampled answers per problem: k of pass@k."""
    side_by_side: int = rounding(128)
    """Answers generated at the same time."""
    shown: float = rounding(0.0)
    """Share of task demonstrations in sft's mixture if sft and rl are requested together: a model without any right
    answer cannot learn. The setting is part of sft's fingerprint, not of rl's."""
    unsafe_rewards: bool = newer(False)
    """Run the code of mbpp's answers even without a jail on this machine."""
    grail_compat: bool = newer(False)
    """Reward answers to gsm8k as GRAIL does, including GRAIL's mistakes."""

    def __post_init__(self) -> None:
        check_bounds(
            self, "max_new num_iterations eval_problems test_problems drawn_problems samples_each side_by_side", 1
        )
        check_bounds(self, "clip_low clip_high beta correction dynamic_sampling overlong eval_every top_k shown", 0)
        check_bounds(self, "lag", 0)
        check_bounds(self, "engine_tensor_parallel", 1)
        check_bounds(self, "temperature", 0, above=True)
        if self.group < 2:
            raise ConfigError(
                f"group is {self.group}; it must be at least 2, because the loss compares the answers of a group"
            )
        self._check_devices()
        if self.lag > 1:
            raise ConfigError(f"lag is {self.lag}; it must be 0 or 1, the age of answers in updates")
        if self.lag and self.dynamic_sampling:
            raise ConfigError(
                "lag is 1, but dynamic_sampling needs the weights before the update. Use only one of the two settings"
            )
        if self.lag and not self.correction:
            raise ConfigError(
                "lag is 1, but correction is 0: the loss would treat answers of older weights as answers of the "
                "current weights. Set correction, such as 2.0"
            )
        if self.loss not in LOSSES:
            raise ConfigError(f"loss is {self.loss!r}; known: {', '.join(LOSSES)}")
        if self.engine not in ENGINES:
            raise ConfigError(f"engine is {self.engine!r}; known: {', '.join(ENGINES)}")
        if not 0 < self.engine_memory <= 1:
            raise ConfigError(f"engine_memory is {self.engine_memory}; it must be a share in (0, 1]")
        if not 0 < self.top_p <= 1:
            raise ConfigError(f"top_p is {self.top_p}; it must lie in (0, 1]")
        if self.overlong >= self.max_new:
            raise ConfigError(f"overlong is {self.overlong}; it must be below max_new, {self.max_new} tokens")

    def _check_devices(self) -> None:
        for name in ("engine_devices", "train_devices"):
            some = getattr(self, name)
            words = ",".join(map(str, some))
            if any(one < 0 for one in some):
                raise ConfigError(f"{name} is {words}; GPU numbers start at 0")
            if len(set(some)) < len(some):
                raise ConfigError(f"{name} is {words}; the list names a GPU twice")
            if some and self.engine != "vllm":
                raise ConfigError(
                    f"{name} is {words}, but the engine {self.engine} has no separate GPUs. Use --engine vllm"
                )
        spread = self.engine_tensor_parallel
        if spread > 1 and self.engine != "vllm":
            raise ConfigError(
                f"engine_tensor_parallel is {spread}, but the engine {self.engine} has no tensor parallelism. "
                "Use --engine vllm"
            )
        answering = self.engine_devices
        if len(answering) % spread:
            raise ConfigError(
                f"engine_tensor_parallel is {spread}, which does not divide the {len(answering)} GPUs "
                f"for answers ({','.join(map(str, answering))})"
            )
        if both := sorted({*answering} & {*self.train_devices}):
            raise ConfigError(
                f"GPU {','.join(map(str, both))} is in both --engine-devices {','.join(map(str, answering))} and "
                f"--train-devices {','.join(map(str, self.train_devices))}; a GPU can only answer or "
                "train. Remove one of the two flags: the run then assigns the remaining GPUs"
            )

    def divide_gpus(self, num_gpus: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return the GPUs for training and the GPUs for answers on a machine with `num_gpus` GPUs.

        Without configured devices, all GPUs train. The result may contain configured GPUs missing on the machine.
        """
        training, answering = self.train_devices, self.engine_devices
        if not training and not answering:
            return tuple(range(num_gpus)), ()
        rest = tuple(one for one in range(num_gpus) if one not in training and one not in answering)
        return training or rest, answering or rest

    @property
    def has_ratio(self) -> bool:
        """Return True if the sampling policy can differ from the trained policy, so that the loss uses a ratio."""
        return self.loss != "plain"

    @property
    def divides_by_spread(self) -> bool:
        """Return True if advantages are divided by the standard deviation of the group."""
        return self.loss not in ("dr_grpo", "plain")


def soft_overlong(length: int, config: RlConfig) -> float:
    """Return the length penalty of an answer: from 0 down to -1 over the last `overlong` tokens (DAPO, eq. 13)."""
    if not config.overlong:
        return 0.0
    return -min(1.0, max(0.0, (length - (config.max_new - config.overlong)) / config.overlong))


def pass_at(k: int, right: int, of: int) -> float:
    """Return the unbiased estimate of the probability of a right answer among k, from `right` of `of` samples.

    Source: Chen et al., arXiv 2107.03374.
    """
    if of - right < k:
        return 1.0
    return 1.0 - math.prod((of - right - one) / (of - one) for one in range(k))


def parse_tasks(words: str) -> dict[str, float] | None:
    """Return the weights of `sort`, `my.jsonl` or `sort=1,gsm8k=3`; None for an empty text. Raises ConfigError."""
    found: dict[str, float] = {}
    for word in filter(None, (part.strip() for part in words.split(","))):
        source, equals, weight = word.rpartition("=")
        if COLUMNS.search(word) and not COLUMNS.search(source):  # the last = belongs to a column
            source, equals = word, ""
        try:
            found[source or word] = float(weight) if equals else 1.0
        except ValueError:
            found = {}
        if not found or not 0 < found[source or word] < math.inf:
            raise ConfigError(f"--task {word}: expected a task, or TASK=WEIGHT, such as sort or sort=1,gsm8k=3")
    return found or None


def parse_reward(
    code: str,
    is_unsafe: bool,
    engine: str = "",
    lag: int = 0,
    answering: str = "",
    training: str = "",
    tensor_parallel: int | None = None,
) -> dict[str, Any]:
    """Return the flags of rl as fields of RlConfig.

    code: text of the file in `--reward`; the other arguments are `--unsafe-rewards`, `--engine`, `--lag`, the validated
    numbers of `--engine-devices` and `--train-devices`, and `--engine-tensor-parallel`. Raises ConfigError for an
    unknown engine.
    """
    if engine and engine not in ENGINES:
        raise ConfigError(f"--engine {engine}: known: {', '.join(ENGINES)}")
    found: dict[str, Any] = {"unsafe_rewards": True} if is_unsafe else {}
    found |= {"engine": engine} if engine else {}
    for name, devices in (("engine_devices", answering), ("train_devices", training)):
        found |= {name: tuple(map(int, devices.split(",")))} if devices else {}
    found |= {"lag": lag} if lag else {}
    found |= {} if tensor_parallel is None else {"engine_tensor_parallel": tensor_parallel}
    return {**found, "reward": code} if code else found
