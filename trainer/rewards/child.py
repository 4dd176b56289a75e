"""Child process that judges answers: `python -m trainer.rewards.child math|own`; see `worker.RewardWorker`.

The child reads one JSON question per line from stdin and writes one JSON reply per line to the original stdout.
Anything printed by libraries or by the reward function goes to stderr.
"""

import json
import math
import os
import resource
import sys
from collections.abc import Callable
from typing import Any

from data.single_writer import PARENT, exit_with_parent
from store.extensions import Extension, ExtensionError, of_text
from store.extensions.run import error_with_line, function
from trainer.rewards.worker import READY

MEMORY_BYTES = 4 << 30
DECIMALS = 12  # numbers that math-verify calls equal at its default of 6 decimals are roundings of each other


def main() -> None:
    """Answer questions until stdin ends."""
    exit_with_parent(os.environ.pop(PARENT, ""))
    out = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    answer = {"math": of_math, "own": of_own}[sys.argv[1]]()
    print(json.dumps(READY), file=out)
    for line in sys.stdin:
        print(json.dumps(answer(json.loads(line))), file=out)


def of_math() -> Callable[[Any], Any]:
    """Return a function that compares [gold, answer], LaTeX or plain text, and returns True for equal meanings."""
    from latex2sympy2_extended import NormalizationConfig
    from math_verify import LatexExtractionConfig, parse, verify
    from sympy import I

    # The default removes letters such as c, m and h as units, and reads the first number of LaTeX that does not parse.
    latex = [
        LatexExtractionConfig(
            normalization_config=NormalizationConfig(units=False, malformed_operators=True, nits=True, boxed="all")
        )
    ]

    def parsed(text: str) -> list[Any]:
        return parse(f"${text}$", latex, fallback_mode="no_fallback", parsing_timeout=None)

    def is_equal(gold: list[Any], answer: list[Any]) -> bool:
        return verify(
            gold, answer, float_rounding=DECIMALS, timeout_seconds=None, allow_set_relation_comp=True
        )  # an inequality and its interval are equal

    def complex_of(found: list[Any]) -> list[Any]:
        """Return parsed expressions with the imaginary unit in place of a symbol i, which math-verify leaves."""
        symbols = [getattr(one, "free_symbols", ()) for one in found]
        units = [{symbol: I for symbol in some if symbol.name == "i"} for some in symbols]
        return [one.subs(unit) if unit else one for one, unit in zip(found, units, strict=True)]

    def same(pair: list[str]) -> bool:
        try:
            gold, answer = map(parsed, pair)
            return bool(gold and answer) and (
                is_equal(gold, answer)
                or any("e^" in one for one in pair)
                and is_equal(*map(complex_of, (gold, answer)))
            )
        except Exception:  # RecursionError, MemoryError, OverflowError: not equal
            return False

    return same


def of_own() -> Callable[[Any], Any]:
    """Return a function that calls the user's reward function; the first question is the text of the user's file."""
    made: list[tuple[Extension, Callable[..., Any]]] = []

    def answer(asked: Any) -> Any:
        try:
            if isinstance(asked, str):
                extension = of_text(asked, "reward")
                made.append((extension, function(extension, "reward")))
                return {}
            said = checked(made[0][1](**asked))
            return said if "parts" in said else {"error": f"{made[0][0].place('reward')}: {said['error']}"[:500]}
        except ExtensionError as error:
            return {"error": str(error)[:500]}
        except BaseException as error:  # report any error, even SystemExit
            return {"error": error_with_line(made[0][0], error)[:500], "raised": True}

    return answer


def checked(value: Any) -> dict[str, Any]:
    """Return the reward components of a result, or an error for any value other than a finite number."""
    parts = value if isinstance(value, dict) else {"reward": value}
    for name, one in parts.items():
        if isinstance(one, bool):
            continue
        if not isinstance(one, (int, float)) or not math.isfinite(one):
            return {"error": f"returned {one!r}{f' as {name!r}' if value is parts else ''}; expected a finite number"}
    return {"parts": {str(name): float(one) for name, one in parts.items()}}


if __name__ == "__main__":
    main()
