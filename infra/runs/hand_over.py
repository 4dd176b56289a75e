"""Hand-over of a job to a rented pod: send the code, the job and the secrets; afterwards the guard enforces the limits.

`send_code` sends the local code, `adopt_sent_code` reuses the code on the machine, and `send_agent` sends only the
agent for a guard. `hand_over` takes the row of a pod with the job, and the secrets named in the job. The pod gets
`job.json`, `secrets.json` and an armed guard, and the row becomes READY. A vendor key for self-termination goes only
into the memory of the guard, never into a file.
"""

import contextlib
import json
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from infra.agent.limits import read_clocks
from infra.errors import SlipwayError, UsageError
from infra.ledger import spend
from infra.ledger.journal import Journal
from infra.ledger.op import LOST, READY, Op
from infra.providers import Provider, clock_scale, market
from infra.records import Carried, Plan
from infra.runs import observation, pod_reports, run_rows, ssh_names
from infra.runs.sync import mirror
from infra.runs.timing import Say, stage
from infra.settings import VENDORS
from infra.transport import bootstrap
from infra.transport.protocol import Meter, Transport, retry_once
from infra.transport.push import PushResult, adopt, differences, push
from infra.units import count
from store.artifacts.artifacts import Store
from store.manifest import StoreError

ARM_S = 60.0
AGENT = Path(__file__).parents[1] / "agent"
BEHIND = ("trainer/", "data/", "store/", "constraints/", "pyproject.toml")  # Code and pins that determine artifacts.


def hand_over(op: Op, provider: Provider, journal: Journal, secrets: Mapping[str, str]) -> Op:
    """Send the job and the secrets, arm the guard, and return the row in state READY. Idempotent."""
    op, key = _with_self_end(op, provider, journal)
    if provider.is_here and op.rank == 0:
        _forget_removed(op)

    def arm() -> None:
        nonlocal op
        transport = provider.reach(observation.pod_of(op))
        op = _counted(op, provider, journal)
        _arm(op, transport, secrets, key)

    retry_once(arm)
    if op.state != READY:
        op = journal.advance(op, "reachable" if op.state == LOST else "armed")
    ssh_names.add(op, provider, journal)
    return op


def _with_self_end(op: Op, provider: Provider, journal: Journal) -> tuple[Op, str]:
    """Return the row with self-termination calls in the job, if requested, and the vendor key for the calls.

    The key is "" if the pod has a key already, or if no key is configured for pods.
    """
    rented, job = market(provider), op.read_job()
    if rented is None or not job.self_end or rented.self_terminate_calls or not rented.self_end_key or not op.remote_id:
        return op, ""
    calls = rented.self_end(op.remote_id)
    if job.self_terminate_calls != calls:
        op = journal.note(op, job=replace(job, self_terminate_calls=calls).to_json())
    return op, rented.self_end_key


def _forget_removed(op: Op) -> None:
    """Delete the marks of steps whose artifact is missing in the store, so that the steps run again."""
    pod, store = observation.folder_of(op), Store(op.store)
    with contextlib.suppress(StoreError):  # The step reading the store reports an unreadable store.
        for step in op.read_job().steps:
            made = step.config.get("making")
            if (
                made
                and pod.mark(step.name).exists()
                and not mirror.is_in_local_store(store, made["name"], made["fingerprint"])
            ):
                pod.mark(step.name).unlink()


def _arm(op: Op, transport: Transport, secrets: Mapping[str, str], key: str) -> None:
    """Arm the guard. A repeated call finds the guard of the first call.

    `key` is the vendor key for self-termination; the key goes through the connection into the guard's memory and into
    no file. Raises SlipwayError if the guard does not start or belongs to a different pod.
    """
    pod, job = observation.folder_of(op), op.read_job()
    chosen = {name: secrets[name] for name in job.secrets if name in secrets}
    transport.put(json.dumps(chosen).encode(), pod.secrets, 0o600)
    transport.put(op.job.encode(), pod.job, 0o600)  # The file contains the shared key of the nodes of a run.
    names = (*VENDORS.values(), "lium_self_end_key")
    keyless = [word for name in names for word in ("-u", name.upper())]  # Steps inherit the environment of the guard.
    words = ["env", *keyless, transport.python, "-m", transport.agent, "start", str(pod.root)]
    code = {"PYTHONPATH": str(pod.code)}
    done = transport.run(words, stdin=key.encode() if key else None, timeout_s=ARM_S, cwd=pod.code, env=code)
    if done.exited != 0:
        raise SlipwayError(f"{op.run}: the guard did not start: {(done.stderr or done.stdout).strip()}")
    if pod_reports.parse(done.stdout, f"the answer of {op.run}'s guard").get("token") != op.token:
        raise SlipwayError(f"{op.run}: the guard of a different pod answered in {pod.root}; run: inv status")


def _counted(op: Op, provider: Provider, journal: Journal) -> Op:
    """Return the row of a rented pod with the billed time so far in the job, in seconds of the vendor's clock.

    A guard without an earlier report counts from this time: at the first hand-over, at a second attempt, and after a
    restart of the container on an empty disk.
    """
    if not op.rate:
        return op
    job, billed_s = op.read_job(), spend.age_s(op, read_clocks(), clock_scale(provider))
    return journal.note(op, job=replace(job, limits=replace(job.limits, billed_s=billed_s)).to_json())


def adopt_sent_code(op: Op, provider: Provider, root: Path, plan: Plan, say: Say) -> None:
    """Adopt the code and the carried folders left on the machine by an earlier run.

    The names of artifacts contain fingerprints of the local code. Raises UsageError without such files, or if the job
    makes artifacts and the code on the machine differs in a file that determines artifacts.
    """
    transport, pod = provider.reach(observation.pod_of(op)), observation.folder_of(op)
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
    transport, pod = provider.reach(observation.pod_of(op)), observation.folder_of(op)
    say(f"{'copying' if provider.is_here else 'sending'} the code to {run_rows.where(op)}")
    with stage("copy" if provider.is_here else "push", say, clock_scale(provider)) as told:
        pushed = push(transport, root, pod.code, op.token, meter=meter, anyway=op.send_anyway)
        told += [count(pushed.sent, "file"), *(f"not sent: {refusal}" for refusal in pushed.refused)]
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
        push(provider.reach(observation.pod_of(op)), root, observation.folder_of(op).code, op.token)
