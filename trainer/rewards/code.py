"""Rewards for MBPP answers: programs, scored by the share of passed tests.

For `assert f(x) == literal`, the process with the answer's code receives only `f(x)`, and the trainer compares the
value. An answer therefore cannot read the expected value, exit early to pass, or redefine equality. Assertions of any
other form run in a second process without the answer's code: see `sandbox.checking`.
"""

import os
import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from data.events import emit
from trainer.errors import Refused
from trainer.rewards import jail
from trainer.rewards.answers import answer_of, thinks, trailing
from trainer.rewards.assertions import parse_assertion, split_setup
from trainer.rewards.reward import JudgedAnswer, Reward

SHORT = 50  # maximum characters after the answer
FENCE = re.compile(r"^[ \t]*```[^\n`]*\n(.*?)(?:^[ \t]*```|\Z)", re.DOTALL | re.MULTILINE)
MOST_SIDE_BY_SIDE = 32  # parallel answers: each has its own starter process of 25 MB


class Mbpp:
    """Judge that runs programs against tests.

    The weights are 0.7 times the share of passed tests, 0.1 for code that compiles, 0.1 for answer tags with little
    text after them, and 0.1 for thinking. An answer is right when all tests pass.
    """

    def __init__(self, is_unsafe: bool) -> None:
        """Select a jail. Raises Refused without a jail on this machine, unless `is_unsafe`."""
        kind = jail.kind()
        if not kind and not is_unsafe:
            raise Refused(jail.refusal())
        self.jail = jail.Jail(kind)
        emit("note", text=f"rl: {jail.words(kind, self.jail.layers())}", alarm=not kind)
        self.pool = ThreadPoolExecutor(min(MOST_SIDE_BY_SIDE, len(os.sched_getaffinity(0))))

    def __call__(self, some: Sequence[JudgedAnswer]) -> list[Reward]:
        return list(self.pool.map(self._judge_answer, some))

    def close(self) -> None:
        """Stop the threads and the sandbox."""
        self.pool.shutdown()
        self.jail.close()

    def _judge_answer(self, said: JudgedAnswer) -> Reward:
        code = answer_of(said.text)
        parts = {"thinking": 0.1 * thinks(said.text)}
        if code is None:
            return Reward(parts)
        code = unfenced(code)
        parts["tags"] = 0.1 * (trailing(said.text) < SHORT)
        compiles, passed = self.compile_and_test(code, said.problem.setup, said.problem.tests)
        return Reward(parts | {"compiles": 0.1 * compiles, "tests": 0.7 * passed}, passed == 1)

    def pass_rate(self, code: str, setup: str, words: Sequence[str]) -> float:
        """Return the share of passed tests."""
        return self.compile_and_test(code, setup, words)[1]

    def compile_and_test(self, code: str, setup: str, words: Sequence[str]) -> tuple[bool, float]:
        """Return True if the code compiles, and the share of passed tests (0 without tests)."""
        setup, late = split_setup(setup)  # MBPP builds some arguments of classes that the answer defines
        tests = [parse_assertion(one, setup) for one in words]
        calls = [one for one in tests if one.how != "whole"]
        wholes = [one.call for one in tests if one.how == "whole"]
        code = f"{code}\n{late}" if late else code
        found = self.jail.run_answer(code, [one.call for one in calls], wholes, setup)
        held = [not one.error and test.is_satisfied_by(one.plain) for test, one in zip(calls, found.calls, strict=True)]
        held += [not one.error for one in found.asserts]
        return not found.compiles.error, sum(held) / len(held) if held else 0.0


def unfenced(code: str) -> str:
    """Return the content of the first ``` block, also of an unclosed block, or the code itself without a block."""
    found = FENCE.search(code)
    if found is None or any(code[: found.start()].count(quotes) % 2 for quotes in ('"""', "'''")):  # in a docstring
        return code.strip()
    return found[1]
