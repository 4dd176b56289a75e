"""Services of an engine such as SkyServe: the engine gets the file of a service as the file is, and runs the replicas.

    file -> EngineService (price of a replica, numbers) -> begin: a row of the journal -> view, end

The row has the limits of all replicas together. The supervisor of this machine ends the service at a limit; no guard
runs on the machines of an engine.
"""

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, cast

from flows.specs.service import ServeSpec
from flows.supervisor import supervisor_client
from infra.agent.job import Job, Limits
from infra.errors import SlipwayError, UsageError
from infra.ledger import service_rows
from infra.ledger.journal import Journal
from infra.ledger.op import Op
from infra.names import check_name, match
from infra.records import Offer, Request
from infra.runs import pods
from infra.runs.engine import RunEngine, engine_of
from infra.runs.timing import Say
from infra.selection import registry
from infra.settings import Settings
from infra.units import BadAmount, dollars
from serve.budget import limit_of
from store import packs

KIND = "service"
MOST_USD = 150
END_S = 600.0  # an engine ends the replicas of a service one after the other
REFUSED = (
    *("model", "tag", "engine", "replicas", "gpu", "num_gpus", "use_spot", "max_price", "cpus", "memory", "disk_size"),
    *("region", "instance_type", "mode", "host", "port"),
)


@dataclass(frozen=True, kw_only=True)
class EngineService:
    """The service of a file, as the engine gets it."""

    document: Mapping[str, Any] = field(repr=False)
    """The file with the values of its secrets."""
    offer: Offer
    """The machine that the engine would choose for a replica now, at the price of the dearest alternative.

    `is_own` is True only if no alternative is a rented machine.
    """
    least: int
    most: int
    notes: tuple[str, ...]


class EngineServices(Protocol):
    """The services of an engine."""

    def __init__(self, engine: RunEngine) -> None: ...

    def read(self, path: Path, settings: Settings) -> EngineService:
        """Return the service of a file. Raises UsageError for a file that the engine refuses, and NoOffer."""

    def renting(self, document: Mapping[str, Any]) -> RunEngine:
        """Return a provider whose next pod is this service."""

    def view(self, op: Op) -> Mapping[str, Any]:
        """Return `state`, `endpoint`, `versions`, `version` and `replicas` of a service; {} without a record."""

    def log(self, op: Op, replica: int | None, tail: int | None) -> str:
        """Return the output of a replica, or of the engine's controller."""

    unproven: str
    """The rest that the proof of an end leaves open, in words."""


def of_engine(engine: RunEngine) -> EngineServices:
    """Return the services of an engine. Raises UsageError if the engine runs jobs only."""
    if not engine.services:
        raise UsageError(
            f"--provider {engine.name}: {engine.title} runs jobs and no services; use local, ssh or a vendor"
        )
    make = cast(Callable[[RunEngine], EngineServices], packs.load(engine.services))
    return make(engine)


def engine_named(provider: str, settings: Settings) -> RunEngine | None:
    """Return the engine with this name, or None for a different provider."""
    return engine_of(registry.provider(settings, provider)) if provider in packs.engines() else None


@dataclass(frozen=True, kw_only=True)
class PlannedService:
    name: str
    service: EngineService
    limits: Limits
    rate: int
    """Price of all replicas at the highest load, in micro-USD per hour."""


