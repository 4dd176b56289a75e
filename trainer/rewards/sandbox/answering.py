"""Answer process of the sandbox: runs the code of an answer and returns the values of expressions.

The process never receives expected values or assertions. Output of the process is therefore never a verdict, only a
value for comparison in a different process.
"""

from typing import Any

from trainer.rewards.sandbox import plain
from trainer.rewards.sandbox.pipe import JsonPipe, problem


def answer(lines: JsonPipe) -> None:
    """Run {"setup", "code"}, then reply to each {"ask", "given"} with a value.

    The first reply says whether the code compiles, the second whether setup and code ran. Each reply is {"value"} or
    {"error", "raised"}; return after the first error in either step, or when the questions end.
    """
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
    """Return the value of an expression, and the new contents of given variables changed by the expression."""
    try:
        given = {name: plain.read(text) for name, text in asked["given"].items()}
        value = plain.write(eval(asked["ask"], {**names, **given} if given else names))
        after = {name: plain.write(one) for name, one in given.items() if isinstance(one, plain.CHANGEABLE)}
        return {"value": value, "given": {name: one for name, one in after.items() if one != asked["given"][name]}}
    except BaseException as error:
        return problem(error)
