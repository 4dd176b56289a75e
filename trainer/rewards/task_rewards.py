"""Judges of the built-in tasks: model answers in, rewards by component out.

The weights are GRAIL's, with GRAIL's mistakes fixed: an answer earns format rewards only with answer tags, and numbers
are compared as numbers. `grail_compat` selects GRAIL's original GSM8K reward.
"""

from collections.abc import Sequence

from trainer.records.rl_config import RlConfig
from trainer.rewards import answers
from trainer.rewards.code import Mbpp
from trainer.rewards.extension_judge import ExtensionJudge
from trainer.rewards.grail import GrailGsm8k
from trainer.rewards.math_answers import Math
from trainer.rewards.reward import Judge, JudgedAnswer, Reward


class ExactJudge:
    """Judge that returns 1 for the exact answer text of an ended answer, else 0."""

    def __call__(self, some: Sequence[JudgedAnswer]) -> list[Reward]:
        found = [one.ended and one.text.strip() == one.problem.answer for one in some]
        return [Reward({"right": float(one)}, one) for one in found]

    def close(self) -> None:
        """Do nothing: this judge starts no process."""


class Gsm8k:
    """Judge for word problems with a number as the answer.

    The weights are 0.6 for the right number, 0.15 for a number alone with no text after the tags, 0.1 for thinking, 0.1
    for the answer tags, and 0.05 for no text after the tags.
    """

    def __call__(self, some: Sequence[JudgedAnswer]) -> list[Reward]:
        return [self._judge_answer(one) for one in some]

    def _judge_answer(self, said: JudgedAnswer) -> Reward:
        answer, behind = answers.answer_of(said.text), answers.trailing(said.text)
        value = answers.number(answer) if answer else None
        is_right = value is not None and value == answers.gold_number(said.problem.answer)
        if answer is None:
            return Reward({"thinking": 0.1 * answers.thinks(said.text)})
        only = answers.ONLY_NUMBER.fullmatch(answer.replace(" ", "")) is not None
        return Reward(
            {
                "right": 0.6 * is_right,
                "number": 0.15 * (only and not behind),
                "thinking": 0.1 * answers.thinks(said.text),
                "tags": 0.1,
                "nothing behind": 0.05 * (not behind),
            },
            is_right,
        )

    def close(self) -> None:
        """Do nothing: this judge starts no process."""


def judge_of(task: str, config: RlConfig) -> Judge:
    """Return the judge of a task. Raises Refused if this machine cannot judge the task."""
    if config.reward:
        return ExtensionJudge(config.reward)
    if task == "math":
        return Math()
    if task == "mbpp":
        return Mbpp(config.unsafe_rewards)
    if task == "gsm8k":
        return GrailGsm8k() if config.grail_compat else Gsm8k()
    return ExactJudge()
