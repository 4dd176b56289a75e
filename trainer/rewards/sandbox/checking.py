"""The process that evaluates assertions: it has the setup of the problem, and never the code of the answer.

What an assertion asks of the answer is taken out of it (`f(2)` of `assert sorted(f(2)) == [1] * 3`) and put to the
process that runs the answer; only plain data comes back. Whatever the answer redefines, the assertion does not use.
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
    """The answer raised an exception of a class of its own, ended, or gave no plain data."""


class RemoteObject:
    """An object of the answer's, as the expression that makes it there; its attributes and calls are asked there.

    It is equal to nothing, neither true nor false, and has no method that plain data has: an assertion that needs one
    of these fails, whatever the object would say of itself.
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
    """AskedCalls to the process that runs the answer."""

    def __init__(self, lines: JsonPipe) -> None:
        self.lines = lines

    def ask(self, words: str, given: dict[str, Any]) -> Any:
        """Return the value of an expression there. Raises AnswerFailed, or the exception of Python's that it raised."""
        self.lines.write({"ask": words, "given": {name: plain.write(one) for name, one in given.items()}})
        found = self.lines.read()
        if "value" in found:
            for name, text in found.get("given", {}).items():
                change(given.get(name), plain.read(text))
            return plain.read(found["value"])
        if found["raised"] == plain.NotPlain.__name__:
            return RemoteObject(self, words, given)
        raised = getattr(builtins, found["raised"], None)
        if isinstance(raised, type) and issubclass(raised, Exception):
            raise raised(found["error"])
        raise AnswerFailed(found["error"])


def change(old: Any, new: Any) -> None:
    """Give a variable of the test the contents that the answer has given to its copy of it."""
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
    """Run {"setup", "tests"}; ask {"ask", "given"} and read what was found; say {"holds"} for each test."""
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
    """Return a test whose calls of the answer are questions. Raises SyntaxError.

    known: names that the test has without the answer, `own`: those of the setup alone. A test that asks nothing of the
    answer is about a function that has the name of one of Python's.
    """
    for names in (known, own):
        questions = AskedCalls(names)
        tree = questions.visit(ast.parse(words.strip()))
        if questions.count:
            break
    return ast.fix_missing_locations(tree)


class AskedCalls(ast.NodeTransformer):
    """Turns `f(x)` into a question with the text `f(x)`, where the answer defines f."""

    def __init__(self, known: set[str]) -> None:
        self.known, self.count = known, 0
        self.bound: set[str] = set()

    def visit_Module(self, node: ast.Module) -> ast.AST:
        """Take note of what the test itself binds, then go on."""
        self.bound = bound(node)
        return self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> ast.AST:
        """Ask for the value of a call of the answer's function."""
        return self.question(node) if self.is_asked(node.func) else self.generic_visit(node)

    def visit_Name(self, node: ast.Name) -> ast.AST:
        """Ask for the value of a name of the answer's."""
        return self.question(node) if self.is_asked(node) else node

    def is_asked(self, node: ast.AST) -> bool:
        """Return whether a name is the answer's."""
        return isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and node.id not in self.known | self.bound

    def question(self, node: ast.expr) -> ast.expr:
        """Return the question for the value of an expression, with the variables of the test in it."""
        self.count += 1
        used = {one.id for one in ast.walk(node) if isinstance(one, ast.Name)} & (self.bound - bound(node))
        given = ast.Dict(
            [ast.Constant(one) for one in sorted(used)], [ast.Name(one, ast.Load()) for one in sorted(used)]
        )
        return ast.Call(ast.Name(ASK, ast.Load()), [ast.Constant(ast.unparse(node)), given], [])


def bound(node: ast.AST) -> set[str]:
    """Return the names that a piece of code binds: variables, parameters, imports, definitions."""
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
