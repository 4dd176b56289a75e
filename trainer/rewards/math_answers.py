"""Rewards of answers to MATH: numbers, fractions and LaTeX that mean the same as the gold answer.

In: an answer and a solution whose last box holds the right one. What is the same word for word is decided here; all
else by math-verify, in a process with limits, since what a model writes may take for ever.
"""

import re
from collections.abc import Sequence

from data.events import emit
from trainer.errors import Refused
from trainer.rewards.answers import answer_of, number, thinks, trailing
from trainer.rewards.reward import Reward, Said
from trainer.rewards.worker import NoAnswer, of_answers

LIMIT_S = 5.0
SHORT = 50  # most characters that may follow the answer
LONGEST = 400  # characters of an answer that is looked at
VARIABLE = re.compile(r"\\?[A-Za-z]")
SUSPECT = re.compile(r"__|import|\*\*.*\*\*|\^.*\^.*\^")


class Math:
    """Problems with one answer, which may be written in many ways.

    0.7 for the right answer, 0.15 for answer tags with little behind them, 0.1 for thinking, 0.05 for nothing behind
    them.
    """

    def __init__(self, limit_s: float = LIMIT_S) -> None:
        self.worker = of_answers("math", limit_s)
        self.has_begun = False

    def __call__(self, some: Sequence[Said]) -> list[Reward]:
        return [self._one(one) for one in some]

    def close(self) -> None:
        """End its process."""
        self.worker.close()

    def _one(self, said: Said) -> Reward:
        answer, behind = answer_of(said.text), trailing(said.text)
        thinking = 0.1 * thinks(said.text)
        if answer is None:
            return Reward({"thinking": thinking})
        is_right = self.same(boxed(said.problem.answer) or said.problem.answer, answer)
        parts = {"right": 0.7 * is_right, "tags": 0.15 * (behind < SHORT), "thinking": thinking}
        return Reward(parts | {"nothing behind": 0.05 * (not behind)}, is_right)

    def same(self, gold: str, answer: str) -> bool:
        """Return whether an answer says what the gold says. Raises Refused where math-verify is not installed."""
        gold, answer = plain(gold), plain(boxed(answer) or answer)
        if gold == answer:
            return True
        one, other = number(gold), number(answer)
        if one is not None and other is not None and gold.strip("-+").isdigit() and answer.strip("-+").isdigit():
            return one == other
        if VARIABLE.fullmatch(gold) or VARIABLE.fullmatch(answer):
            return False  # math-verify takes X for x
        if len(answer) > LONGEST or SUSPECT.search(answer):
            return False
        self._begin()
        try:
            return bool(self.worker.ask([gold, answer]))
        except NoAnswer as error:
            emit("note", text=f"rl: an answer of math was given up on: {error}")
            return False

    def _begin(self) -> None:
        """Start the process. Raises Refused where the first one does not begin: no answer has been put to it then."""
        if self.has_begun:
            return
        try:
            self.worker.begin()
        except NoAnswer as error:
            raise Refused(
                f"the rewards of math need math-verify, whose process did not begin ({error}); install it: "
                "pip install math-verify"
            ) from None
        self.has_begun = True


def boxed(text: str) -> str:
    r"""Return the text in the last \boxed{}, braces inside it counted; "" where there is none."""
    at = text.rfind("\\boxed{")
    if at < 0:
        return ""
    start = at + len("\\boxed{")
    depth = 1
    for place in range(start, len(text)):
        depth += {"{": 1, "}": -1}.get(text[place], 0)
        if not depth:
            return text[start:place]
    return ""


def plain(text: str) -> str:
    """Return LaTeX without what does not change its meaning: spacing, sizes of brackets, units, dollar signs."""
    text = text.strip().strip("$").strip().rstrip(".")
    text = re.sub(r"\\[dtc]frac", r"\\frac", text)
    text = re.sub(r"\\frac(\d)(\d)", r"\\frac{\1}{\2}", text)
    text = re.sub(r"\\(left|right)(?![a-z])|\\[,!;: ]|\\%|%|\\\$|\^\{?\\circ\}?|\\degree", "", text)
    text = re.sub(r"\\(?:text|mathrm|textbf)\{([^{}]*)\}", r"\1", text)
    text = re.sub(r"(?<=\d)(?:,|\{,\})(?=\d{3}(?!\d))", "", text)
    text = re.sub(r"\s+", "", text)
    return re.sub(r"^\(([A-Za-z])\)$", r"\1", text)
