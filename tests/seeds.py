"""The source of randomness in tests: fixed by day, new every night, always printed.

By day the same cases judge every change; at night tests search for new cases. SLIPWAY_TEST_SEED=N repeats a found case.
"""

import os
import random

VARIABLE = "SLIPWAY_TEST_SEED"
DRAWN = "random"
BY_DAY = 20261123


def seed() -> int:
    """Return the seed of a test, and print the seed, so that a failure can be repeated."""
    said = os.environ.get(VARIABLE) or str(BY_DAY)
    found = random.SystemRandom().getrandbits(30) if said == DRAWN else int(said)
    print(f"{VARIABLE}={found}", flush=True)
    return found


def examples(few: int, many: int) -> int:
    """Return the number of hypothesis examples: a few fixed examples by day, many new examples at night."""
    return many if os.environ.get(VARIABLE) == DRAWN else few
