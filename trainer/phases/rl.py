"""The phase rl: reinforcement learning on problems with checkable answers, starting from a chat model.

The model samples groups of answers per problem, judges assign rewards, and `PolicyLoss` trains on the advantages.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import torch

from data.config import StepContext
from data.problems.problem import Problem, read
from trainer.config import CheckpointOptions, PhaseConfig
from trainer.device import ANSWERING
from trainer.errors import Refused
from trainer.model.decoder import Decoder
from trainer.objectives.rl import PolicyLoss
from trainer.parallel.process_group import Ranks
from trainer.records.phase_registry import KINDS
from trainer.records.rl_config import RlConfig
from trainer.rewards.reward import Judge
from trainer.rewards.task_rewards import judge_of
from trainer.rollouts.policy import Embedded, Policy, RemoteEngine, RolloutEngine, stops
from trainer.rollouts.problem_sampler import Drawn, Problems
from trainer.rollouts.source import Rollouts
from trainer.rollouts.vllm_engine import ChangeFiles, EngineSettings, Vllm
from trainer.run import PhaseRun, phase_run, work_folder

SHOWN = 3  # problems shown repeatedly in the report


def start_model(phase: PhaseRun) -> Decoder | None:
    """Return the model at the start of the phase as the reference, or None without a KL divergence."""
    return phase.load_frozen_model(phase.before) if phase.config.rl and phase.config.rl.beta else None


def run(
    config: PhaseConfig,
    making: StepContext,
    keeping: CheckpointOptions,
    ranks: Ranks,
    rollouts: type[Rollouts] = Rollouts,
    reference: Callable[[PhaseRun], Decoder | None] = start_model,
) -> dict[str, Any]:
    """Train from the previous phase's model, evaluate on the test problems and publish.

    rollouts: class of the batches; reference: see `Rollouts`. Return facts about the artifact, {} on other processes.
    Raises Refused for a mixture without tasks or a sharded model.
    """
    with phase_run(config, making, keeping, ranks) as phase:
        config, rl, mixture = phase.config, phase.config.rl, phase.config.mixture or {}
        if rl is None or not mixture:
            raise Refused(
                f"{config.phase}: the configuration has no task; known: sort, gsm8k, math, mbpp, a .jsonl of problems"
            )
        if phase.parallel != "ddp":
            raise Refused(f"{config.phase} needs the whole model on each GPU; {phase.parallel} shards the model")
        judges: dict[str, Judge] = {task: judge_of(task, rl) for task in mixture}
        try:
            return train_and_publish(phase, mixture, judges, rollouts, reference)
        finally:
            for judge in judges.values():
                judge.close()


def train_and_publish(
    phase: PhaseRun,
    mixture: Mapping[str, float],
    judges: Mapping[str, Judge],
    rollouts: type[Rollouts],
    reference: Callable[[PhaseRun], Decoder | None],
) -> dict[str, Any]:
    """Train, evaluate and publish the model; return facts about the artifact, {} on other processes."""
    config, rl = phase.config, phase.config.rl
    assert rl is not None
    model = phase.initial_model()
    with closing(engine_of(phase, rl)) as engine:
        policy = Policy(engine, phase.tokenizer, judges, rl, config.sequence_len)
        asked = Problems({task: problems(phase, task, "train") for task in mixture}, mixture, config.seed)
        watched = some(phase, mixture, "val", rl.eval_problems)
        source = rollouts(config, rl, policy, asked, watched, reference(phase), phase.ranks)
        trained = phase.train(
            model, source, PolicyLoss(rl), SampleReport(policy, engine, model, source.watched[:SHOWN])
        )
        if trained is None:
            return {}
        model, final = trained
        engine.load_weights(model)
        unseen = some(phase, mixture, "test", rl.test_problems)
        measured = policy.measure(unseen, rl.samples_each, config.seed)
    return phase.publish(model, final, {"problems": len(unseen), **measured})


def engine_of(phase: PhaseRun, rl: RlConfig) -> RolloutEngine:
    """Return the rollout engine: embedded, vLLM on the first process, or a stub elsewhere. Raises Refused."""
    stop, change = stops(phase.tokenizer), phase.change
    if rl.engine == "embedded":
        return Embedded(stop, rl.side_by_side, change.kind if change else None)
    if not phase.ranks.is_first:
        return RemoteEngine()
    logs = work_folder().parent / "logs"  # log folder of a pod
    log = (logs if logs.is_dir() else work_folder()) / "vllm.log"
    opening = EngineSettings(
        phase.checkpoints.folder / ".engine",
        phase.tokenizer_folder,
        phase.config.sequence_len,
        rl.side_by_side,
        rl.temperature,
        rl.engine_memory,
        devices_of(phase, rl.engine_tensor_parallel),
        ChangeFiles(change.vllm_rank, change.write) if change else None,
    )
    return Vllm(stop, opening, log)


def devices_of(phase: PhaseRun, spread: int) -> tuple[str, ...]:
    """Return the GPU list of each vLLM process, from the GPUs reserved by `trainer.spread`; "" means the CPU.

    spread: number of GPUs per process (tensor parallelism). Raises Refused without reserved GPUs.
    """
    if phase.machine.device.type == "cpu":
        return ("",)
    names = os.environ.get(ANSWERING, "")
    if not names:
        raise Refused(
            f"rl: the engine vllm needs separate GPUs, and all {torch.cuda.device_count()} GPUs train. Start the run "
            "with --engine-devices 1, or use --engine embedded"
        )
    each = names.split(",")
    return tuple(",".join(each[first : first + spread]) for first in range(0, len(each), spread))


class SampleReport:
    """A callable returning greedy answers to fixed problems, with rewards, for the report."""

    def __init__(self, policy: Policy, engine: RolloutEngine, model: Decoder, asked: Sequence[Drawn]) -> None:
        self.policy, self.engine, self.model, self.asked = policy, engine, model, asked

    def __call__(self) -> list[dict[str, str]]:
        self.engine.load_weights(self.model)
        found = self.policy.greedy(self.asked)
        return [
            {"prompt": problem.question, "text": f"{text}  (reward {reward.total:.2f})"}
            for (_, problem), text, reward in zip(self.asked, found.texts, found.rewards, strict=True)
        ]


def problems(phase: PhaseRun, task: str, part: str) -> list[Problem]:
    """Return the problems of a part of a task: train, val or test. Raises Refused, InputError."""
    folder: Path = phase.input(KINDS.get(task, task))
    return read(folder / f"{part}.jsonl")


def some(phase: PhaseRun, mixture: Mapping[str, float], part: str, count: int) -> list[Drawn]:
    """Return the first problems of a part, `count` divided equally over tasks, at least one each."""
    each = max(1, count // len(mixture))
    return [(task, one) for task in sorted(mixture) for one in problems(phase, task, part)[:each]]
