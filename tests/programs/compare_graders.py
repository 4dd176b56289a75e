r"""Print verdicts of other people's graders on the spellings of `tests.trainer.rewards.variants`, and disagreements.

    python -m tests.programs.compare_graders [SEED]

gsm8k: lm-evaluation-harness' filter `flexible-extract` and its exact match (lm_eval/tasks/gsm8k/gsm8k.yaml).
math: math-verify on the answer as written; with SEED also 2,000 drawn answers. mbpp: the assertion executed after the
answer, as MBPP's own script does.
"""

import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable

from math_verify import parse, verify

from tests.trainer.rewards import variants
from tests.trainer.rewards.drawn_variants import drawn
from tests.trainer.rewards.test_variants import misjudged
from tests.trainer.rewards.variants import Variant
from trainer.rewards.code import Mbpp
from trainer.rewards.math_answers import Math
from trainer.rewards.task_rewards import Gsm8k

FLEXIBLE = re.compile(r"(-?[$0-9.,]{2,})|(-?[0-9]+)")
IGNORED = (",", r"\$", r"(?s).*#### ", r"\.$")
SHOWN = 10


def harness(one: Variant) -> bool:
    found = FLEXIBLE.findall(one.answer)
    last = next(filter(None, found[-1]), "") if found else "[invalid]"
    texts = [last, one.gold]
    for pattern in IGNORED:
        texts = [re.sub(pattern, "", text) for text in texts]
    return texts[0].strip().lower() == texts[1].strip().lower()


def math_verify(one: Variant) -> bool:
    has_math = re.search(r"\$|\\boxed|\\\(|\\\[", one.answer)
    try:
        return bool(verify(parse(one.gold), parse(one.answer if has_math else f"${one.answer}$")))
    except Exception:
        return False


def executed(one: Variant) -> bool:
    try:
        exec(f"{one.answer}\n{one.gold}", {})
    except BaseException:
        return False
    return True


def compare(name: str, some: Iterable[Variant], ours: Iterable[Variant], grade: Callable[[Variant], bool]) -> None:
    some, wrong = list(some), set(ours)
    theirs = [one for one in some if grade(one) != one.is_right]
    rows = {"slipway": wrong, grade.__name__: set(theirs)}
    for grader, missed in rows.items():
        refused, accepted = sum(one.is_right for one in missed), sum(not one.is_right for one in missed)
        print(f"{name:6} {grader:12} of {len(some):,}: right refused {refused:4}, wrong accepted {accepted:4}")
    kinds = Counter((one.kind, one.is_right) for one in theirs if one not in wrong)
    for (kind, is_right), count in kinds.most_common(SHOWN):
        one = next(each for each in theirs if (each.kind, each.is_right) == (kind, is_right))
        print(f"    {count:4} {kind}: gold {one.gold!r}, {one.answer!r} is {'right' if is_right else 'wrong'} here")


def main() -> None:
    numbers, latex, programs = (list(some()) for some in (variants.gsm8k, variants.math, variants.mbpp))
    compare("gsm8k", numbers, misjudged(Gsm8k(), numbers), harness)
    latex += drawn(int(sys.argv[1]), 2000) if len(sys.argv) > 1 else ()
    compare("math", latex, misjudged(Math(limit_s=60.0), latex), math_verify)
    compare("mbpp", programs, misjudged(Mbpp(is_unsafe=False), programs), executed)


if __name__ == "__main__":
    main()
