"""Observed state of pods: the reports of the journal, the provider and the pod's files, with their age.

All pods are queried in parallel with the same deadline of a few seconds, so a silent pod does not delay the others.
"""

import math
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from infra.agent.limits import Clocks, leads_s, read_clocks
from infra.agent.state import NODE_LOST
from infra.errors import SlipwayError, UsageError, describe
from infra.ledger import spend
from infra.ledger.journal import Journal
from infra.ledger.op import BOOTING, CREATING, FAILED, LOST, PLANNED, READY, TERMINATED, TERMINATING, UNKNOWN, Op
from infra.ledger.spend import LimitOverrun
from infra.machines.host_memory import map_parallel
from infra.providers import Provider, clock_scale
from infra.records import Address, Pod, PodView
from infra.runs import observation, run_rows
from infra.runs.observation import STOPPED, Observation
from infra.runs.run_home import RunHome
from infra.runs.sync import reports
from infra.runs.sync.fetched_files import read_cuts
from infra.units import duration, in_usd, moment

ENDING = "ending"  # State of a run after a request to end the pod, until the pod is proven gone.
QUEUED = "queued"  # State of a pod in an engine's wait queue.
SILENT_TIMER_S = 120.0  # Container clock: a dead-man timer looks every 15 s, and every 60 s past the deadline.
VERDICTS = ("succeeded", "failed", "stopped", "limit", NODE_LOST)


def snapshot(
    journal: Journal,
    providers: Mapping[str, Provider],
    homes: Path,
    *,
    deadline_s: float = 5.0,
    ended: int = 10,
    named: str = "",
) -> list[PodView]:
    """Return one row per run, by its last pod: all live runs and the last `ended` ended runs; newest last.

    A pod detached from a run has a row of its own until the pod is proven gone. An ended replica of a service is left
    out unless `named`; the `named` run always has a row. Ended pods are not contacted: `homes` holds their downloads.
    """
    newest = {op.run: op for op in journal.ops()}
    ops = [newest[run] for run in journal.runs()]
    over = [op.token for op in ops if not (op.is_live or op.service)]
    ops = [op for op in ops if op.is_live or op.run == named or op.token in over[max(0, len(over) - ended) :]]
    ops = [op for op in journal.ops(live=True) if op.detached and op not in ops] + ops
    sights = zip(ops, map_parallel(lambda op: _look(op, providers.get(op.vendor), homes), ops, deadline_s), strict=True)
    found = {
        op.token: it if isinstance(it, Observation) else _silent(op, providers, homes, str(it)) for op, it in sights
    }
    rows, told, now = journal.ops(), journal.reported_costs("vendor"), read_clocks()
    of = {op.token: [op] if op.detached else [row for row in rows if row.run == op.run] for op in ops}
    views = [_shown(op, found[op.token], now, of[op.token], told) for op in ops]
    return [replace(one, note="; ".join(filter(None, (one.note, *_cuts(one.run, homes))))) for one in views]


def _cuts(run: str, homes: Path) -> list[str]:
    """Return a note about the partly downloaded files of the run's pod, or []."""
    cuts = read_cuts(RunHome.for_run(run, homes))
    return [f"the local copy of the pod's files is incomplete: {'; '.join(cuts)}"] if cuts else []


def _shown(op: Op, seen: Observation, now: Clocks, rows: Sequence[Op], told: Mapping[str, tuple[int, int]]) -> PodView:
    """Return the row of `view`, or a row with the error: a damaged row must not hide the others."""
    try:
        return view(op, seen, now, rows, told)
    except Exception as error:
        return PodView(
            run=op.run,
            provider=op.vendor,
            state="lost" if op.is_live else "stopped",
            micro_usd_per_hour=op.rate,
            started_at=float(op.intent_at),
            note=f"the record of the run cannot be shown: {describe(error)}; end the run: ./inv down {op.run}",
        )


