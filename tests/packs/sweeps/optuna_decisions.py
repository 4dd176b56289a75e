"""Record the decisions of Optuna's SuccessiveHalvingPruner on random curves, for test_sweep_rules.py.

Run `python -m tests.packs.sweeps.optuna_decisions > tests/packs/sweeps/optuna_decisions.json` in an environment with
optuna, which is no dependency of sweeps.
"""

import json
import random
from typing import Any

STEPS = 16


def decisions(seed: int, factor: int, trials: int) -> dict[str, Any]:
    """Return curves in the order of their reports, and the step at which each trial was pruned."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    chance = random.Random(seed)
    pruner = optuna.pruners.SuccessiveHalvingPruner(min_resource=2, reduction_factor=factor)
    study = optuna.create_study(pruner=pruner)
    waiting = [(study.ask(), chance.uniform(0, 1)) for _ in range(trials)]
    at = {trial.number: 0 for trial, _ in waiting}
    told, pruned = [], {}
    while waiting:
        trial, level = chance.choice(waiting)
        at[trial.number] += 1
        step = at[trial.number]
        value = round(level + 2 / (1 + step) + chance.gauss(0, 0.15), 6)
        told.append([trial.number, step, value])
        trial.report(value, step)
        if step < STEPS and trial.should_prune():
            pruned[trial.number] = step
        if step == STEPS or trial.number in pruned:
            waiting.remove((trial, level))
            state = optuna.trial.TrialState.PRUNED if trial.number in pruned else optuna.trial.TrialState.COMPLETE
            study.tell(trial, None if trial.number in pruned else value, state=state)
    return {"factor": factor, "steps": STEPS, "first": 2 / STEPS, "told": told, "pruned": pruned}


if __name__ == "__main__":
    import optuna

    cases = [
        decisions(seed, factor, trials) for seed, factor, trials in ((1, 2, 9), (2, 3, 14), (3, 4, 20), (4, 2, 24))
    ]
    print(json.dumps({"optuna": optuna.__version__, "cases": cases}))
