"""Summary of a sweep for `--json`, the terminal and the page: facts, arms with differences, the best arm."""

import math
from typing import Any

from infra.units import dollars, duration, in_usd
from packs.sweeps.control import evaluation as answers
from packs.sweeps.control.evaluation import ArmRow, SweepAnswer
from packs.sweeps.control.trials import results as kept
from packs.sweeps.control.trials.results import SweepResult


def summary_of(result: SweepResult, answer: SweepAnswer) -> dict[str, Any]:
    """Return the results and the evaluation as JSON values."""
    rows = [
        {
            "run": one.run,
            "arm": one.arm,
            "seed": one.seed,
            "pod": one.pod,
            "state": one.state,
            "seconds": one.seconds,
            "steps": one.steps,
            "at": one.at,
            "score": one.score,
            "usd": dollars(one.micro_usd),
            "reason": one.reason or None,
        }
        for one in result.trials.values()
    ]
    arms = [
        {
            "arm": one.arm.name,
            "asked": dict(one.trials[0].asked),
            "state": one.state,
            "mean": one.arm.mean,
            "scores": list(one.arm.scores.values()),
            "verdict": one.verdict,
            "difference": one.apart.mean if one.apart else None,
            "half": one.apart.half if one.apart and not math.isnan(one.apart.half) else None,
            "beside": {name: one.additional_means(name) for name in result.beside},
        }
        for one in answer.rows
    ]
    return {
        "sweep": result.name,
        "runs": rows,
        "arms": arms,
        "against": answer.against,
        "best": answers.command_line(answer.best.trials[0]) if answer.best else None,
        "promote": promote_line(result, answer) or None,
        "facts": facts(answer, result),
        "seconds": round(answer.seconds, 1),
        "saved_s": round(answer.saved_s, 1),
        "usd": dollars(answer.micro_usd),
        "saved_usd": dollars(answer.saved_micro_usd),
    }


def facts(answer: SweepAnswer, result: SweepResult) -> list[tuple[str, str]]:
    """Return the facts about the whole sweep, as (name, value) pairs."""
    ended = sum(one.state == kept.SUCCEEDED for one in result.trials.values())
    found = [("runs", f"{ended} of {len(result.trials)} done"), ("time in steps", duration(answer.seconds))]
    if answer.saved_s:
        share = answer.saved_s / (answer.seconds + answer.saved_s)
        found.append(("saved by early stops", f"{duration(answer.saved_s)} ({share:.0%})"))
    if answer.micro_usd or answer.limit_micro_usd:
        limit = "" if answer.limit_micro_usd is None else f" of {in_usd(answer.limit_micro_usd)}"
        found.append(("cost", f"{in_usd(answer.micro_usd)}{limit}"))
    else:
        found.append(("cost", "nothing"))
    if edge := answers.at_an_end(answer):
        found.append(("the best value is at the end of the range", ", ".join(edge)))
    if answer.saved_micro_usd:
        found.append(("saved", in_usd(answer.saved_micro_usd)))
    return found


def promote_line(result: SweepResult, answer: SweepAnswer) -> str:
    """Return the command to publish the best run under the sweep's name; "" without a best arm."""
    if answer.best is None:
        return ""
    return f"./inv sweep {result.name} --promote {best_run(answer.best, result)} --tag {result.name}"


def best_run(row: ArmRow, result: SweepResult) -> str:
    """Return the run with the best score of an arm."""
    sign = 1.0 if result.rank["mode"] == "min" else -1.0
    scored = [one for one in row.trials if one.score is not None]
    return min(scored, key=lambda one: sign * (one.score or 0.0)).run
