"""The street itself: rent, push, hand over; then the laptop's part is done.

    Plan -> Offer -> Op (journal: renting, rented) -> code + job.json -> an armed guard (journal: ready)

In: a plan. Out: the journal's row of a pod at work; a run over N nodes is N pods, and that row is of node 0.
`resume` walks the same street for a run that stopped.
"""

import contextlib
import json
import os
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

from infra import home, pods, tools
from infra.agent.job import Job, Step
from infra.errors import NoOffer, SlipwayError, UsageError
from infra.journal import Journal, Op
from infra.providers import Provider
from infra.reach import meet
from infra.records import Offer, Plan, Request
from infra.settings import VENDORS
from infra.stages import Say, stage
from infra.states import BOOTING, LOST, READY
from infra.transport import Lost, TimedOut, Transport, Unreachable, twice
from store import Store

ARM_S = 60.0
APART = os.path.join(os.pardir, "work", "artifacts")  # a store of the pod's own, from its code folder

Accept = Callable[[Transport, Request, Offer], str]  # why a machine is not taken, "" when it is
Prepare = Callable[[Op, Transport], None]  # what else node 0 is given before its job


def start(
    plan: Plan, provider: Provider, journal: Journal, root: Path, secrets: Mapping[str, str], say: Say,
    accept: Accept | None = None, prepare: Prepare | None = None,
) -> Op:  # fmt: skip
    """Rent a pod for every node of the plan's job, send them the code of `root`, hand over; the row of node 0.

    The cheapest offers are tried first; one that somebody else took, or that `accept` finds wanting, is passed over.
    All pods are rented before anything is sent, and given back when one cannot be had.
    Raises Taken when the run is at work already, NoOffer when no offer is left.
    """
    assert plan.job is not None
    ops: list[Op] = []
    try:
        _rent_all(plan, provider, journal, accept, say, ops)
        with ThreadPoolExecutor(len(ops)) as pool:
            list(pool.map(lambda op: _send(op, provider, root, plan.store, say, prepare), ops))
        if len(ops) > 1:
            with stage("introduce", say):
                ops[:] = _introduce(ops, provider, journal)
        with stage("hand-over", say):
            return [hand_over(op, provider.reach(pods.pod_of(op)), journal, secrets) for op in ops][0]
    except BaseException as error:  # also Ctrl-C: a pod without its job must not stay
        if ops:
            with contextlib.suppress(OSError):  # nobody listens any more: it is to end all the same
                say(f"{ops[0].run} did not start: {error or type(error).__name__}; ending what there is of it")
            _end_all(ops, provider, journal, f"hand-over failed: {error}")
        if ops and isinstance(error, (Lost, TimedOut, Unreachable)):  # what had become of it was not known: now it is
            words = f"{ops[0].run}: {error}; it was ended, nothing of it runs: launch again"
            raise SlipwayError(words) from error
        raise


def _end_all(ops: list[Op], provider: Provider, journal: Journal, reason: str) -> None:
    """Each of them, also when one cannot be ended. Raises what the last such one raised."""
    with contextlib.ExitStack() as stack:
        for op in ops:
            stack.callback(pods.end, provider, journal.op(op.token), journal, reason)


def _rent_all(
    plan: Plan, provider: Provider, journal: Journal, accept: Accept | None, say: Say, ops: list[Op]
) -> None:  # fmt: skip
    """Fill `ops`, by rank. A machine of the inventory is one node, a vendor's offer as many as it takes."""
    assert plan.job is not None
    passed = []
    with stage("connect", say):
        offers = choose(provider, plan.request)
    for offer in offers:
        while len(ops) < plan.request.nodes:
            rank = len(ops)
            request = replace(plan.request, run=pods.name_of(plan.request.run, rank))
            job = _job_of(plan.job, rank, plan.request.nodes, provider, offer)
            target = "" if rank else plan.target
            try:
                with stage("rent", say):
                    op = pods.rent(provider, request, offer, job, journal, target=target, store=plan.store, slot=rank)
            except NoOffer as error:
                passed.append(str(error))
                say(passed[-1])
                break
            ops.append(op)
            failure = ""
            if accept:
                with stage("accept", say):
                    failure = accept(provider.reach(pods.pod_of(op)), request, offer)
            if failure:
                passed.append(f"{offer.place or offer.offer_id} was given back: {failure}")
                say(passed[-1])
                pods.end(provider, ops.pop(), journal, failure)
                break
            if offer.place:
                break
    if len(ops) < plan.request.nodes:
        have = f" ({len(ops)} of {plan.request.nodes} could be had)" if ops else ""
        raise NoOffer(f"{provider.name}: no machine is left{have}: {'; '.join(passed)}")


