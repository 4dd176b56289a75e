"""A reward of your own: what an answer is worth, as a number or as numbers by name, which are added up.

./inv launch --phase rl --task my-questions.jsonl --reward examples/reward.py
"""


def reward(question: str, answer: str, completion: str) -> dict[str, float]:
    """Return 1 for an answer that holds the right one, and a little for a short one."""
    is_right = answer.casefold() in completion.casefold()
    return {"right": float(is_right), "short": 0.1 * (len(completion) < 200)}
