"""View of services: the controller's last record, the replicas, and metrics of recent requests."""

import json as json_text
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from infra.errors import SlipwayError, UsageError
from infra.ledger import service_rows
from infra.ledger.journal import Journal
from infra.ledger.op import Op
from infra.runs import run_rows
from infra.settings import Settings
from infra.units import dollars, duration, iso
from serve.gateway.http import certificate
from serve.gateway.http.certificate import Tls
from serve.policy import replica_states, service_state
from serve.policy.replica_states import LIVE, State
from serve.policy.service_state import Member, ServiceRecord
from serve.processes import controller_process
from serve.readiness import phases

RECENT_S = 300.0  # Period of the metrics.
TAIL_BYTES = 8 << 20
SOON_S = 14 * 86_400.0  # Warning period before a certificate expires.
SHOWN_FAILURES = 5
UNREADABLE = "UNREADABLE"  # State of a service with an unreadable journal record.


def look(names: Sequence[str], settings: Settings, journal: Journal, with_metrics: bool) -> list[dict[str, Any]]:
    """Return the facts about each service, without ended services."""
    found = [one for one in (_about(name, settings, journal) for name in names) if one]
    for one in found if with_metrics else ():
        one["metrics"] = figures(one["service"], settings)
    return found


def _about(name: str, settings: Settings, journal: Journal) -> dict[str, Any]:
    """Return the facts of `about`, or the error of an unreadable record; other services must still be shown."""
    try:
        return about(name, settings, journal)
    except SlipwayError as error:
        rate = sum(op.rate for op in journal.ops(live=True) if op.service == name)
        nothing = {
            "endpoint": "",
            "ready": 0,
            "target": 0,
            "versions": [],
            "wanted_version": 0,
            "model": "",
            "model_name": "",
            "engine": "",
            "certificate": None,
            "replicas": [],
        }
        return {"service": name, "state": UNREADABLE, **nothing, "held": str(error), "usd_per_hour": dollars(rate)}


def about(name: str, settings: Settings, journal: Journal) -> dict[str, Any]:
    """Return the controller's last view of a service; {} for an ended service."""
    row = service_rows.find(journal, name)
    if row is None:
        return {}
    wanted, seen = service_state.parse_desired(row.wanted), service_state.parse_observed(row.seen)
    rows = {op.run: op for op in journal.ops() if op.service == name}
    is_kept = controller_process.is_kept(name, journal)
    target = seen.memory.target if seen.memory else wanted.newest.service.policy.min_replicas
    state = replica_states.service_state([one.state for one in seen.members], wanted.is_ending).value
    members = [replica(one, seen, rows.get(one.run)) for one in shown(seen)]
    return {
        "service": name,
        "state": state if is_kept else "CONTROLLER_FAILED",
        "endpoint": seen.endpoint,
        "ready": sum(one.state is State.READY for one in seen.members),
        "target": target,
        "versions": sorted({one.version for one in seen.members if one.state is State.READY}),
        "wanted_version": wanted.newest.number,
        "model": wanted.newest.model,
        "model_name": wanted.newest.model_name,
        "engine": wanted.newest.engine,
        "held": seen.held or seen.problem,
        "certificate": certificate_of(wanted.newest.service.tls, time.time()),
        "usd_per_hour": dollars(sum(op.rate for op in rows.values() if op.is_live)),
        "replicas": members,
    }


def certificate_of(tls: Tls | None, now: float) -> dict[str, Any] | None:
    """Return the expiry time of a service's certificate, and advice; None without a certificate."""
    if tls is None:
        return None
    try:
        at = certificate.ends_at(tls.certfile)
    except UsageError as error:
        return {"ends": None, "problem": str(error)}
    left_s, again = (
        at - now,
        f"write a new certificate to {tls.certfile} and {tls.keyfile}; the gateway loads the files without a restart",
    )
    if left_s <= 0:
        return {"ends": iso(at), "problem": f"the certificate has expired, and clients refuse the connection; {again}"}
    return {
        "ends": iso(at),
        "problem": f"the certificate expires in {duration(left_s)}; {again}" if left_s < SOON_S else "",
    }