def plan(spec: ServeSpec, engine: RunEngine, journal: Journal, settings: Settings, tell: Say) -> PlannedService:
    """Return the service of a file with its price and limits, without a change. Raises UsageError, NoOffer."""
    if not spec.config:
        raise UsageError(
            f"--provider {engine.name} needs the file of a service: inv serve.up FILE --provider {engine.name}"
        )
    if unused := [one for one in REFUSED if getattr(spec, one) not in ("", None, 0, False)]:
        flag = unused[0].replace("_", "-")
        raise UsageError(f"--{flag}: {engine.title} gets {spec.config} as it is; write the value into the file")
    name = check_name(spec.name or Path(spec.config).stem.replace(".", "-"))
    if any(one.run == name for one in journal.ops(live=True)):
        raise UsageError(f"{name} is running; end the service first: inv serve.down {name}, or give --name")
    service = of_engine(engine).read(Path(spec.config), settings)
    rate = service.offer.micro_usd_per_hour * max(1, service.most)
    try:
        said = spec.spend_limit or ("" if service.offer.is_own else str(MOST_USD))
        spend = limit_of(said) if said else None
    except BadAmount as error:
        raise UsageError(f"--spend-limit: {error}") from None
    if spend and not spec.spend_limit:
        tell(f"--spend-limit is not given: all replicas together may cost {MOST_USD} USD")
    return PlannedService(name=name, service=service, limits=Limits(spend_micro_usd=spend), rate=rate)


def begin(planned: PlannedService, engine: RunEngine, journal: Journal, settings: Settings) -> Op:
    """Hand the service over, and return the row. Raises as `infra.runs.pods.rent`."""
    offer = dataclasses.replace(planned.service.offer, micro_usd_per_hour=planned.rate)
    job = Job(run=planned.name, token="", steps=(), kind=KIND, limits=planned.limits)
    request = Request(run=planned.name, provider=engine.name)
    renting = of_engine(engine).renting(planned.service.document)
    op = pods.rent(renting, request, offer, job, journal)
    op = journal.advance(op, "armed")
    supervisor_client.ensure(settings)
    return op


def rows(journal: Journal) -> list[Op]:
    """Return the rows of live services that engines run."""
    engines = packs.engines()
    return [one for one in journal.ops(live=True) if one.vendor in engines and one.read_job().kind == KIND]


def find(name: str, journal: Journal) -> Op | None:
    """Return the row of the service with the prefix `name`, or of the only service for "".

    Return None if Slipway itself runs the service, or without a match. Raises UsageError for several.
    """
    known = {one.run: one for one in rows(journal)}
    ours = {one.name for one in service_rows.list_services(journal)}
    if not name:
        return next(iter(known.values())) if len(known) == 1 and not ours else None
    if name not in known and (
        any(one.startswith(name) for one in ours) or not any(one.startswith(name) for one in known)
    ):
        return None
    return known[match(name, known)]


def end(op: Op, journal: Journal, settings: Settings) -> Op:
    """End a service, and return the row after the proof. Raises SlipwayError without a proof."""
    return pods.end(registry.provider(settings, op.vendor), op, journal, patience_s=END_S)


def about(op: Op, settings: Settings, now: float) -> dict[str, Any]:
    """Return a service as a document in the form of `service_view.about`."""
    engine = engine_named(op.vendor, settings)
    assert engine is not None
    problem = ""
    try:
        seen = of_engine(engine).view(op)
    except SlipwayError as error:
        seen, problem = {"state": "UNKNOWN"}, str(error)
    replicas = [
        {
            "id": one["id"],
            "run": one["cluster"],
            "version": one["version"],
            "state": one["state"],
            "where": one["where"] or None,
            "kind": "spot" if one["spot"] else "on-demand",
            "usd_per_hour": "-",
            "age_s": round(now - one["launched_at"], 1) if one["launched_at"] else 0.0,
            "at": None,
            "why": one["machine"] or None,
        }
        for one in seen.get("replicas", ())
    ]
    return {
        "service": op.run,
        "state": seen.get("state", "NO_RECORD"),
        "endpoint": seen.get("endpoint", ""),
        "ready": sum(one["state"] == "READY" for one in replicas),
        "target": len(replicas),
        "versions": seen.get("versions", []),
        "wanted_version": seen.get("version"),
        "model": "",
        "model_name": "",
        "engine": op.vendor,
        "held": problem,
        "unproven": of_engine(engine).unproven,
        "certificate": None,
        "usd_per_hour": dollars(op.rate),
        "replicas": replicas,
    }
