"""GSM8K reward exactly as GRAIL computes it, including GRAIL's mistakes, for comparison with GRAIL's runs.

GRAIL reads only the first digits of an answer with two commas, removes commas from the answer but not from the gold
answer, treats 18.0 and 18 as different, takes the first of several numbers, and pays the "nothing behind" reward to
answers without answer tags. Source: GRAIL, research/trl/train_trl_grpo.py, 54d6342.
"""

import re
from collections.abc import Sequence

from trainer.rewards.reward import JudgedAnswer, Reward

ANSWER = re.compile(r"<SOLUTION>\s*(.+?)\s*</SOLUTION>", re.DOTALL | re.IGNORECASE)
THINKING = re.compile(r"<start_working_out>.*?</end_working_out>", re.DOTALL | re.IGNORECASE)
NUMBER = re.compile(r"[-+]?\d+(?:[\.,]\d+)?")
NUMERIC = re.compile(r"[-+]?[\d.,]+")
GOLD = re.compile(r"####\s*(.+)")


class GrailGsm8k:
    """GRAIL's weights: 0.6 for the number, 0.15 for a number alone, 0.1 for thinking, 0.1 for tags, 0.05 for the end.

    The 0.15 require answer tags around a number only, and no text after the tags. The 0.05 are for no text after the
    answer tags, or for no tags.
    """

    def __call__(self, some: Sequence[JudgedAnswer]) -> list[Reward]:
        return [self._judge_answer(one) for one in some]

    def close(self) -> None:
        """Do nothing: this judge starts no process."""

    def _judge_answer(self, said: JudgedAnswer) -> Reward:
        tags = ANSWER.search(said.text)
        answer = tags[1] if tags else ""
        behind = len(said.text) - tags.end() if tags else 0
        number, golds = NUMBER.search(answer), GOLD.findall(said.problem.answer)
        is_right = number is not None and bool(golds) and _plain(number[0].replace(",", "")) == _plain(golds[-1])
        parts = {
            "right": 0.6 * is_right,
            "number": 0.15 * (NUMERIC.fullmatch(answer.replace(" ", "")) is not None and not behind),
            "thinking": 0.1 * (THINKING.search(said.text) is not None),
            "tags": 0.1 * (tags is not None),
            "nothing behind": 0.05 * (not behind),
        }
        return Reward(parts, is_right)


def _plain(text: str) -> str:
    return text.strip().lower().rstrip(". ")
