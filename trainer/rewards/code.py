"""Rewards of MBPP's answers, which are code: the share of the tests that it passes.

Of `assert f(x) == literal` the jailed process is given `f(x)` alone; what that gives is compared here, so that no code
can answer from the test, end the process early or redefine equality. An assertion of another form is run as a whole.
"""

import ast
import math
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from trainer.errors import Refused
from trainer.rewards import jail
from trainer.rewards.answers import answer_of, thinks, trailing
from trainer.rewards.reward import Reward, Said

BUILDERS = {"set": set, "tuple": tuple, "list": list, "frozenset": frozenset, "dict": dict}
SHORT = 50  # most characters that may follow the answer


@dataclass(frozen=True)
class Test:
    """One assertion: a call whose value is compared here, or the whole of it, where it has another form."""

    call: str
    expected: Any = None
    how: str = "equal"
    """`equal`, `true`, `false`, `close` or `whole`."""
    tolerance: tuple[float, float] = (1e-9, 0.0)

    def holds(self, found: jail.Outcome) -> bool:
        """Return whether the outcome is the right one."""
        if found.value is None:
            return False
        if self.how == "whole":
            return True
        try:
            value = _value(ast.parse(found.value, mode="eval").body)
        except (ValueError, SyntaxError, RecursionError, MemoryError, TypeError):
            return False
        if self.how in ("true", "false"):
            return bool(value) == (self.how == "true")
        if self.how == "close":
            relative, absolute = self.tolerance
            is_number = isinstance(value, (int, float))
            return is_number and math.isclose(value, self.expected, rel_tol=relative, abs_tol=absolute)
        return _same(value, self.expected)


class Mbpp:
    """Programs that must pass tests.

    0.7 times the share of tests passed, 0.1 for code that compiles, 0.1 for answer tags with little behind them, 0.1
    for thinking. An answer is right when it passes all tests.
    """

    def __init__(self, is_unsafe: bool) -> None:
        """Look for a jail. Raises Refused where there is none, unless `is_unsafe`."""
        self.jail = jail.kind()
        if not self.jail and not is_unsafe:
            raise Refused(
                "mbpp runs code that the model writes, and this machine has nothing to lock it in: neither Landlock "
                "with seccomp (Linux 5.13) nor bubblewrap (apt-get install bubblewrap); --unsafe-rewards runs it with "
                "limits of time and memory alone: it can read your keys and use the network"
            )
        self.pool = ThreadPoolExecutor(max(1, len(os.sched_getaffinity(0))))

    def __call__(self, some: Sequence[Said]) -> list[Reward]:
        return list(self.pool.map(self._one, some))

    def close(self) -> None:
        """End the threads."""
        self.pool.shutdown()

    def _one(self, said: Said) -> Reward:
        code = answer_of(said.text)
        parts = {"thinking": 0.1 * thinks(said.text)}
        if code is None:
            return Reward(parts)
        code = unfenced(code)
        parts["tags"] = 0.1 * (trailing(said.text) < SHORT)
        try:
            compile(code, "answer", "exec")
        except (SyntaxError, ValueError, MemoryError, RecursionError):
            return Reward(parts | {"compiles": 0.0, "tests": 0.0})
        passed = self.passed(code, said.problem.setup, said.problem.tests)
        return Reward(parts | {"compiles": 0.1, "tests": 0.7 * passed}, passed == 1)

    def passed(self, code: str, setup: str, words: Sequence[str]) -> float:
        """Return the share of the tests that hold."""
        tests = [test(one) for one in words]
        calls = [one for one in tests if one.how != "whole"]
        wholes = [one for one in tests if one.how == "whole"]
        found = jail.run(f"{setup}\n{code}", [one.call for one in calls], [one.call for one in wholes], self.jail)
        held = [one.holds(outcome) for one, outcome in zip([*calls, *wholes], found, strict=True)]
        return sum(held) / len(held) if held else 0.0


def unfenced(code: str) -> str:
    """Return code without the ``` lines around it."""
    lines = code.strip().split("\n")
    if lines[0].startswith("```") and lines[-1].strip() == "```":
        lines = lines[1:-1]
    return "\n".join(lines)


def test(words: str) -> Test:
    """Return the call in one assertion, and the value it must return."""
    try:
        (statement,) = ast.parse(words.strip()).body
    except (SyntaxError, ValueError):
        return Test(words, how="whole")
    if not isinstance(statement, ast.Assert):
        return Test(words, how="whole")
    asked = statement.test
    try:
        if isinstance(asked, ast.Compare) and len(asked.ops) == 1 and isinstance(asked.ops[0], (ast.Eq, ast.Is)):
            left, right = asked.left, asked.comparators[0]
            return Test(ast.unparse(left), _value(right))
        if isinstance(asked, ast.Call) and ast.unparse(asked.func) in ("math.isclose", "isclose"):
            return _close(asked)
        if isinstance(asked, ast.UnaryOp) and isinstance(asked.op, ast.Not):
            return Test(ast.unparse(asked.operand), how="false")
        if isinstance(asked, ast.Call):
            return Test(ast.unparse(asked), how="true")
    except ValueError:
        pass  # the expected value is no literal
    return Test(words, how="whole")


def _close(asked: ast.Call) -> Test:
    call, expected = asked.args[:2]
    given = {one.arg: float(_value(one.value)) for one in asked.keywords}
    return Test(
        ast.unparse(call), _value(expected), "close", (given.get("rel_tol", 1e-9), given.get("abs_tol", 0.0))
    )  # fmt: skip


def _value(node: ast.expr) -> Any:
    """Return the value of a literal, or of set(...), tuple(...) and so on of one. Raises ValueError."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in BUILDERS:
        if len(node.args) > 1 or node.keywords:
            raise ValueError("no literal")
        return BUILDERS[node.func.id](*(_value(one) for one in node.args))
    return ast.literal_eval(node)


def _same(value: Any, expected: Any) -> bool:
    """Return whether both are equal, and of one kind: 1 is not True; but 1 is 1.0, as in the tests' own `==`."""
    numbers = (int, float, complex)
    if isinstance(value, bool) or isinstance(expected, bool):
        return type(value) is type(expected) and value == expected
    if isinstance(value, numbers) and isinstance(expected, numbers):
        return bool(value == expected)
    return type(value) is type(expected) and bool(value == expected)
