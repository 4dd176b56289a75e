"""Answers of mbpp that try to pass tests without being right, and values that break a comparison."""

import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from data.problems.problem import Problem
from tests.trainer.rewards.programs import programs
from trainer.records.rl_config import RlConfig
from trainer.rewards import math_answers
from trainer.rewards.assertions import Test as OneTest
from trainer.rewards.assertions import parse_assertion
from trainer.rewards.code import Mbpp
from trainer.rewards.math_answers import Math
from trainer.rewards.reward import JudgedAnswer
from trainer.rewards.sandbox import plain
from trainer.rewards.task_rewards import judge_of

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the sandbox is Linux's")

SETUP = "import math"
# Of every form: a literal, a computed value, a Python function around the call, a predicate, a comprehension.
TESTS = (
    "assert add(1, 2) == 3",
    "assert add(2, 3) == sum([2, 3])",
    "assert add([1], [2]) == [1, 2] * 1",
    "assert sorted(add([2], [1])) == sorted([1, 2])",
    "assert set(add((1,), (2,))) == set([1, 2])",
    "assert len(add([1], [2])) == 2",
    "assert math.isclose(add(.1, .2), .3, rel_tol=1e-3)",
    "assert math.isclose(add(.1, .2), sum([.1, .2]), rel_tol=1e-3)",
    "assert add(1, 2) in (3, 3.0)",
    "assert add(1, 2) > 2",
    "assert all(add(one, one) == 2 * one for one in range(1, 4))",
    "assert add('b', 'a').startswith('ba')",
    "assert isinstance(add(1j, 2), complex)",
)
RIGHT = "def add(a, b):\n    return a + b"
CHEATS = programs("cheats.txt")
ODD_TESTS = (
    "assert math.isclose(f(3), 'a')",
    "assert math.isclose(f(3), 3, rel_tol=[1])",
    "assert math.isclose(f(3), 3, rel_tol=-1)",
    "assert math.isclose(f(3))",
    "assert f(3) == {[1]}",
    "assert f(3) == {[1]: 2}",
    "assert f(3) == " + "-" * 50_000 + "1",
    "assert f(3) == " + "[" * 5_000 + "]" * 5_000,
    "assert f(3) == set(3)",
    "assert f(3) == 1e400 - 1e400",
    "assert f(3) == '\x00",
    "assert",
    "\ud800",
    "assert f(3) == dict([1])",
    "assert f(3) is __import__('os')._exit(0)",
    "assert f(3) == (lambda: 1 / 0)()",
)


@pytest.fixture(scope="module")
def judge():
    found = Mbpp(is_unsafe=False)
    yield found
    found.close()


@pytest.mark.process
def test_right_answer_passes_each_form_of_test(judge):
    assert [one for one in TESTS if judge.pass_rate(RIGHT, SETUP, [one]) != 1.0] == []


OTHER_FORMS = (
    ("class P:\n    def __init__(self, x): self.x = x", "assert P(3).x == 3"),
    ("class P:\n    def twice(self, x): return 2 * x", "assert P().twice(2) == 2 + 2"),
    ("class P:\n    def __str__(self): return 'P'\ndef f(): return P()", "assert str(f()) == 'P'"),
    ("def f(x): x.sort()", "x = [2, 1]\nf(x)\nassert x == [1, 2]"),
    ("def f(x): x.update(b=2)", "x = {'a': 1}\nf(x)\nassert x == {'a': 1, 'b': 2}"),
    ("def f(g, x): return g(x)", "assert f(lambda one: one + 1, 2) == 3 * 1"),
    ("def f(x): return x", "assert list(map(f, (1, 2))) == [1] + [2]"),
    ("def f(x): raise ValueError('no')", "try:\n    f(1)\nexcept ValueError:\n    pass\nelse:\n    assert False"),
    ("def f(n): yield from range(n)", "assert list(f(3)) == [0, 1, 2]"),
    ("def sum(some): return 5", "assert sum([1]) == 5"),
)


@pytest.mark.process
@pytest.mark.parametrize(("code", "words"), OTHER_FORMS)
def test_test_of_an_unusual_form_passes_only_an_honest_answer(judge, code, words):
    assert judge.pass_rate(code, "", [words]) == 1.0
    assert judge.pass_rate("def f(*some): return None\nclass P: pass", "", [words]) == 0.0


@pytest.mark.process
def test_cheating_answers_pass_no_test(judge):
    assert len(CHEATS) >= 25
    with ThreadPoolExecutor(4) as pool:
        scores = pool.map(lambda code: judge.pass_rate(code, SETUP, TESTS), CHEATS.values())
        assert {name: one for name, one in zip(CHEATS, scores, strict=True) if one} == {}


@pytest.mark.process
def test_exception_during_a_verdict_fails_only_the_test_of_that_answer(judge):
    problem = Problem(question="", answer="", setup=SETUP, tests=("assert math.isclose(f(3), 2.5)",))
    odd = Problem(question="", answer="", setup=SETUP, tests=ODD_TESTS)
    texts = [f"<SOLUTION>def f(x): return {one}</SOLUTION>" for one in ("2.5", "10**400", "2.5")]
    found = judge(
        [*(JudgedAnswer(problem, text, True) for text in texts), *(JudgedAnswer(odd, text, True) for text in texts)]
    )
    assert [one.is_right for one in found] == [True, False, True, False, False, False]
    assert [one.parts["tests"] for one in found[3:]] == [0.0] * 3


