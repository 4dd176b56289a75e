"""The state of a service between commands and controllers, as JSON in the journal: two records, a writer each.

    WantedService   what the user asks for    written by commands, one at a time
    ServiceRecord   what there is, and was    written by the controller that holds the lease

In: records. Out: text, and back. Pure.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

import msgspec

from infra.errors import SlipwayError
from serve import service
from serve.policy.autoscaler import AutoscalerMemory
from serve.policy.replica_states import Facts, State, state_of
from serve.service import Service

NOT_THEIRS = ("HOST", "PORT", "MODEL", "SERVED_NAME", "VLLM_API_KEY")

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Version:
    """One revision of a service. Its replicas are all alike."""

    number: int
    document: dict[str, Any]
    """The service file."""
    where: str = ""
    """Path of the file, for messages."""
    engine: str = "vllm"
    provider: str = "local"
    """Provider of replicas; "" = wherever there is room, in the order of `placement`."""
    model: str
    """Source of the model, as `models.resolve` takes it; a model on this machine is a folder here, so that all replicas
    serve the same."""
    store: str = ""
    """Store of our artifacts."""
    weights: str = ""
    """Changes with each release of the weights in the same place."""
    gpu_bytes: int = 0
    """Estimate of a replica's memory on each GPU: no smaller GPU is rented. 0 = not known."""

    @property
    def service(self) -> Service:
        return service.parse(self.where or f"version {self.number}", self.document)


@dataclass(frozen=True, kw_only=True)
class WantedService:
    versions: tuple[Version, ...]
    """Versions, the newest last; older ones are kept for as long as replicas of them live."""
    mode: str = "rolling"
    host: str = "127.0.0.1"
    port: int = 0
    """0 = any free port; the choice of the first controller holds for later ones."""
    is_ending: bool = False
    since: float = 0.0
    """UTC epoch seconds of the start; earlier costs belong to another service of this name."""

    @property
    def newest(self) -> Version:
        return self.versions[-1]

    def version(self, number: int) -> Version:
        found = next((one for one in self.versions if one.number == number), None)
        return found or self.newest


@dataclass(frozen=True, kw_only=True)
class Member:
    """One replica and its history. Its number is never used again."""

    number: int
    version: int
    run: str
    """Name of its pod in the journal."""
    facts: Facts = field(default_factory=Facts)
    spot: bool = False
    gpu: str = ""
    """Kind of GPU as in `target_qps_per_replica`: A100:1."""
    vendor: str = ""
    port: int = 0
    """Port of its engine, on its machine."""
    cap_micro_usd: int | None = None
    """The most it may cost, where it is rented."""
    why: str = ""
    """Reason why it is to end or has ended."""
    phases: tuple[tuple[str, float], ...] = ()
    """Stages on its way to the first answer (`replica_pod.Stage`), each with its start: UTC epoch seconds, like the
    fields below."""
    began_at: float = 0.0
    ready_at: float | None = None
    ended_at: float | None = None

    @property
    def state(self) -> State:
        return state_of(self.facts)

    def phase_s(self, now: float) -> dict[str, float]:
        """Return the duration of each phase, in order; the last one lasts until it was ready, or until now."""
        ends = (*(at for _, at in self.phases[1:]), self.ready_at or self.ended_at or now)
        return {phase: max(0.0, end - at) for (phase, at), end in zip(self.phases, ends, strict=False)}


@dataclass(frozen=True, kw_only=True)
class ServiceRecord:
    members: tuple[Member, ...] = ()
    next_number: int = 0
    memory: AutoscalerMemory | None = None
    """Memory of the autoscaler."""
    rule_of: int = 0
    """The change of the desired state that `memory` has taken into account."""
    endpoint: str = ""
    """http://host:port, or https:// where the gateway has a certificate."""
    port: int = 0
    held: str = ""
    """Reason why fewer replicas are started than wanted."""
    serving: tuple[int, ...] = ()
    """The replicas that requests go to."""
    problem: str = ""
    """Reason why the controller that wrote this could not go on."""
    began_at: float = 0.0


def write(record: WantedService | ServiceRecord) -> str:
    return msgspec.json.encode(record).decode()


def wanted_of(text: str) -> WantedService:
    return _read(text, WantedService)


def seen_of(text: str) -> ServiceRecord:
    return _read(text, ServiceRecord) if text else ServiceRecord()


def _read(text: str, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(text, type=kind)
    except msgspec.DecodeError as error:  # a newer Slipway wrote it
        raise SlipwayError(f"the journal has a service that this version cannot read: {error}") from error


def served_name(name: str, service: Service) -> str:
    """Return the name of the model of the service `name` for clients."""
    return service.ours.served_name or name


def environ_of(service: Service) -> Mapping[str, str]:
    """Return the file's variables for its engine, but for its address and its key, which are ours to set."""
    return {name: value for name, value in service.envs.items() if name not in NOT_THEIRS}
