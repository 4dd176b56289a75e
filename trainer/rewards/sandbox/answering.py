"""The process that runs the code of an answer: it gives the values of expressions, and knows nothing else.

It has neither the values that are expected nor the assertions. So what it writes is no verdict: only a value, which
another process compares.
"""

from typing import Any

from trainer.rewards.sandbox import plain
from trainer.rewards.sandbox.pipe import JsonPipe, problem


def answer(lines: JsonPipe) -> None:
    """Run {"setup", "code"}, then return the value of each {"ask", "given"}; first tell whether the code compiles."""
    asked = lines.read()
    try:
        compile(asked["code"], "answer", "exec")
    except BaseException as error:
        return lines.write(problem(error))
    lines.write({"value": plain.write(True)})
    names: dict[str, Any] = {"__name__": "answer"}
    try:
        exec(compile(f"{asked['setup']}\n{asked['code']}", "answer", "exec"), names)
    except BaseException as error:
        return lines.write(problem(error))
    lines.write({"value": plain.write(True)})
    while True:
        try:
            asked = lines.read()
        except EOFError:
            return None
        lines.write(_found(asked, names))


def _found(asked: Any, names: dict[str, Any]) -> dict[str, Any]:
    """Return the value of an expression, with those of its variables that it has changed in place."""
    try:
        given = {name: plain.read(text) for name, text in asked["given"].items()}
        value = plain.write(eval(asked["ask"], {**names, **given} if given else names))
        after = {name: plain.write(one) for name, one in given.items() if isinstance(one, plain.CHANGEABLE)}
        return {"value": value, "given": {name: one for name, one in after.items() if one != asked["given"][name]}}
    except BaseException as error:
        return problem(error)
