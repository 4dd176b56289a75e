"""Selection of the pod for a stage of a launch: the named pod, else the line's current pod, else the only pod."""

from dataclasses import dataclass

from infra.errors import SlipwayError, UsageError
from infra.flags import flag
from infra.ledger.journal import Journal
from infra.ledger.op import Op
from infra.runs.lookup import find_run
from scripts.cli import session
from scripts.cli.flags import Output

WHICH = "name of the pod (default: the pod created on this command line, or the only pod)"


@dataclass(frozen=True, kw_only=True)
class OnPodFlags(Output):
    run: str = flag("", WHICH, word=True)


def find_pod(journal: Journal, name: str = "") -> Op:
    """Return a live pod that accepts work: by name prefix, else the line's current pod, else the only pod.

    The pod becomes the current pod of the line. Raises UsageError for an unsuitable or ambiguous pod, SlipwayError
    without a pod.
    """
    there = [op for op in journal.ops(live=True) if op.outlives_run]
    name = name or session.current()
    if name:
        op = find_run(journal, name)
        if not op.is_live:
            raise UsageError(f"{op.run} has ended. Create a new pod: inv pod.create --run-name {op.run}")
        if not op.outlives_run:
            raise UsageError(f"{op.run} belongs to a launch and ends with the launch. Create a pod: inv pod.create")
    elif len(there) == 1:
        op = there[0]
    elif there:
        raise UsageError(f"several pods exist; name one of: {', '.join(op.run for op in there)}")
    else:
        raise SlipwayError("no pod exists. Create a pod: inv pod.create")
    session.use(op)
    return op