@pytest.mark.parametrize("value", [10**400, float("nan"), "x", None, [1], 1j, object()])
def test_comparison_that_raises_is_false(value):
    assert not OneTest("f(1)", 2.5, "close").is_satisfied_by(value)
    assert not OneTest("f(1)", 2.5).is_satisfied_by(value)


def test_comparison_that_ends_in_its_own_error_is_false():
    class Raises:
        def __bool__(self):
            raise MemoryError

    assert not OneTest("f(1)", how="true").is_satisfied_by(Raises())


PLAIN = (
    None, True, -3, 2.5, float("inf"), 1j, "a\ud800", b"\x00", [1, [2]], (1, (2,)), {1, 2}, frozenset("a"),
    {"a": [1], (1, 2): {}}, range(1, 9, 2), 10**400,
)  # fmt: skip


def test_plain_data_is_transferred_unchanged():
    found = [plain.read(plain.write(one)) for one in PLAIN]
    assert found == list(PLAIN)
    assert [type(one) for one in found] == [type(one) for one in PLAIN]


@pytest.mark.parametrize(
    "text",
    [
        "", "[", "[" * 100_000, '["list"]', '["list", 1]', '["dict", [[1]]]', '["set", [["list", []]]]', "NaN", "1.5",
        '["float", 1]', '["float", "x"]', '["range", [1, 2]]', '["range", [1, 2, 0]]', '["fraction", [1, 0]]',
        '["decimal", "x"]', '["bytes", "x"]', '["eval", "1"]', '["date", "x"]', "1" * 5000, '{"a": 1}', 3, None,
        '["list", ' * 70 + "[]" + "]" * 70, '"' + "x" * (1 << 19) + '"', '["complex", ["1", "2", "3"]]',
    ],
)  # fmt: skip
def test_output_of_an_untrusted_process_must_be_plain_data(text):
    with pytest.raises(plain.NotPlainData):
        plain.read(text)


def test_assertion_is_compared_here_only_if_the_answer_alone_defines_the_callee():
    here = ("assert f(1) == 2", "assert f(1)", "assert not f(1)", "assert math.isclose(f(1), 2)")
    there = (
        "assert len(f(1)) == 2",
        "assert isinstance(f(1), int)",
        "assert f(1).g() == 2",
        "assert h(f(1)) == 2",
        "assert f(1) == sorted([2])",
        "assert f(1) == 2 == f(2)",
        "f(1)",
    )
    assert [parse_assertion(one, "import math\ndef h(x): ...").how for one in here] == [
        "equal",
        "true",
        "false",
        "close",
    ]
    assert {parse_assertion(one, "import math\ndef h(x): ...").how for one in there} == {"whole"}
    assert parse_assertion("assert f(1) == 2", "from math import *").how == "whole"


@pytest.mark.process
def test_first_answer_of_math_does_not_end_the_run(monkeypatch):
    monkeypatch.setattr(math_answers, "LONGEST", 1 << 20)
    judge = Math(limit_s=0.05)
    try:
        slow = JudgedAnswer(
            Problem(question="", answer="$\\boxed{x+1}$"), f"<SOLUTION>{'(x+' * 400}1{')' * 400}</SOLUTION>", True
        )
        assert [one.is_right for one in judge([slow])] == [False]
    finally:
        judge.close()


HOSTILE_TEXTS = (
    "", "\x00", "\ud800", "9" * 20_000, "1e999999999", "-" * 5_000, "1,000," * 3_000, "." * 5_000, "\u0662", "\u00b2",
    "\u2212\u221e", "NaN", "Infinity", "sNaN", "1_000", "$" * 5_000, "\\boxed{" * 2_000, "\\frac{" * 1_000, "(" * 3_000,
    "{" * 3_000 + "}" * 3_000, "\\text{" * 1_000, "10**400", "1/0", "\\frac{1}{0}", "0^{-1}", "x" * 399, "<SOLUTION>",
    "</SOLUTION>1", "\r\n", "\u202e1",
)  # fmt: skip
GOLDS = ("#### 72", "", "9" * 5_000, "\\boxed{", "\\boxed{\\frac{1}{0}}", "#### \u0662", "\ud800")


@pytest.mark.day_cases(1)
@pytest.mark.process
@pytest.mark.parametrize("task", ["gsm8k", "grail", "sort", "math"])
def test_no_answer_to_any_task_ends_a_batch(task):
    judge = judge_of("gsm8k" if task == "grail" else task, RlConfig(grail_compat=task == "grail"))
    try:
        for gold in GOLDS:
            some = [
                JudgedAnswer(Problem(question="", answer=gold), f"<SOLUTION>{one}</SOLUTION>", True)
                for one in HOSTILE_TEXTS
            ]
            assert len(judge(some)) == len(some)
    finally:
        judge.close()
