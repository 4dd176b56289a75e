"""Assertions of mbpp's problems, taken apart into an expression that the answer's process evaluates and its value.

In: the words of an assertion, the problem's setup. Out: `Test`. `assert f(1) == [2]` has the call `f(1)` and the value
[2], which are compared in this process; any other form is evaluated by the process `check` of the sandbox.
"""

import ast
import builtins
import math
from dataclasses import dataclass
from numbers import Number
from typing import Any

from trainer.rewards.sandbox.checking import bound

BUILDERS = {"set": set, "tuple": tuple, "list": list, "frozenset": frozenset, "dict": dict}
STAR = "*"


@dataclass(frozen=True)
class Test:
    """One assertion: a call whose value is compared here, or the whole of it, where it has another form."""

    call: str
    expected: Any = None
    how: str = "equal"
    """`equal`, `true`, `false`, `close` or `whole`."""
    tolerance: tuple[float, float] = (1e-9, 0.0)

    def holds(self, value: Any) -> bool:
        """Return whether a value is the right one; an exception on the way to that says no."""
        try:
            return self._holds(value)
        except Exception:  # OverflowError of 10**400 beside a float, RecursionError, MemoryError
            return False

    def _holds(self, value: Any) -> bool:
        if self.how in ("true", "false"):
            return bool(value) == (self.how == "true")
        if self.how == "close":
            relative, absolute = self.tolerance
            is_number = isinstance(value, (int, float))
            return is_number and math.isclose(value, self.expected, rel_tol=relative, abs_tol=absolute)
        return same(value, self.expected)


def parsed(words: str, setup: str = "") -> Test:
    """Return an assertion, taken apart where it has the form of a call of the answer's beside a literal."""
    try:
        (statement,) = ast.parse(words.strip()).body
        assert isinstance(statement, ast.Assert)
        return _parsed(statement.test, known(setup)) or Test(words, how="whole")
    except Exception:  # no literal, no assertion, no code: the process `check` says what becomes of it
        return Test(words, how="whole")


def _parsed(asked: ast.expr, names: set[str]) -> Test | None:
    if isinstance(asked, ast.Compare) and len(asked.ops) == 1 and isinstance(asked.ops[0], (ast.Eq, ast.Is)):
        call, expected = asked.left, literal(asked.comparators[0])
        return Test(ast.unparse(call), expected) if is_answers(call, names) else None
    if isinstance(asked, ast.Call) and ast.unparse(asked.func) in ("math.isclose", "isclose"):
        return _close(asked, names)
    if isinstance(asked, ast.UnaryOp) and isinstance(asked.op, ast.Not):
        return Test(ast.unparse(asked.operand), how="false") if is_answers(asked.operand, names) else None
    return Test(ast.unparse(asked), how="true") if is_answers(asked, names) else None


def _close(asked: ast.Call, names: set[str]) -> Test | None:
    call, expected = asked.args
    given = {str(one.arg): float(literal(one.value)) for one in asked.keywords}
    if not is_answers(call, names) or not given.keys() <= {"rel_tol", "abs_tol"}:
        return None
    tolerance = (given.get("rel_tol", 1e-9), given.get("abs_tol", 0.0))
    math.isclose(1, float(literal(expected)), rel_tol=tolerance[0], abs_tol=tolerance[1])  # raises for odd ones
    return Test(ast.unparse(call), literal(expected), "close", tolerance)


def is_answers(asked: ast.expr, names: set[str]) -> bool:
    """Return whether an expression is a call of a function that only the answer can define.

    `sorted(f(1))` is none: the answer could redefine `sorted`.
    """
    return isinstance(asked, ast.Call) and isinstance(asked.func, ast.Name) and not {asked.func.id, STAR} & names


def known(setup: str) -> set[str]:
    """Return the names that are Python's or the setup's; with STAR where the setup imports all of a module."""
    return {*dir(builtins), *bound(ast.parse(setup))}


def literal(node: ast.expr) -> Any:
    """Return the value of a literal, or of set(...), tuple(...) and so on of one. Raises ValueError."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in BUILDERS:
        if len(node.args) > 1 or node.keywords:
            raise ValueError("no literal")
        return BUILDERS[node.func.id](*(literal(one) for one in node.args))
    return ast.literal_eval(node)


def same(value: Any, expected: Any) -> bool:
    """Return whether both are equal, and of one kind: 1 is not True; but 1 is 1.0, as in the tests' own `==`."""
    if isinstance(value, bool) or isinstance(expected, bool):
        return type(value) is type(expected) and value == expected
    if isinstance(value, Number) and isinstance(expected, Number):
        return bool(value == expected)
    kinds = {type(value), type(expected)}
    return (len(kinds) == 1 or kinds == {set, type({}.keys())}) and bool(value == expected)
