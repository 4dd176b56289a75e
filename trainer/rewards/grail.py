"""The reward of GSM8K as GRAIL computes it, its mistakes included: for who compares with its runs.

Only the first digits of an answer with two commas are read, commas are dropped from the answer and not from the gold,
18.0 is not 18, the first of several numbers counts, and what has no answer tags is paid for having nothing behind them.
Source: GRAIL, research/trl/train_trl_grpo.py, 54d6342.
"""

import re
from collections.abc import Sequence

from trainer.rewards.answers import thinks
from trainer.rewards.reward import Reward, Said

ANSWER = re.compile(r"<SOLUTION>\s*(.+?)\s*</SOLUTION>", re.DOTALL | re.IGNORECASE)
NUMBER = re.compile(r"[-+]?\d+(?:[\.,]\d+)?")
NUMERIC = re.compile(r"[-+]?[\d.,]+")
GOLD = re.compile(r"####\s*(.+)")


class GrailGsm8k:
    """0.6 for the number, 0.15 for a number alone and nothing behind it, 0.1 each for thinking and for answer tags.

    0.05 are for nothing behind the tags, or no tags.
    """

    def __call__(self, some: Sequence[Said]) -> list[Reward]:
        return [self._one(one) for one in some]

    def close(self) -> None:
        """Do nothing, as nothing was started."""

    def _one(self, said: Said) -> Reward:
        tags = ANSWER.search(said.text)
        answer = tags[1] if tags else ""
        behind = len(said.text) - tags.end() if tags else 0
        number, golds = NUMBER.search(answer), GOLD.findall(said.problem.answer)
        is_right = number is not None and bool(golds) and _plain(number[0].replace(",", "")) == _plain(golds[-1])
        parts = {
            "right": 0.6 * is_right,
            "number": 0.15 * (NUMERIC.fullmatch(answer.replace(" ", "")) is not None and not behind),
            "thinking": 0.1 * thinks(said.text),
            "tags": 0.1 * (tags is not None),
            "nothing behind": 0.05 * (not behind),
        }
        return Reward(parts, is_right)


def _plain(text: str) -> str:
    return text.strip().lower().rstrip(". ")
