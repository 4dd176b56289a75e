"""Launch of a run: rent the pods, send code and inputs, and hand over the job; afterwards the local machine may leave.

    Plan -> Offer -> Op (journal: rental, rented) -> code + job.json -> an armed guard (journal: ready)

`start` turns a plan into the journal row of an active pod. A run over N nodes uses N pods and is represented by the row
of node 0. `resume` restarts a stopped run. `hold` rents a pod without work, held to its limits by a guard, and
`submit_to_held_pod` sends work to such a pod.
"""

import json
import secrets as random
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

from infra.agent.job import Job, Limits, NodeGroup
from infra.errors import UsageError
from infra.ledger.journal import Journal
from infra.ledger.op import BOOTING, LOST, READY, AlreadyLive, Op
from infra.machines.node_addresses import exchange_addresses
from infra.providers import Provider, Vendors, clock_scale, self_terminate_calls
from infra.records import Offer, Plan, Request
from infra.runs import observation, pods, run_rows
from infra.runs.hand_over import adopt_sent_code, hand_over, send_agent, send_code
from infra.runs.renting import APART, PLAIN, Rental, Terms, end_all, rent_and_start
from infra.runs.sync import mirror
from infra.runs.sync.sync_step import with_uploader
from infra.runs.timing import Say, stage
from infra.selection.choose import of_machines
from infra.transport.protocol import Transport
from infra.transport.push import push
from infra.units import count
from store.artifacts.artifacts import Store


def start(
    plan: Plan,
    offers: Sequence[Offer],
    vendors: Vendors,
    journal: Journal,
    root: Path,
    secrets: Mapping[str, str],
    say: Say,
    terms: Terms = PLAIN,
) -> Op:
    """Rent one pod per node of the plan, send the code in `root`, and hand over the job; return the row of node 0.

    Try the offers in order. Skip an offer that is taken, never boots, fails `terms.accept`, or loses the pod before the
    work begins; deduct the cost of skipped pods from the limits of the next pods. Rent all pods before sending any
    data, and give all pods back if one is not available.

    Raises AlreadyLive if the run is already active, NoOffer without a remaining offer, LimitHit if a limit is used up,
    and EndedDuringStart after a request to end the run (`inv down`), which stops all further rental.
    """
    _refuse_engine(plan.job, offers, vendors)

    def work(ops: list[Op]) -> None:
        with ThreadPoolExecutor(len(ops)) as pool:
            list(pool.map(lambda op: _send(op, vendors(op.vendor), root, plan, say, terms), ops))
        if len(ops) > 1:
            with stage("introduce", say, rental.scale):
                ops[:] = _write_node_addresses(ops, vendors, journal)
        with stage("hand-over", say, rental.scale):
            ops[:] = [hand_over(op, vendors(op.vendor), journal, secrets) for op in ops]

    rental = Rental(plan, list(offers), vendors, journal, say, terms)
    return rent_and_start(rental, work)


def _refuse_engine(job: Job | None, offers: Sequence[Offer], vendors: Vendors) -> None:
    """Raise UsageError for a service or a held pod on an engine, which only queues runs."""
    name = next((one.provider for one in offers if vendors(one.provider).restarts_runs), "")
    if name and job and (job.kind != "steps" or job.stays):
        what = "a service" if job.kind == "service" else "a pod without work"
        raise UsageError(
            f"{name} runs only jobs, and {what} is not a job; choose a different --provider: local, ssh or a vendor"
        )


def hold(
    request: Request,
    limits: Limits,
    offers: Sequence[Offer],
    vendors: Vendors,
    journal: Journal,
    say: Say,
    terms: Terms = PLAIN,
    clock_scale: float = 1.0,
) -> Op:
    """Rent one pod that stays without work, held to the limits by a guard. Raises as `start`."""
    job = Job(run=request.run, token="", steps=(), kind="hold", stays=True, limits=limits, clock_scale=clock_scale)
    plan = Plan(target="", store="", artifacts=(), job=job, request=request)
    _refuse_engine(job, offers, vendors)

    def work(ops: list[Op]) -> None:
        provider = vendors(ops[0].vendor)
        with stage("guard", say, clock_scale):
            send_agent(ops[0], provider)
            ops[0] = hand_over(ops[0], provider, journal, {})

    return rent_and_start(Rental(plan, list(offers), vendors, journal, say, terms), work)


def submit_to_held_pod(
    op: Op,
    plan: Plan,
    provider: Provider,
    journal: Journal,
    root: Path,
    secrets: Mapping[str, str],
    say: Say,
    terms: Terms = PLAIN,
) -> Op:
    """Send code, inputs and a job to a held pod; return the row. The limits of the pod keep counting. Idempotent.

    Raises UsageError if the pod is running a job, and AlreadyLive if a different pod makes the same target.
    """
    assert plan.job is not None
    transport = provider.reach(observation.pod_of(op))
    if not is_idle(op, transport):
        raise UsageError(
            f"{op.run} is running; wait for the end (inv logs {op.run} --follow), or end the run: inv down {op.run}"
        )
    rivals = [one for one in journal.ops(live=True) if (one.target, one.store) == (plan.target, plan.store)]
    if plan.target and rivals and rivals[0].token != op.token:
        raise AlreadyLive(rivals[0])
    limits = op.read_job().limits
    job = replace(
        plan.job,
        run=op.run,
        token=op.token,
        limits=limits,
        stays=True,
        self_terminate_calls=self_terminate_calls(provider),
    )
    if provider.is_rented and job.steps:
        job = with_uploader(job, plan.store, op.run)
    _send(replace(op, job=job.to_json()), provider, root, plan, say, terms)
    op = journal.note(op, job=job.to_json(), target=plan.target, store=plan.store)
    with stage("hand-over", say, clock_scale(provider)):
        return hand_over(op, provider, journal, secrets)