def view(op: Op, seen: Observation, now: Clocks, rows: Sequence[Op], told: Mapping[str, tuple[int, int]]) -> PodView:
    """Return the view of a pod from the journal row and an observation.

    `rows` holds all rows of the run, because earlier pods add to the cost. `told` maps tokens to the vendors' reported
    costs in the journal, as (UTC epoch seconds, micro-USD).
    """
    progress, verdict = seen.progress, seen.verdict
    before = sum(spend.spent(row, now, seen.clock_scale) for row in rows if row.token != op.token)
    told_now = seen.pod.spent_micro_usd if seen.pod else None
    if told_now is not None:
        told = {**told, op.token: (int(now.wall_s), told_now)}
    uploads = progress.get("uploads") or {}
    ended_at = _ended_at(op, seen)
    of_run = [row for row in rows if row.token != op.token]
    limit = None if op.cap is None else op.cap + before
    over = spend.excess(op, now, seen.clock_scale) if op.rate else LimitOverrun()
    heard_s = observation.report_age_s(seen.guard, now)
    return PodView(
        run=op.run,
        provider=op.vendor,
        state=_state(op, seen),
        step=verdict.get("step") or progress.get("step") or "",
        progress=progress,
        age_s=max(0.0, now.wall_s - progress["updated_at"]) if "updated_at" in progress else None,
        micro_usd_per_hour=op.rate,
        spent_micro_usd=spend.total(rows, told, now, clock_scale=seen.clock_scale),
        told_micro_usd=told_now,
        limit_micro_usd=limit,
        run_limit_micro_usd=None if limit is None or op.rank else limit * run_rows.size_of(op),
        limit_in_s=spend.left_s(op, now, seen.clock_scale) if op.is_live else None,
        over_limit_micro_usd=over.micro_usd,
        over_limit_s=over.time_s,
        heard_s=None if heard_s is None or not op.is_live else heard_s * seen.clock_scale,
        ends=_ends(op, seen, now, over) if op.is_live else (),
        ssh=_ssh(op) if op.is_live and seen.pod and seen.pod.state not in ("", *STOPPED) else "",
        started_at=float(op.intent_at),
        note=_note(op, seen),
        in_store=progress.get("in_store") or {},
        recoveries=max(op.recoveries, progress.get("recoveries", 0)),
        elapsed_s=spend.run_s([*of_run, op], now, seen.clock_scale, ended_at),
        ended_at=ended_at,
        clock_scale=seen.clock_scale,
        pending=tuple(uploads.get("pending") or ()) if not seen.verdict else (),
        upload_problem=uploads.get("problem") or "",
    )


def _ended_at(op: Op, seen: Observation) -> float | None:
    """Return the end time of the work: the time of the verdict, otherwise of the pod's end; None while live."""
    if seen.verdict:
        return seen.verdict.get("at", op.ended_at)
    return None if op.is_live else op.ended_at or op.del_requested_at


def _state(op: Op, seen: Observation) -> str:
    if op.detached:
        return _state_of_detached(seen)
    if op.is_live and seen.pod and seen.pod.state == QUEUED and not seen.verdict:
        return "planned"
    if op.is_live and op.outlives_run and not seen.verdict and seen.is_alive and seen.guard.get("holds"):
        return "idle"  # The pod has not had any work yet.
    why = op.outcome if op.outcome in VERDICTS and not op.is_live else ""
    why = why or ("limit" if _is_gone_at_its_limit(op, seen) else "")
    return state_of(op.state, seen.verdict.get("state", "") or why, seen.is_alive)


def _is_gone_at_its_limit(op: Op, seen: Observation) -> bool:
    """Return True if a rented pod was gone at the due limit without a request to end; guards end pods early."""
    limit_s = spend.limit_s(op)
    if op.is_live or op.del_requested_at is not None or op.outcome:
        return False
    if not op.ended_at or not op.rate or limit_s is None:
        return False
    left_s = spend.left_s(op, op.ended_at, seen.clock_scale)
    return left_s is not None and left_s <= leads_s(limit_s)[0]


def state_of(state: str, verdict: str, is_alive: bool | None) -> str:
    """Return the state of a run in one word, from the row state, the verdict ("" = none) and the liveness."""
    if verdict:
        return verdict
    if state in (FAILED, TERMINATED):
        return {FAILED: "failed", TERMINATED: "stopped"}[state]
    if state == TERMINATING:
        return ENDING
    if is_alive:
        return "running"
    if state in (PLANNED, CREATING, UNKNOWN, BOOTING):
        return "planned"
    assert state in (READY, LOST), state
    return "lost" if state == LOST or is_alive is False else "running"


def _state_of_detached(seen: Observation) -> str:
    """Return the state of a detached pod, separate from the run: `lost` until the machine answers, then `stopped`."""
    return "lost" if seen.exists is None else "stopped"


def _note(op: Op, seen: Observation) -> str:
    if op.detached:
        where = op.place or op.remote_id or op.token
        said = f"; {seen.why}" if seen.why else ""
        return f"was on {where}, which stays reserved until the end of all processes there is proven: {op.reason}{said}"
    if seen.why:
        return seen.why
    if seen.verdict:
        stays = f"the pod stays; end the pod: inv pod.down {op.run}" if op.is_live and op.outlives_run else ""
        return "; ".join(filter(None, (str(seen.verdict.get("reason", "")), stays)))
    if op.state == TERMINATING:
        return "being ended, not yet proven gone"
    if op.state == UNKNOWN:
        return "the provider's answer was lost: the pod may exist"
    if _is_gone_at_its_limit(op, seen):
        return f"the pod was gone at the limit, without a verdict ({op.reason})"
    if op.state == READY and seen.is_alive is False:
        return seen.failure_text
    if op.state == READY and seen.is_alive:
        return seen.pod.note if seen.pod and seen.pod.state == QUEUED else ""  # An earlier reason no longer applies.
    return op.reason


