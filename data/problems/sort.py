"""Sorting digits: a task that a model of four million parameters learns while a user watches.

Digits are separated by spaces, so every tokenizer splits them alike. Each question has one correct answer, verifiable
exactly. The number of demonstrations is limited, so that a model trained on them answers about half of the questions
correctly.
"""

from collections.abc import Iterator
from random import Random

from data.chat.phrasing import make_conversation
from data.problems.problem import Problem

LENGTHS = (3, 5)  # minimum and maximum number of digits
TRAIN, VAL, TEST, SHOWN = 4096, 128, 1024, 4096


def problems(seed: int) -> tuple[list[Problem], list[Problem], list[Problem]]:
    """Return (train, val, test) problems without overlap."""
    unseen = _different(Random(f"sort {seed}"))
    test, val, train = ([problem(next(unseen)) for _ in range(count)] for count in (TEST, VAL, TRAIN))
    return train, val, test


def demonstrations(seed: int) -> list[list[dict[str, str]]]:
    """Return conversations with correct answers for questions of the training part."""
    return [make_conversation(one.question, one.answer) for one in problems(seed)[0][:SHOWN]]


def problem(digits: tuple[int, ...]) -> Problem:
    """Return the problem for these digits."""
    return Problem(question=f"sort {_apart(digits)}", answer=_apart(tuple(sorted(digits))))


def _different(chance: Random) -> Iterator[tuple[int, ...]]:
    seen = set()
    while True:
        digits = tuple(chance.randrange(10) for _ in range(chance.randint(*LENGTHS)))
        if digits not in seen:
            seen.add(digits)
            yield digits


def _apart(digits: tuple[int, ...]) -> str:
    return " ".join(map(str, digits))
