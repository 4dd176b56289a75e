"""The source of chance in tests: fixed by day, another one each time at night, printed always.

By day a change is judged by the same cases as the one before it; at night new ones are looked for.
SLIPWAY_TEST_SEED=N repeats what either found.
"""

import os
import random

VARIABLE = "SLIPWAY_TEST_SEED"
DRAWN = "random"
BY_DAY = 20261123


def seed() -> int:
    """Return the seed of a test, and print it for whoever has to repeat what it found."""
    said = os.environ.get(VARIABLE) or str(BY_DAY)
    found = random.SystemRandom().getrandbits(30) if said == DRAWN else int(said)
    print(f"{VARIABLE}={found}", flush=True)
    return found


def examples(few: int, many: int) -> int:
    """Return how many examples hypothesis tries: always the same few by day, many new ones at night."""
    return many if os.environ.get(VARIABLE) == DRAWN else few
