"""A reward for putting digits in order: the share of them that stand in their place."""


def reward(question: str, answer: str, completion: str) -> dict[str, float]:
    """Return 0.5 for the right answer, and up to 0.5 for digits in their place, fewer the more there are too many."""
    wanted, said = answer.split(), completion.split()
    in_place = sum(one == other for one, other in zip(wanted, said, strict=False))
    return {"right": 0.5 * (said == wanted), "places": 0.5 * in_place / max(len(wanted), len(said))}