def _ssh(op: Op) -> str:
    if not (op.address or "").startswith("ssh://"):
        return ""
    to = Address.parse(op.address or "")
    options = [("IdentitiesOnly", "yes"), *(("CertificateFile", f'"{one}"') for one in to.certificates)]
    options += [("IdentityAgent", f'"{to.agent}"')] if to.agent else []
    options += [("ProxyCommand", to.proxy)] if to.proxy else []
    words = [word for key in (to.key, *to.more_keys) for word in ("-i", key.replace("%", "%%"))]
    words += [word for name, one in options for word in ("-o", f"{name}={one}".replace("%", "%%"))]
    return shlex.join(["ssh", *words, "-p", str(to.port), f"{to.user}@{to.host}"])


def _ends(op: Op, seen: Observation, now: Clocks, excess: LimitOverrun) -> tuple[str, ...]:
    """Return the armed ends, each with the time of the last report."""
    return tuple(filter(None, (_guard_end(seen, now, excess), _timer_end(op, seen, now), *_vendor_ends(op, seen.pod))))


def _vendor_ends(op: Op, pod: Pod | None) -> Iterator[str]:
    """Yield the ends announced by the vendor."""
    if pod and pod.state in STOPPED:
        return
    if pod and pod.ends_at:
        yield f"{op.vendor}'s timer is armed: {moment(pod.ends_at)}"
    if pod and pod.spend_limit_micro_usd:
        yield f"{op.vendor}'s spend limit is armed: {in_usd(pod.spend_limit_micro_usd)}"


def _timer_end(op: Op, seen: Observation, now: Clocks) -> str:
    """Return the state of a pod's dead-man timer, as last seen by the guard; "" for a pod without a timer."""
    try:
        if not op.read_job().has_start_timer:
            return ""
    except UsageError:
        return ""
    timer = seen.guard.get("start_timer") or {}
    is_fresh = (
        observation.is_fresh(observation.report_age_s(seen.guard, now), seen.clock_scale) if seen.guard else False
    )
    if not is_fresh or timer.get("looked_s_ago", math.inf) > SILENT_TIMER_S or "ends_at" not in timer:
        return "dead-man timer: not seen"
    return f"dead-man timer armed: {moment(timer['ends_at'])}"


def _guard_end(seen: Observation, now: Clocks, excess: LimitOverrun) -> str:
    """Return the state and limits of the guard. A guard counts as alive if the report is younger than a minute."""
    guard = seen.guard
    if not guard:
        return ""
    age_s = observation.report_age_s(guard, now)
    if guard.get("alive") and observation.is_fresh(age_s, seen.clock_scale):
        return f"guard alive, {_guard_limit(guard)}"
    words = ["dead"] if guard.get("alive") is False and not (seen.is_alive is None and seen.exists is None) else []
    if age_s is not None:
        words.append(f"last heard {duration(age_s * seen.clock_scale)} ago")
    over = f"; over its limit by {excess.description}" if excess.description else ""
    return f"guard {', '.join(words) or 'never heard'}{over}"


def _guard_limit(guard: Mapping[str, Any]) -> str:
    """Return the limits in the last report of a live guard."""
    limit_s, elapsed_s = guard.get("limit_s"), guard.get("elapsed_s", 0.0)
    limit = "no limit" if limit_s is None else f"ends it in {duration(max(0.0, limit_s - elapsed_s))}"
    idle_limit_s = (guard.get("limits") or {}).get("idle_gpu_s")
    if idle_limit_s is not None and guard.get("idle_s") is not None:
        limit += f"; GPUs idle for {duration(guard['idle_s'])} of {duration(idle_limit_s)}"
    if guard.get("self_end") == "lost":
        limit += "; restarted without the key, so the vendor's own limit ends the pod"
    return limit


def _look(op: Op, provider: Provider | None, homes: Path) -> Observation:
    """Look at one pod; if the pod gives no report, use the downloaded reports with their age."""
    if provider is None:
        seen = Observation(why=f"provider {op.vendor} is not set up here" if op.is_live else "")
    else:
        seen = observation.observe_pod(op, provider)
    return seen if seen.progress or seen.verdict or seen.guard else _from_home(op, homes, seen)


def _silent(op: Op, providers: Mapping[str, Provider], homes: Path, why: str) -> Observation:
    """Return the sight of a pod that did not answer in time. The guard is not reported dead."""
    provider = providers.get(op.vendor)
    return _from_home(op, homes, Observation(why=why, clock_scale=clock_scale(provider) if provider else 1.0))


def _from_home(op: Op, homes: Path, seen: Observation) -> Observation:
    """Return the sight with the downloaded reports of the pod."""
    try:
        told = observation.own_reports(op, reports.read_local(op, RunHome.for_run(op.run, homes)))
    except (SlipwayError, OSError, ValueError) as error:
        return replace(seen, why="; ".join(filter(None, (seen.why, str(error)))))
    return replace(seen, guard=told["guard"], progress=told["progress"], verdict=told["verdict"])