def shown(seen: ServiceRecord) -> list[Member]:
    """Return the live replicas, and the last failed replicas."""
    failed = [one for one in seen.members if one.state not in (*LIVE, State.SHUTTING_DOWN)][-SHOWN_FAILURES:]
    return [one for one in seen.members if one in failed or one.state in (*LIVE, State.SHUTTING_DOWN)]


def replica(one: Member, seen: ServiceRecord, op: Op | None) -> dict[str, Any]:
    """Return a replica as JSON; durations are in seconds."""
    return {
        "id": one.number,
        "run": one.run,
        "version": one.version,
        "state": one.state.value,
        "serving": one.number in seen.serving and one.state is State.READY,
        "provider": one.vendor or (op.vendor if op else None),
        "where": run_rows.where(op) if op and op.address else None,
        "kind": "own" if op and not op.rate else "spot" if one.spot else "on-demand",
        "usd_per_hour": dollars(op.rate if op and op.is_live else 0),
        "age_s": round(time.time() - one.began_at, 1),
        "ready_after_s": None if one.ready_at is None else round(one.ready_at - one.began_at, 1),
        "phases_s": {phase: round(spent_s, 1) for phase, spent_s in one.phase_s(time.time()).items()},
        "at": phases(one) if one.state is State.STARTING else None,
        "why": one.why or None,
    }


def figures(name: str, settings: Settings) -> dict[str, Any]:
    """Return the metrics of the last five minutes from the gateway's access log, which needs no API key."""
    places, now = controller_process.ServicePaths.for_service(settings, name), time.time()
    asked = [one for one in lines_of(places.access) if one["at"] > now - RECENT_S and one["route"] not in ("other", "")]
    minute = [one for one in asked if one["at"] > now - 60.0]
    answered = [one for one in asked if one["status"] == 200]
    qps = {
        run: round(sum(one["replica"] == run for one in minute) / 60.0, 3)
        for run in sorted({one["replica"] for one in minute if one["replica"]})
    }
    firsts = [one["first_byte_s"] for one in answered if one["streams"] and one["first_byte_s"] is not None]
    counts = [(one["at"], one["ready"]) for one in lines_of(places.history)]
    return {
        "qps": round(len(minute) / 60.0, 3),
        "qps_per_replica": qps,
        "requests": len(asked),
        "failed": sum(one["status"] >= 500 for one in asked),
        "latency_s": percentiles([one["total_s"] for one in answered]),
        "time_to_first_token_s": percentiles(firsts),
        "queue_s": percentiles([one["queue_s"] for one in answered if one["queue_s"] is not None]),
        "replicas_over_time": [{"at": iso(at), "ready": ready} for at, ready in counts[-20:]],
    }


def lines_of(path: Path) -> list[dict[str, Any]]:
    """Return the JSON objects in the tail of a log; skip partial lines."""
    try:
        with path.open("rb") as file:
            size = path.stat().st_size
            file.seek(max(0, size - TAIL_BYTES))
            lines = file.read().splitlines()
    except FileNotFoundError:
        return []
    found = []
    for line in lines[1:] if size > TAIL_BYTES else lines:
        try:
            found.append(json_text.loads(line))
        except ValueError:  # A truncated line, as after a full disk.
            continue
    return found


def percentiles(values: Sequence[float]) -> dict[str, float | None]:
    """Return the p50, p95 and p99 percentiles by name; None without values."""
    ordered = sorted(values)

    def at(share: float) -> float | None:
        return round(ordered[min(len(ordered) - 1, int(share * len(ordered)))], 4) if ordered else None

    return {"p50": at(0.50), "p95": at(0.95), "p99": at(0.99)}
