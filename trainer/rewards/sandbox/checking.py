"""Check process of the sandbox: evaluates assertions with the setup of the problem, never with the code of the answer.

The check process replaces each call of the answer in an assertion (`f(2)` in `assert sorted(f(2)) == [1] * 3`) by a
request to the answer process; only plain data comes back. Names redefined by the answer therefore have no effect on the
rest of the assertion.
"""

import ast
import builtins
from collections import deque
from typing import Any

from trainer.rewards.sandbox import plain
from trainer.rewards.sandbox.pipe import JsonPipe, problem

ASK = "__ask_the_answer"
PLAIN = (str, bytes, int, float, complex, list, tuple, set, dict, range)
METHODS = frozenset(name for one in PLAIN for name in dir(one))


class AnswerFailed(Exception):
    """The answer raised an exception of a class of its own, exited, or returned a value other than plain data."""


class RemoteObject:
    """Proxy for an object of the answer, held as the expression for creating the object in the answer process.

    Attribute access and calls are evaluated in the answer process. Comparing the proxy, testing the truth of the proxy,
    or using a method name of plain data raises AnswerFailed: such an assertion fails regardless of the object's own
    claims.
    """

    __hash__ = None  # type: ignore[assignment]

    def __init__(self, asking: "AnswerClient", words: str, given: dict[str, Any]) -> None:
        self.asking_, self.words_, self.given_ = asking, words, given

    def __getattr__(self, name: str) -> Any:
        if name in METHODS:
            raise AnswerFailed(f"{self.words_} is no plain data, and {name} is a method of plain data")
        return self.asking_.ask(f"({self.words_}).{name}", self.given_)

    def __str__(self) -> str:
        return str(self.asking_.ask(f"str({self.words_})", self.given_))

    def __repr__(self) -> str:
        return str(self.asking_.ask(f"repr({self.words_})", self.given_))

    def __call__(self, *some: Any, **named: Any) -> Any:
        given, words = dict(self.given_), []
        for place, one in (*enumerate(some), *named.items()):
            name = f"given_{len(given)}_"
            words.append(name if isinstance(place, int) else f"{place}={name}")
            given[name] = one
        return self.asking_.ask(f"({self.words_})({', '.join(words)})", given)

    def __bool__(self) -> bool:
        raise AnswerFailed(f"{self.words_} is no plain data")

    def __eq__(self, other: object) -> bool:
        raise AnswerFailed(f"{self.words_} is no plain data")


class AnswerClient:
    """Client of the answer process."""

    def __init__(self, lines: JsonPipe) -> None:
        self.lines = lines

    def ask(self, words: str, given: dict[str, Any]) -> Any:
        """Return the value of an expression in the answer process.

        Raises the builtin exception of the expression, or AnswerFailed for any other failure. A value other than plain
        data becomes a RemoteObject.
        """
        self.lines.write({"ask": words, "given": {name: plain.write(one) for name, one in given.items()}})
        found = self.lines.read()
        if "value" in found:
            for name, text in found.get("given", {}).items():
                change(given.get(name), plain.read(text))
            return plain.read(found["value"])
        if found["raised"] == plain.NotPlainData.__name__:
            return RemoteObject(self, words, given)
        raised = getattr(builtins, found["raised"], None)
        if isinstance(raised, type) and issubclass(raised, Exception):
            raise raised(found["error"])
        raise AnswerFailed(found["error"])


def change(old: Any, new: Any) -> None:
    """Copy the answer's changes to a copied variable (`new`) into the test's variable (`old`)."""
    if type(old) is not type(new):
        return
    if isinstance(old, (list, bytearray)):
        old[:] = new
    elif isinstance(old, (dict, set)):
        old.clear()
        old.update(new)
    elif isinstance(old, deque):
        old.clear()
        old.extend(new)


def check(lines: JsonPipe) -> None:
    """Run {"setup", "tests"}: send {"ask", "given"} for each call of the answer, and {"holds"} for each test."""
    asked = lines.read()
    names: dict[str, Any] = {"__name__": "tests"}
    try:
        exec(compile(asked["setup"], "setup", "exec"), names)
    except BaseException as error:
        for _ in asked["tests"]:
            lines.write({"holds": False, **problem(error)})
        return
    ask = AnswerClient(lines).ask
    for words in asked["tests"]:
        try:
            exec(compile(remote(words, {*names, *dir(builtins)}, set(names)), "test", "exec"), names | {ASK: ask})
            lines.write({"holds": True})
        except BaseException as error:
            lines.write({"holds": False, **problem(error)})


def remote(words: str, known: set[str], own: set[str]) -> ast.Module:
    """Return a test with the calls of the answer replaced by requests. Raises SyntaxError.

    known: names defined without the answer, i.e. the setup's names and Python's builtins; `own`: the setup's names
    only. If the test makes no request with `known`, the test concerns an answer function named like a builtin, and the
    builtins count as the answer's.
    """
    for names in (known, own):
        questions = AskedCalls(names)
        tree = questions.visit(ast.parse(words.strip()))
        if questions.count:
            break
    return ast.fix_missing_locations(tree)


class AskedCalls(ast.NodeTransformer):
    """Node transformer that replaces `f(x)` by a request with the text `f(x)`, if the answer defines f."""

    def __init__(self, known: set[str]) -> None:
        self.known, self.count = known, 0
        self.bound: set[str] = set()

    def visit_Module(self, node: ast.Module) -> ast.AST:
        """Record the names bound by the test itself, then visit the statements."""
        self.bound = bound(node)
        return self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> ast.AST:
        """Replace a call of the answer's function by a request."""
        return self.question(node) if self.is_asked(node.func) else self.generic_visit(node)

    def visit_Name(self, node: ast.Name) -> ast.AST:
        """Replace a name of the answer by a request."""
        return self.question(node) if self.is_asked(node) else node

    def is_asked(self, node: ast.AST) -> bool:
        """Return True if a node reads a name of the answer."""
        return isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and node.id not in self.known | self.bound

    def question(self, node: ast.expr) -> ast.expr:
        """Return the request for the value of an expression, with the variables of the test in the expression."""
        self.count += 1
        used = {one.id for one in ast.walk(node) if isinstance(one, ast.Name)} & (self.bound - bound(node))
        given = ast.Dict(
            [ast.Constant(one) for one in sorted(used)], [ast.Name(one, ast.Load()) for one in sorted(used)]
        )
        return ast.Call(ast.Name(ASK, ast.Load()), [ast.Constant(ast.unparse(node)), given], [])


def bound(node: ast.AST) -> set[str]:
    """Return the names bound by a piece of code: variables, parameters, imports, definitions."""
    found = set()
    for one in ast.walk(node):
        if isinstance(one, ast.Name) and not isinstance(one.ctx, ast.Load):
            found.add(one.id)
        elif isinstance(one, ast.arg):
            found.add(one.arg)
        elif isinstance(one, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.ExceptHandler)):
            found.add(one.name or "")
        elif isinstance(one, ast.alias):
            found.add((one.asname or one.name).partition(".")[0])
    return found
