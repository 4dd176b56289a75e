"""Digits to be put in order: a task that a model of four million parameters learns before your eyes.

The digits stand apart, so that every tokenizer cuts them alike. Of each question there is one right answer, which can
be checked exactly; and there are demonstrations, few enough that a model which has seen them is right about half of
the time.
"""

from collections.abc import Iterator
from random import Random

from data.chat.phrasing import talk
from data.problems.problem import Problem

LENGTHS = (3, 5)  # digits of a question, both included
TRAIN, VAL, TEST, SHOWN = 4096, 128, 1024, 4096


def problems(seed: int) -> tuple[list[Problem], list[Problem], list[Problem]]:
    """Return those to train on, to watch, and to measure at the end; none is in two of them."""
    unseen = _different(Random(f"sort {seed}"))
    test, val, train = ([problem(next(unseen)) for _ in range(count)] for count in (TEST, VAL, TRAIN))
    return train, val, test


def demonstrations(seed: int) -> list[list[dict[str, str]]]:
    """Return conversations in which questions of the training part are answered rightly."""
    return [talk(one.question, one.answer) for one in problems(seed)[0][:SHOWN]]


def problem(digits: tuple[int, ...]) -> Problem:
    """Return the question about these digits, with its answer."""
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
