"""Code of a pod: send the local code, reuse the code on the machine, or send only the agent for a guard."""

import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

from infra.errors import UsageError
from infra.ledger.op import Op
from infra.providers import Provider, clock_scale
from infra.records import Carried, Plan
from infra.runs import run_rows, sight
from infra.runs.timing import Say, stage
from infra.transport import bootstrap
from infra.transport.meter import Meter
from infra.transport.push import PushResult, adopt, differences, push

AGENT = Path(__file__).parents[2] / "agent"
BEHIND = ("trainer/", "data/", "store/", "constraints/", "pyproject.toml")  # Code and pins that determine artifacts.


def use_code_there(op: Op, provider: Provider, root: Path, plan: Plan, say: Say) -> None:
    """Adopt the code and the carried folders left on the machine by an earlier run.

    The names of artifacts contain fingerprints of the local code. Raises UsageError without such files, or if the job
    makes artifacts and the code on the machine differs in a file that determines artifacts.
    """
    transport, pod = provider.reach(sight.pod_of(op)), sight.folder_of(op)
    made = any("making" in step.config for step in plan.job.steps) if plan.job else False
    sent = [Carried(name="code", source=str(root), anyway=op.send_anyway), *plan.carried]
    for one in sent:
        name = one.name
        origin = adopt(transport, pod.root / name, op.token)
        if not origin:
            raise UsageError(
                f"--no-sync: {op.place or 'this machine'} has no {name} of an earlier run; run once without --no-sync"
            )
        differ = differences(transport, Path(one.source), pod.root / name, op.token, one.file, one.anyway)
        behind = [path for path in differ if name == "code" and path.startswith(BEHIND)]
        if made and behind:
            raise UsageError(
                f"--no-sync: {_some(behind)} on {op.place or 'this machine'} differ from the local files, and the "
                "results would count as results of the local files; leave --no-sync out"
            )
        than = f"; {_some(differ)} differ from the local files" if differ else ", equal to the local files"
        say(f"sync: skipped; {name} is that of {origin}{than}")
    if not (plan.job and plan.job.no_setup or provider.is_here):
        with stage("tools", say, clock_scale(provider)) as told:
            told.append(bootstrap.bring(transport, pod))


def _some(paths: Sequence[str]) -> str:
    """Return the first three paths, and the number of further paths."""
    return f"{', '.join(paths[:3])}{f' and {len(paths) - 3} more' if len(paths) > 3 else ''}"


def send_code(op: Op, provider: Provider, root: Path, say: Say, meter: Meter | None = None) -> PushResult:
    """Send the code, and the tools for set-up on another machine; return the result of the push."""
    transport, pod = provider.reach(sight.pod_of(op)), sight.folder_of(op)
    say(f"{'copying' if provider.is_here else 'sending'} the code to {run_rows.where(op)}")
    with stage("copy" if provider.is_here else "push", say, clock_scale(provider)) as told:
        pushed = push(transport, root, pod.code, op.token, meter=meter, anyway=op.send_anyway)
        told += [f"{pushed.sent} files", *(f"not sent: {refusal}" for refusal in pushed.refused)]
    if not provider.is_here:
        with stage("tools", say, clock_scale(provider)) as told:
            told.append(bootstrap.bring(transport, pod))
    return pushed


def send_agent(op: Op, provider: Provider) -> None:
    """Send only the agent package, enough for a guard; the code follows with the first job."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder).resolve()
        shutil.copytree(AGENT, root / "infra" / "agent", ignore=shutil.ignore_patterns("__pycache__"))
        (root / "infra" / "__init__.py").touch()
        push(provider.reach(sight.pod_of(op)), root, sight.folder_of(op).code, op.token)
