"""The street itself: rent, push, hand over; then the laptop's part is done.

    Plan -> Offer -> Op (journal: renting, rented) -> code + job.json -> an armed guard (journal: ready)

In: a plan. Out: the journal's row of a pod at work. `resume` walks the same street for a run that stopped.
"""

import contextlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path

from infra import home, pods, tools
from infra.agent.job import Job
from infra.errors import NoOffer, SlipwayError, UsageError
from infra.journal import Journal, Op
from infra.providers import Provider
from infra.records import Offer, Plan, Request
from infra.settings import VENDORS
from infra.stages import Say, stage
from infra.states import LOST, READY
from infra.transport import Lost, TimedOut, Transport, Unreachable, twice
from store import Store

ARM_S = 60.0

Accept = Callable[[Transport, Request, Offer], str]  # why a machine is not taken, "" when it is
Prepare = Callable[[Op, Transport], None]  # what else a pod is given before its job


def start(
    plan: Plan, provider: Provider, journal: Journal, root: Path, secrets: Mapping[str, str], say: Say,
    accept: Accept | None = None, prepare: Prepare | None = None,
) -> Op:  # fmt: skip
    """Rent a pod for the plan's job, send it the code of `root`, hand over.

    The cheapest offer is tried first; one that somebody else took, or that `accept` finds wanting, is passed over.
    Raises Taken when the run is at work already, NoOffer when no offer is left.
    """
    assert plan.job is not None
    passed = []
    with stage("connect", say):
        offers = choose(provider, plan.request)
    for offer in offers:
        try:
            with stage("rent", say):
                op = pods.rent(provider, plan.request, offer, plan.job, journal, target=plan.target, store=plan.store)
        except NoOffer as error:
            passed.append(str(error))
            say(passed[-1])
            continue
        try:
            transport, pod = provider.reach(pods.pod_of(op)), pods.folder_of(op)
            failure = ""
            if accept:
                with stage("accept", say):
                    failure = accept(transport, plan.request, offer)
            if failure:
                passed.append(f"{offer.place or offer.offer_id} was given back: {failure}")
                say(passed[-1])
                pods.end(provider, op, journal, failure)
                continue
            say(f"sending the code to {op.address}")
            with stage("push", say) as told:
                pushed = transport.push(root, pod.code, op.token)
                told += [f"{pushed.sent} files", *(f"not sent: {refusal}" for refusal in pushed.refused)]
            if provider.pod_store:
                with stage("tools", say) as told:
                    told.append(tools.bring(transport, pod))
                with stage("inputs", say) as told:
                    told += home.send_artifacts(plan.job, pod, provider.pod_store, transport, Store(plan.store))
            if prepare:
                with stage("what was made", say):
                    prepare(op, transport)
            with stage("hand-over", say):
                return hand_over(op, transport, journal, secrets)
        except BaseException as error:  # also Ctrl-C: a pod without its job must not stay
            with contextlib.suppress(OSError):  # nobody listens any more: it is to end all the same
                say(f"{op.run} did not start: {error or type(error).__name__}; ending what there is of it")
            pods.end(provider, journal.op(op.token), journal, f"hand-over failed: {error}")
            if isinstance(error, (Lost, TimedOut, Unreachable)):  # what had become of it was not known: now it is
                raise SlipwayError(f"{op.run}: {error}; it was ended, nothing of it runs: launch again") from error
            raise
    raise NoOffer(f"{provider.name}: no machine is left: {'; '.join(passed)}")


def resume(op: Op, provider: Provider, journal: Journal, secrets: Mapping[str, str]) -> Op:
    """Go on with a run that has stopped, on the code that it was started with.

    Raises UsageError when it is at work, or has nothing left to go on with.
    """
    if op.is_live:
        if op.state not in (READY, LOST):
            raise UsageError(f"{op.run} is {op.state}; run: inv status")
        return hand_over(op, provider.reach(pods.pod_of(op)), journal, secrets)
    job = Job.from_json(op.job)
    try:
        if not op.address:
            raise FileNotFoundError
        provider.reach(pods.pod_of(op)).get(pods.folder_of(op).code / "infra" / "agent" / "__main__.py")
    except FileNotFoundError:
        raise UsageError(f"{op.run} left nothing to go on with; run: inv launch") from None
    request = Request(run=op.run, provider=op.vendor, host=op.place)
    new = pods.rent(provider, request, choose(provider, request)[0], job, journal, target=op.target, store=op.store)
    try:
        return hand_over(new, provider.reach(pods.pod_of(new)), journal, secrets)
    except BaseException as error:
        pods.end(provider, new, journal, f"hand-over failed: {error}")
        raise


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
