"""Verdicts on 3,400 spellings of right and wrong answers; `tests.programs.compare_graders` compares other graders."""

import pytest

from data.problems.problem import Problem
from tests.trainer.rewards import variants
from tests.trainer.rewards.drawn_variants import drawn
from tests.trainer.rewards.variants import Variant
from trainer.rewards.code import Mbpp
from trainer.rewards.math_answers import Math
from trainer.rewards.reward import Judge, JudgedAnswer
from trainer.rewards.task_rewards import Gsm8k


def misjudged(judge: Judge, some: list[Variant]) -> list[Variant]:
    """Return the variants with a wrong verdict; in a variant of MBPP the gold answer is an assertion."""
    problems = [
        Problem(question="", answer=one.gold, tests=(one.gold,) if one.kind == variants.PROGRAM else ()) for one in some
    ]
    answers = [
        JudgedAnswer(problem, f"<SOLUTION>{one.answer}</SOLUTION>", True)
        for problem, one in zip(problems, some, strict=True)
    ]
    try:
        found = judge(answers)
    finally:
        judge.close()
    return [one for one, reward in zip(some, found, strict=True) if reward.is_right != one.is_right]


def test_number_is_right_in_every_usual_spelling():
    assert misjudged(Gsm8k(), list(variants.gsm8k())) == []


@pytest.mark.process
def test_program_is_right_when_its_assertions_hold():
    assert misjudged(Mbpp(is_unsafe=True), list(variants.mbpp())) == []


@pytest.mark.process
@pytest.mark.nightly
def test_latex_is_right_in_every_usual_spelling():
    assert misjudged(Math(limit_s=60.0), list(variants.math())) == []


@pytest.mark.process
@pytest.mark.nightly
@pytest.mark.parametrize("seed", [7301, 90210])
def test_drawn_latex_is_judged_with_at_most_one_refusal_of_a_hundred(seed):
    some = list(drawn(seed, 2000))
    wrong = misjudged(Math(limit_s=60.0), some)
    assert [one for one in wrong if not one.is_right] == []
    assert len(wrong) <= sum(one.is_right for one in some) // 100
