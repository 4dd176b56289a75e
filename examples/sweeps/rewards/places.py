"""Reward for the task `sort`: the share of digits in the right position."""


def reward(question: str, answer: str, completion: str) -> dict[str, float]:
    """Return 0.5 for the right answer, plus 0.5 * digits in the right position / longer of answer and completion."""
    wanted, said = answer.split(), completion.split()
    in_place = sum(one == other for one, other in zip(wanted, said, strict=False))
    return {"right": 0.5 * (said == wanted), "places": 0.5 * in_place / max(len(wanted), len(said))}
