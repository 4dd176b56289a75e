"""Parser for the assertions of MBPP problems.

The parser splits an assertion into an expression for the answer process and the expected value: `assert f(1) == [2]`
becomes the call `f(1)` and the value [2]. The trainer compares the value of the call with the expected value.
Assertions of any other form run in the sandbox process `check`.
"""

import ast
import builtins
import math
from dataclasses import dataclass
from typing import Any

from trainer.rewards.sandbox.checking import bound

BUILDERS = {"set": set, "tuple": tuple, "list": list, "frozenset": frozenset, "dict": dict}
STAR = "*"


@dataclass(frozen=True)
class Test:
    """A parsed assertion: a call with an expected value, or the whole assertion if the form is unknown."""

    call: str
    expected: Any = None
    how: str = "equal"
    """Comparison: `equal`, `is`, `true`, `false`, `close` or `whole`."""
    tolerance: tuple[float, float] = (1e-9, 0.0)

    def is_satisfied_by(self, value: Any) -> bool:
        """Return True if `value` satisfies the assertion, False if the comparison raises."""
        try:
            return self._compare(value)
        except Exception:  # e.g. OverflowError for 10**400 against a float, RecursionError, MemoryError
            return False

    def _compare(self, value: Any) -> bool:
        if self.how in ("true", "false"):
            return bool(value) == (self.how == "true")
        if self.how == "close":
            relative, absolute = self.tolerance
            is_number = isinstance(value, (int, float))
            return is_number and math.isclose(value, self.expected, rel_tol=relative, abs_tol=absolute)
        if self.how == "is":
            return type(value) is type(self.expected) and bool(value == self.expected)
        # The `==` of the assertion: 1 equals True, a Counter equals a dict, and a view of keys equals a set.
        return bool(value == self.expected)


def parse_assertion(words: str, setup: str = "") -> Test:
    """Return the parsed assertion; `how` is `whole` for any form except a call of the answer with an expected value."""
    try:
        (statement,) = ast.parse(words.strip()).body
        assert isinstance(statement, ast.Assert)
        return _parsed(statement.test, known(setup)) or Test(words, how="whole")
    # The text is not a literal comparison, an assertion or valid Python; the sandbox process `check` decides.
    except Exception:
        return Test(words, how="whole")


def _parsed(asked: ast.expr, names: set[str]) -> Test | None:
    if isinstance(asked, ast.Compare) and len(asked.ops) == 1 and isinstance(asked.ops[0], (ast.Eq, ast.Is)):
        call, expected = asked.left, literal(asked.comparators[0])
        how = "is" if isinstance(asked.ops[0], ast.Is) else "equal"
        return Test(ast.unparse(call), expected, how) if is_answers(call, names) else None
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
    math.isclose(1, float(literal(expected)), rel_tol=tolerance[0], abs_tol=tolerance[1])  # raises for bad tolerances
    return Test(ast.unparse(call), literal(expected), "close", tolerance)


def split_setup(setup: str) -> tuple[str, str]:
    """Return the statements of a setup that run before the answer, and those with names that the answer defines."""
    try:
        statements = ast.parse(setup).body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return setup, ""
    early, found = list[ast.stmt](), statements
    while len(early) != len(found):
        early, names = found, {*dir(builtins), *(name for one in found for name in bound(one))}
        found = [one for one in early if STAR in names or _names(one) <= names]
    texts = [[ast.unparse(one) for one in statements if (one in early) is is_early] for is_early in (True, False)]
    return "\n".join(texts[0]), "\n".join(texts[1])


def _names(node: ast.AST) -> set[str]:
    return {one.id for one in ast.walk(node) if isinstance(one, ast.Name)}


def is_answers(asked: ast.expr, names: set[str]) -> bool:
    """Return True if an expression calls a function defined only by the answer.

    The result is False for `sorted(f(1))`, because the answer could redefine `sorted`.
    """
    return isinstance(asked, ast.Call) and isinstance(asked.func, ast.Name) and not {asked.func.id, STAR} & names


def known(setup: str) -> set[str]:
    """Return the names of Python's builtins and of the setup, plus STAR if the setup imports `*` from a module."""
    return {*dir(builtins), *bound(ast.parse(setup))}


def literal(node: ast.expr) -> Any:
    """Return the value of a literal, or of `set(...)`, `tuple(...)` etc. around a literal. Raises ValueError."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in BUILDERS:
        if len(node.args) > 1 or node.keywords:
            raise ValueError("no literal")
        return BUILDERS[node.func.id](*(literal(one) for one in node.args))
    return ast.literal_eval(node)
