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


NODE = """class Node:
    def __init__(self, data):
        self.data, self.left = data, None
def height(node):
    return 1 + height(node.left) if node else 0"""
ROOT = "import math\r\nroot = Node(1)\r\nroot.left = Node(2)\r\ndef twice(node): return 2 * height(node)\r\n"
OF_ROOT = (
    "assert (height(root)) == 2",
    "assert twice(root.left) == 2",
    "assert sorted([height(root), 1]) == [1, 2]",
    "assert math.isclose(math.sqrt(height(root.left)), 1.0)",
)


@pytest.mark.process
def test_setup_that_needs_a_class_of_the_answer_runs_behind_the_answer():
    judge = Mbpp(is_unsafe=True)
    try:
        wrong = NODE.replace("1 +", "2 +")
        assert [judge.pass_rate(code, ROOT, OF_ROOT) for code in (NODE, wrong, "def height(node): return 2")] == [
            1,
            0,
            0,
        ]
    finally:
        judge.close()


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
