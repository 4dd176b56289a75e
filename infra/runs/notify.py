"""The notification about the end of a run: a shell command of the user's, or a URL that is posted to.

In: a state (succeeded, failed, stopped, limit, preempted, lost, orphan), the run, what it cost. Out: "" or what went
wrong with the notification, which never stops anything else.
"""

import json
import os
import subprocess

from infra.agent.limits import read_clocks
from infra.ledger import cost
from infra.ledger.journal import Journal, Op
from infra.money import dollars
from infra.runs.timing import Say
from infra.settings import VENDORS, Settings
from infra.units import duration

PATIENCE_S = 30.0


def notify(target: str, *, run: str, state: str, cost_micro_usd: int, note: str = "") -> str:
    """Notify somebody of the end of a run; return what went wrong, or "".

    A command gets SLIPWAY_RUN, SLIPWAY_STATE, SLIPWAY_COST_USD and SLIPWAY_NOTE; a URL gets them as JSON.
    """
    said = {"run": run, "state": state, "cost_usd": dollars(cost_micro_usd), "note": note}
    if not target:
        return ""
    if target.startswith(("https://", "http://")):
        import httpx

        try:
            answer = httpx.post(target, json=said, timeout=PATIENCE_S)
        except httpx.HTTPError as error:
            return f"notice of {run}: {type(error).__name__}"  # the address may hold a secret
        return "" if answer.is_success else f"notice of {run}: answered with {answer.status_code}"
    environ = {**os.environ, **{f"SLIPWAY_{name.upper()}": text for name, text in said.items()}}
    try:
        done = subprocess.run(["sh", "-c", target], env=environ, input=json.dumps(said), text=True, timeout=PATIENCE_S,
                              stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)  # fmt: skip
    except subprocess.TimeoutExpired:
        return f"notice of {run}: its command has not ended after {duration(PATIENCE_S)}"
    return f"notice of {run}: exit code {done.returncode}: {done.stderr.strip()[-200:]}" if done.returncode else ""


def tell_end(op: Op, state: str, journal: Journal, settings: Settings, say: Say) -> None:
    """Tell whoever wants to know how runs end, and what all pods of that run have cost; `say` hears of trouble."""
    scale = settings.clock_scale if op.vendor in VENDORS else 1.0
    total = cost.total(journal.ops(run=op.run), journal.told("vendor"), read_clocks(), clock_scale=scale)
    problem = notify(settings.notify, run=op.run, state=state, cost_micro_usd=total, note=op.reason)
    if problem:
        say(problem)