def is_idle(op: Op, transport: Transport) -> bool:
    """Return True if the guard holds the pod without work, or is dead. Raises SlipwayError if the state is unknown."""
    said = observation.query_agent(op, transport)
    if said["agent"].get("alive"):
        return False
    return not said["guard"].get("alive") or bool(said["guard"].get("holds"))


def _send(op: Op, provider: Provider, root: Path, plan: Plan, say: Say, terms: Terms) -> None:
    """Send the code, the carried folders, and the job's input artifacts from outside."""
    transport, pod = provider.reach(observation.pod_of(op)), observation.folder_of(op)
    if terms.sync:
        send_code(op, provider, root, say)
    else:
        adopt_sent_code(op, provider, root, plan, say)
    for one in plan.carried if terms.sync else ():
        with stage(one.name, say, clock_scale(provider)) as told:
            pushed = push(transport, Path(one.source), pod.root / one.name, op.token, one.file, anyway=one.anyway)
            told += [count(pushed.sent, "file"), *(f"not sent: {refusal}" for refusal in pushed.refused)]
    is_apart = op.rank and (provider.restarts_runs or not provider.pod_store)
    pod_store = APART if is_apart else provider.pod_store
    if pod_store:
        with stage("inputs", say, clock_scale(provider)) as told:
            told += mirror.send_artifacts(op.read_job(), pod, pod_store, transport, Store(plan.store))
    if terms.save_copies and op.rank == 0:
        terms.save_copies(op)
    if terms.prepare and op.rank == 0:
        with stage("what was made", say, clock_scale(provider)):
            terms.prepare(op, transport)


def _write_node_addresses(ops: list[Op], vendors: Vendors, journal: Journal) -> list[Op]:
    """Write the names and addresses of all nodes into the job of every node, and return the new rows.

    Under an engine the nodes discover each other at every start, so the addresses are only names.
    """
    if vendors(ops[0].vendor).restarts_runs:
        names, key = tuple(op.run for op in ops), random.token_hex(16)
        found = [NodeGroup(ops[0].run, rank, names, key=key) for rank in range(len(ops))]
        return _noted(ops, found, journal)
    transports = [vendors(op.vendor).reach(observation.pod_of(op)) for op in ops]
    groups = exchange_addresses(ops[0].run, transports, [op.place or op.run for op in ops])
    return _noted(ops, groups, journal)


def _noted(ops: list[Op], groups: Sequence[NodeGroup], journal: Journal) -> list[Op]:
    jobs = [replace(op.read_job(), group=group) for op, group in zip(ops, groups, strict=True)]
    return [journal.note(op, job=job.to_json()) for op, job in zip(ops, jobs, strict=True)]


def resume(op: Op, provider: Provider, journal: Journal, secrets: Mapping[str, str]) -> Op:
    """Resume a stopped run on all nodes with the original code, and return the row of node 0.

    Raises UsageError if the run is active, or if no files remain to resume from.
    """
    if run_rows.is_in_pieces(op, journal):
        raise UsageError(
            f"{op.run}: some nodes are missing, so the run cannot resume on the same pods; run: inv keep {op.run}"
        )
    ops: list[Op] = []
    try:
        for one in run_rows.nodes_of(op, journal):
            ops.append(_reusable_row(one, provider, journal))
        return [hand_over(one, provider, journal, secrets) for one in ops][0]
    except BaseException as error:
        young = [one for one in ops if journal.op(one.token).state == BOOTING]
        end_all(young, lambda _: provider, journal, f"hand-over failed: {error}")
        raise


def _reusable_row(op: Op, provider: Provider, journal: Journal) -> Op:
    """Return the row of a pod that can receive the job again: the same row, or a new row for the same folder."""
    if op.job and op.read_job().kind == "hold":
        raise UsageError(f"{op.run} had no work to resume; run: inv pod.create, inv pod.run")
    if op.is_live:
        if op.state not in (READY, LOST):
            raise UsageError(f"{op.run} is {op.state}; run: inv status")
        return op
    try:
        if not op.address:
            raise FileNotFoundError
        provider.reach(observation.pod_of(op)).get(observation.folder_of(op).code / "infra" / "agent" / "__main__.py")
    except FileNotFoundError:
        raise UsageError(f"{op.run} left no files to resume from; run: inv launch") from None
    request = Request(run=op.run, provider=op.vendor, host=op.place, devices=op.devices)
    if provider.restarts_runs:  # An engine has many machines; request the pool with the run's folder.
        request = replace(Request(**json.loads(op.request)), host="", pool=(op.remote_id or "").partition("@")[2])
    offer = of_machines(provider, request)[0]
    job = op.read_job()
    row = pods.RowDraft(
        target=op.target,
        store=op.store,
        rank=op.rank,
        owner_kind=op.owner_kind,
        owner=op.owner,
        spec_hash=op.spec_hash,
        budget=op.budget,
        budget_name=op.budget_name,
        budget_run=op.budget_run,
        asked=op.asked,
    )
    return pods.rent(provider, request, offer, job, journal, row)