def _job_of(job: Job, rank: int, nodes: int, provider: Provider, offer: Offer) -> Job:
    """On one machine nodes share the cores, and only node 0 the store: the others make their inputs beside it."""
    if nodes == 1 or provider.pod_store:
        return job
    environ = {"OMP_NUM_THREADS": str(max(1, offer.cpus // nodes)), **job.environ}
    return replace(job, environ=environ, steps=tuple(_apart(step) for step in job.steps) if rank else job.steps)


def _apart(step: Step) -> Step:
    if "making" not in step.config:
        return step
    return replace(step, config={**step.config, "making": {**step.config["making"], "store": APART}})


def _send(op: Op, provider: Provider, root: Path, store: str, say: Say, prepare: Prepare | None) -> None:
    """The code, and what the job reads and does not make."""
    transport, pod = provider.reach(pods.pod_of(op)), pods.folder_of(op)
    say(f"sending the code to {op.address}")
    with stage("push", say) as told:
        pushed = transport.push(root, pod.code, op.token)
        told += [f"{pushed.sent} files", *(f"not sent: {refusal}" for refusal in pushed.refused)]
    if provider.pod_store:
        with stage("tools", say) as told:
            told.append(tools.bring(transport, pod))
    pod_store = provider.pod_store or (APART if op.slot else "")
    if pod_store:
        with stage("inputs", say) as told:
            told += home.send_artifacts(Job.from_json(op.job), pod, pod_store, transport, Store(store))
    if prepare and op.slot == 0:
        with stage("what was made", say):
            prepare(op, transport)


def _introduce(ops: list[Op], provider: Provider, journal: Journal) -> list[Op]:
    """Tell every node's job who the others are and where they are reached."""
    transports = [provider.reach(pods.pod_of(op)) for op in ops]
    groups = meet(ops[0].run, transports, [op.place or op.run for op in ops])
    jobs = [replace(Job.from_json(op.job), group=group) for op, group in zip(ops, groups, strict=True)]
    return [journal.note(op, job=job.to_json()) for op, job in zip(ops, jobs, strict=True)]


def resume(op: Op, provider: Provider, journal: Journal, secrets: Mapping[str, str]) -> Op:
    """Go on with a run that has stopped, on all its nodes, on the code that it was started with; the row of node 0.

    Raises UsageError when it is at work, or has nothing left to go on with.
    """
    ops: list[Op] = []
    try:
        for one in pods.nodes_of(op, journal):
            ops.append(_come_back(one, provider, journal))
        return [hand_over(one, provider.reach(pods.pod_of(one)), journal, secrets) for one in ops][0]
    except BaseException as error:
        young = [one for one in ops if journal.op(one.token).state == BOOTING]
        _end_all(young, provider, journal, f"hand-over failed: {error}")
        raise


def _come_back(op: Op, provider: Provider, journal: Journal) -> Op:
    """The row of a pod that can be handed its job again: the same, or a new one in the same folder."""
    if op.is_live:
        if op.state not in (READY, LOST):
            raise UsageError(f"{op.run} is {op.state}; run: inv status")
        return op
    try:
        if not op.address:
            raise FileNotFoundError
        provider.reach(pods.pod_of(op)).get(pods.folder_of(op).code / "infra" / "agent" / "__main__.py")
    except FileNotFoundError:
        raise UsageError(f"{op.run} left nothing to go on with; run: inv launch") from None
    request = Request(run=op.run, provider=op.vendor, host=op.place)
    offer = choose(provider, request)[0]
    job = Job.from_json(op.job)
    return pods.rent(provider, request, offer, job, journal, target=op.target, store=op.store, slot=op.slot)


def choose(provider: Provider, request: Request) -> list[Offer]:
    """The machines that satisfy the request, cheapest first. Raises NoOffer."""
    offers = provider.offers(request)
    if not offers:
        wanted = f"{request.num_gpus or ''} {request.gpu or 'GPU'}".strip()
        raise NoOffer(
            f"{provider.name} has no machine with {wanted} on {request.nodes} node(s); ask for less, or run: inv doctor"
        )
    return sorted(offers, key=lambda offer: offer.micro_usd_per_hour)


def hand_over(op: Op, transport: Transport, journal: Journal, secrets: Mapping[str, str]) -> Op:
    """Put job and secrets in place and arm the guard; the row is READY then. May be repeated."""
    twice(lambda: _arm(op, transport, secrets))
    if op.state == READY:
        return op
    return journal.advance(op, "reachable" if op.state == LOST else "armed")


def _arm(op: Op, transport: Transport, secrets: Mapping[str, str]) -> None:
    """A second time it finds the guard that the first one has started."""
    pod, job = pods.folder_of(op), Job.from_json(op.job)
    chosen = {name: secrets[name] for name in job.secrets if name in secrets}
    transport.put(json.dumps(chosen).encode(), pod.secrets, 0o600)
    transport.put(op.job.encode(), pod.job)
    keyless = [word for key in VENDORS.values() for word in ("-u", key.upper())]  # steps inherit what the guard has
    words = ["env", *keyless, transport.python, "-m", "infra.agent", "start", str(pod.root)]
    done = transport.run(words, timeout_s=ARM_S, cwd=pod.code, env={"PYTHONPATH": str(pod.code)})
    if done.exited != 0:
        raise SlipwayError(f"{op.run}: its guard did not start: {(done.stderr or done.stdout).strip()}")
    if json.loads(done.stdout)["token"] != op.token:
        raise SlipwayError(f"{op.run}: another pod's guard answered in {pod.root}; run: inv status")
