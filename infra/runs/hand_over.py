"""The hand-over of a job to a rented pod whose code is there: from then on its guard holds it, and we may leave.

In: the row of a pod, with its job; the secrets that the job names. Out: `job.json` and `secrets.json` on the pod, an
armed guard, and the row as READY. A vendor's key by which the pod ends itself goes into the guard's memory and into no
file.
"""

import contextlib
import json
from collections.abc import Mapping
from dataclasses import replace

from infra.agent.limits import read_clocks
from infra.errors import SlipwayError
from infra.ledger import spend
from infra.ledger.journal import Journal
from infra.ledger.life_cycle import LOST, READY
from infra.ledger.op import Op
from infra.providers import Provider, clock_scale, market
from infra.runs import pod_reports, sight, ssh_names
from infra.runs.sync import mirror
from infra.settings import VENDORS
from infra.transport.protocol import Transport, twice
from store.artifacts.artifacts import Store
from store.manifest import StoreError

ARM_S = 60.0


def hand_over(op: Op, provider: Provider, journal: Journal, secrets: Mapping[str, str]) -> Op:
    """Send job and secrets and arm the guard; the row is READY then. May be repeated."""
    op, key = _with_self_end(op, provider, journal)
    if provider.is_here and op.rank == 0:
        _forget_removed(op)

    def arm() -> None:
        nonlocal op
        transport = provider.reach(sight.pod_of(op))
        op = _counted(op, provider, journal)
        _arm(op, transport, secrets, key)

    twice(arm)
    if op.state != READY:
        op = journal.advance(op, "reachable" if op.state == LOST else "armed")
    ssh_names.add(op, provider, journal)
    return op


def _with_self_end(op: Op, provider: Provider, journal: Journal) -> tuple[Op, str]:
    """Return the row with the calls by which its pod ends itself, where it was asked for, and the key they need.

    The key is "" where the pod has one of its own, or nobody has one to hand out.
    """
    rented, job = market(provider), op.read_job()
    if rented is None or not job.self_end or rented.farewell or not rented.self_end_key or not op.remote_id:
        return op, ""
    calls = rented.self_end(op.remote_id)
    if job.farewell != calls:
        op = journal.note(op, job=replace(job, farewell=calls).to_json())
    return op, rented.self_end_key


def _forget_removed(op: Op) -> None:
    """Remove the marks of steps whose artifact somebody has removed from the store meanwhile: they are not done."""
    pod, store = sight.folder_of(op), Store(op.store)
    with contextlib.suppress(StoreError):  # a store that cannot be read now is reported by the step that reads it
        for step in op.read_job().steps:
            made = step.config.get("making")
            if made and pod.mark(step.name).exists() and not mirror.is_home(store, made["name"], made["fingerprint"]):
                pod.mark(step.name).unlink()


def _arm(op: Op, transport: Transport, secrets: Mapping[str, str], key: str) -> None:
    """Arm the guard. A second time it finds the guard that the first one has started.

    `key`: of the vendor, by which it ends its pod; it goes through the connection into the guard's memory, and no file.
    """
    pod, job = sight.folder_of(op), op.read_job()
    chosen = {name: secrets[name] for name in job.secrets if name in secrets}
    transport.put(json.dumps(chosen).encode(), pod.secrets, 0o600)
    transport.put(op.job.encode(), pod.job, 0o600)  # it has the key by which the nodes of a run know each other
    names = (*VENDORS.values(), "lium_self_end_key")
    keyless = [word for name in names for word in ("-u", name.upper())]  # steps inherit what the guard has
    words = ["env", *keyless, transport.python, "-m", transport.agent, "start", str(pod.root)]
    code = {"PYTHONPATH": str(pod.code)}
    done = transport.run(words, stdin=key.encode() if key else None, timeout_s=ARM_S, cwd=pod.code, env=code)
    if done.exited != 0:
        raise SlipwayError(f"{op.run}: its guard did not start: {(done.stderr or done.stdout).strip()}")
    if pod_reports.parse(done.stdout, f"what {op.run}'s guard answers").get("token") != op.token:
        raise SlipwayError(f"{op.run}: another pod's guard answered in {pod.root}; run: inv status")


def _counted(op: Op, provider: Provider, journal: Journal) -> Op:
    """Return the row of a rented pod whose job says how long the pod has been billed until now.

    A guard that finds no report of an earlier guard counts from there: at the first hand-over, at its second try, and
    on a container that was started again on an empty disk.
    """
    if not op.rate:
        return op
    job, billed_s = op.read_job(), spend.age_s(op, read_clocks(), clock_scale(provider))
    return journal.note(op, job=replace(job, limits=replace(job.limits, billed_s=billed_s)).to_json())
