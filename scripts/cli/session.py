"""What the commands of one line share: the pods that they have made or used."""

import contextlib

from infra.agent.limits import read_clocks
from infra.errors import SlipwayError
from infra.ledger import spend
from infra.ledger.journal import Journal, Op
from scripts.cli import context, render

_used: dict[str, None] = {}  # names of pods, the last one at the end


def use(op: Op) -> None:
    """From here on it is the pod that is meant when none is named."""
    _used.pop(op.run, None)
    _used[op.run] = None


def current() -> str:
    """The name of the pod that this line deals with, "" for none."""
    return next(reversed(_used), "")


def forget(run: str) -> None:
    _used.pop(run, None)


def tell() -> None:
    """Say which of them are left, what they cost, and how they end."""
    with contextlib.suppress(SlipwayError, OSError):  # the error that led here is what must be heard
        settings = context.settings()
        with Journal.open(settings.state_file) as journal:
            for op in journal.ops(live=True):
                if op.run in _used:
                    render.say(f"{op.run} is left: {cost_of(op, settings.clock_scale)}; end it: inv pod.down {op.run}")


def cost_of(op: Op, scale: float) -> str:
    """What a live pod costs, and until when at most, in words."""
    if not op.rate:
        return "it costs nothing"
    left_s = spend.left_s(op, read_clocks(), scale)
    until = "" if left_s is None else f" until its limit, in {render.duration(left_s)}"
    return f"it bills {render.usd(op.rate)} USD/h{until}"
