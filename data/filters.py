"""Compile `--filter` expressions that select rows by column: `language_score > 0.9 and "pdf" not in url`.

`parse` turns an expression into a `RowFilter` with the used columns and a function of a row. The expression is parsed
with `ast` and compiled to closures for a fixed set of node types, never evaluated as Python. A comparison with null is
false, except with `is None`, `==` and `!=`.
"""

import ast
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from data.errors import ConfigError, InputError

Row = Mapping[str, Any]
Value = Callable[[Row], Any]
LONGEST = 2000  # maximum characters of an expression
DEEPEST = 50
ORDERED: dict[type, Callable[[Any, Any], Any]] = {
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}
EQUAL: dict[type, Callable[[Any, Any], Any]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Is: operator.eq,
    ast.IsNot: operator.ne,
}
SUMS: dict[type, Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.Mod: operator.mod,
}
KNOWN = "columns, numbers, texts, None, True, False, == != < <= > >=, in, is, and, or, not, + - * / %, len()"


@dataclass(frozen=True)
class RowFilter:
    """A filter expression, compiled for evaluation on rows."""

    words: str
    columns: tuple[str, ...]
    """Names of the used columns, without duplicates."""
    value: Value

    def keeps(self, row: Row) -> bool:
        """Return True if the row passes the filter. Raises InputError for values that cannot be compared."""
        try:
            return bool(self.value(row))
        except (TypeError, ZeroDivisionError) as error:
            seen = ", ".join(f"{name} is {row[name]!r:.60}" for name in self.columns)
            raise InputError(f"--filter {self.words!r}: {error}, where {seen}") from None


@lru_cache
def parse(words: str) -> RowFilter:
    """Return the compiled filter. Raises ConfigError for an invalid or unsupported expression."""
    if len(words) > LONGEST:
        raise ConfigError(f"filter: {len(words)} letters; the limit is {LONGEST}")
    try:
        tree = ast.parse(words.strip(), mode="eval")
    except (SyntaxError, ValueError, MemoryError, RecursionError) as error:
        raise ConfigError(f"filter {words!r}: {getattr(error, 'msg', None) or error}") from None
    value = _made(tree.body, words, DEEPEST)
    columns = tuple(dict.fromkeys(one.id for one in ast.walk(tree) if isinstance(one, ast.Name) and one.id != "len"))
    if not columns:
        raise ConfigError(f"filter {words!r}: the filter names no column")
    return RowFilter(words, columns, value)


def _made(node: ast.AST, words: str, depth: int) -> Value:
    def of(part: ast.AST) -> Value:
        return _made(part, words, depth - 1)

    if depth == 0:
        raise ConfigError(f"filter {words!r}: nested deeper than {DEEPEST} levels")
    if isinstance(node, ast.Constant) and (node.value is None or isinstance(node.value, (bool, int, float, str))):
        constant = node.value
        return lambda row: constant
    if isinstance(node, ast.Name) and node.id != "len":
        name = node.id
        return lambda row: row[name]
    if isinstance(node, (ast.Tuple, ast.List)):
        parts = [of(one) for one in node.elts]
        return lambda row: [part(row) for part in parts]
    if isinstance(node, ast.BoolOp):
        parts, is_and = [of(one) for one in node.values], isinstance(node.op, ast.And)
        return (lambda row: all(part(row) for part in parts)) if is_and else (lambda row: any(p(row) for p in parts))
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.Not, ast.USub)):
        inner = of(node.operand)
        return (
            (lambda row: not inner(row)) if isinstance(node.op, ast.Not) else _sum(lambda row: 0, operator.sub, inner)
        )
    if isinstance(node, ast.BinOp) and type(node.op) in SUMS:
        return _sum(of(node.left), SUMS[type(node.op)], of(node.right))
    if isinstance(node, ast.Compare):
        values = [of(one) for one in (node.left, *node.comparators)]
        pairs = [_compared(a, type(op), b) for a, op, b in zip(values, node.ops, values[1:], strict=False)]
        return pairs[0] if len(pairs) == 1 else (lambda row: all(pair(row) for pair in pairs))
    if isinstance(node, ast.Call) and _is_len(node):
        inner = of(node.args[0])
        return lambda row: None if (value := inner(row)) is None else len(value)
    said = ast.get_source_segment(words.strip(), node) or type(node).__name__
    raise ConfigError(f"filter {words!r}: {said!r} is not supported; supported: {KNOWN}")


def _is_len(node: ast.Call) -> bool:
    return isinstance(node.func, ast.Name) and node.func.id == "len" and len(node.args) == 1 and not node.keywords


def _sum(left: Value, work: Callable[[Any, Any], Any], right: Value) -> Value:
    def value(row: Row) -> Any:
        a, b = left(row), right(row)
        return None if a is None or b is None else work(_number(a), _number(b))

    return value


def _compared(left: Value, how: type, right: Value) -> Value:
    if how in EQUAL:
        same = EQUAL[how]
        return lambda row: same(left(row), right(row))
    if how in (ast.In, ast.NotIn):
        wanted = how is ast.In

        def is_in(row: Row) -> bool:
            a, b = left(row), right(row)
            return b is not None and (a is not None or isinstance(b, list)) and (a in b) == wanted

        return is_in
    work = ORDERED[how]

    def value(row: Row) -> bool:
        a, b = left(row), right(row)
        return a is not None and b is not None and bool(work(a, b))

    return value


def _number(value: Any) -> Any:
    if isinstance(value, (bool, int, float)):
        return value
    raise TypeError(f"{value!r:.40} is no number")
