"""Rewards for MATH answers: numbers, fractions and LaTeX with the same meaning as the gold answer.

The gold answer is the content of the last boxes of the solution. Textually equal answers (after normalization) and
whole numbers are compared here. math-verify compares the remaining answers in a child process with limits, because
evaluating model output may never finish.
"""

import re
from collections.abc import Sequence

from data.events import emit
from trainer.errors import Refused
from trainer.rewards.answers import answer_of, number, thinks, trailing
from trainer.rewards.latex import (
    PERCENT,
    boxed,
    counted,
    differ_in_brackets,
    differ_in_scale,
    gold_of,
    plain,
    unwrapped,
    with_blackboard,
    without_units,
)
from trainer.rewards.reward import JudgedAnswer, Reward
from trainer.rewards.worker import WorkerGone, of_answers

LIMIT_S = 5.0
SHORT = 50  # maximum characters after the answer
LONGEST = 400  # longest answer, in characters, that is parsed
VARIABLE = re.compile(r"\\?[A-Za-z]")
WORDS = re.compile(r"\\text\{.*\}|[A-Za-z]{3,}")
# Words that are no function, no unit and no part of the gold answer: math-verify reads only the last equation.
FOREIGN = re.compile(
    r"(?<![A-Za-z\\])(?!(?:infinity|arc(?:sin|cos|tan)|[a-zA-Z]?matrix|array|cases|aligned)(?![A-Za-z]))[A-Za-z]{5,}"
)
# A tower of powers may never finish; several powers side by side do.
SUSPECT = re.compile(r"\d \d|__|import|\*\*.*\*\*|\^[{( ]*[\w.]+[)} ]*\^[{( ]*[\w.]+[)} ]*\^")


class Math:
    """Judge for problems with a single answer in several possible spellings.

    The weights are 0.7 for the right answer, 0.15 for answer tags with little text after them, 0.1 for thinking, and
    0.05 for no text after the tags.
    """

    def __init__(self, limit_s: float = LIMIT_S) -> None:
        self.worker = of_answers("math", limit_s)
        self.has_begun = False

    def __call__(self, some: Sequence[JudgedAnswer]) -> list[Reward]:
        return [self._judge_answer(one) for one in some]

    def close(self) -> None:
        """Terminate the child process."""
        self.worker.close()

    def _judge_answer(self, said: JudgedAnswer) -> Reward:
        answer, behind = answer_of(said.text), trailing(said.text)
        thinking = 0.1 * thinks(said.text)
        if answer is None:
            return Reward({"thinking": thinking})
        is_right = self.is_same_answer(gold_of(said.problem.answer), answer)
        parts = {"right": 0.7 * is_right, "tags": 0.15 * (behind < SHORT), "thinking": thinking}
        return Reward(parts | {"nothing behind": 0.05 * (not behind)}, is_right)

    def is_same_answer(self, gold: str, answer: str) -> bool:
        """Return True if an answer equals the gold answer. Raises Refused if math-verify is not installed."""
        gold, answer = (boxed(one) or one for one in (gold, answer))
        if len(answer) > LONGEST:
            return gold.strip() == answer.strip()
        gold, answer = with_blackboard(gold, answer)
        gold, answer = (counted(unwrapped(one)) for one in (gold, answer))
        if differ_in_scale(gold, answer):
            return False
        percents = [bool(PERCENT.search(one)) for one in (gold, answer)]
        words = WORDS.fullmatch(gold)
        gold, answer = map(plain, without_units(gold, answer))
        if gold == answer or words and gold.casefold() == answer.casefold():
            return True
        if differ_in_brackets(gold, answer):
            return False
        one, other = number(gold), number(answer)
        if one is not None and other is not None and percents in ([True, False], [False, True]):
            return one == other * 100 if percents[0] else one * 100 == other
        if one is not None and other is not None and gold.strip("-+").isdigit() and answer.strip("-+").isdigit():
            return one == other
        if VARIABLE.fullmatch(gold) or VARIABLE.fullmatch(answer):
            return False  # math-verify treats X and x as equal
        if SUSPECT.search(answer) or any(one not in gold for one in FOREIGN.findall(answer)):
            return False
        self._start_worker()
        try:
            # math-verify reads 1,200 as a number, but `plain` keeps only the commas between values.
            return bool(self.worker.ask([one.replace(",", ", ") for one in (gold, answer)]))
        except WorkerGone as error:
            emit("note", text=f"rl: an answer of math counts as wrong, because checking failed: {error}")
            return False

    def _start_worker(self) -> None:
        """Start the child process. Raises Refused if the first start fails, before the child has received an answer."""
        if self.has_begun:
            return
        try:
            self.worker.ensure_started()
        except WorkerGone as error:
            raise Refused(
                f"the rewards of math need math-verify, but the math-verify process did not start ({error}). Install: "
                "pip install math-verify"
            ) from None
        self.has_begun = True
