"""Custom reward function: return a number, or named numbers that the trainer adds up.

./inv launch --phase rl --task my-questions.jsonl --reward examples/reward.py
"""


def reward(question: str, answer: str, completion: str) -> dict[str, float]:
    """Return 1 for a completion that contains the right answer, plus 0.1 below 200 characters."""
    is_right = answer.casefold() in completion.casefold()
    return {"right": float(is_right), "short": 0.1 * (len(completion) < 200)}
