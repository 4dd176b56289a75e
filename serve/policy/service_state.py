"""State of a service, shared by commands and controllers as JSON in the journal: two records with a writer each.

    WantedService   desired state              written by commands, one at a time
    ServiceRecord   observed state, history    written by the controller that holds the lease

Records become text and text becomes records. Pure.
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
from serve.variants import Variant

NOT_THEIRS = ("HOST", "PORT", "MODEL", "SERVED_NAME", "VLLM_API_KEY")

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Version:
    """Revision of a service. All replicas of a version are identical."""

    number: int
    document: dict[str, Any]
    """The service file."""
    where: str = ""
    """Path of the file, for messages."""
    engine: str = "vllm"
    provider: str = "local"
    """Provider of the replicas; "" = any provider with room, in the order of `placement`."""
    model: str
    """Model source as accepted by `models.resolve`; a model on this machine is a folder, so all replicas serve the same
    weights."""
    model_name: str = ""
    """Name of the model for users: of the artifact at the start of the version, or the source."""
    store: str = ""
    """Store of our artifacts."""
    weights: str = ""
    """Id of the weights, different for each release in the same place."""
    gpu_bytes: int = 0
    """Estimated memory of a replica on each GPU: smaller GPUs are not rented. 0 = unknown."""

    @property
    def service(self) -> Service:
        return service.parse(self.where or f"version {self.number}", self.document)


@dataclass(frozen=True, kw_only=True)
class WantedService:
    versions: tuple[Version, ...]
    """Versions, the newest last; an older version is kept while replicas of the version live."""
    mode: str = "rolling"
    host: str = "127.0.0.1"
    port: int = 0
    """0 = any free port; later controllers keep the first controller's choice."""
    is_ending: bool = False
    variants: dict[str, Variant] = field(default_factory=dict)
    """Variants of the model by name for clients; a change restarts no replica."""
    since: float = 0.0
    """Start of the service in UTC epoch seconds; earlier costs belong to a previous service with this name."""

    @property
    def newest(self) -> Version:
        return self.versions[-1]

    def version(self, number: int) -> Version:
        found = next((one for one in self.versions if one.number == number), None)
        return found or self.newest


@dataclass(frozen=True, kw_only=True)
class Member:
    """Replica with history. Numbers are never reused."""

    number: int
    version: int
    run: str
    """Name of the pod in the journal."""
    facts: Facts = field(default_factory=Facts)
    spot: bool = False
    gpu: str = ""
    """Kind of GPU as in `target_qps_per_replica`: A100:1."""
    vendor: str = ""
    port: int = 0
    """Port of the engine on the replica's machine."""
    cap_micro_usd: int | None = None
    """Spend limit of a rented replica."""
    variants: dict[str, str] = field(default_factory=dict)
    """Identity of each loaded variant (`Variant.identity`), by name."""
    refused: dict[str, str] = field(default_factory=dict)
    """Error of each variant that the engine did not load, by identity."""
    failed: dict[str, str] = field(default_factory=dict)
    """Last error of each variant that is tried again, by identity."""
    why: str = ""
    """Reason for the end."""
    phases: tuple[tuple[str, float], ...] = ()
    """Stages on the way to the first answer (`replica_pod.Stage`), each with the start in UTC epoch seconds, like the
    fields below."""
    began_at: float = 0.0
    ready_at: float | None = None
    ended_at: float | None = None

    @property
    def state(self) -> State:
        return state_of(self.facts)

    def phase_s(self, now: float) -> dict[str, float]:
        """Return the seconds per phase, in order; the last phase ends when the replica is ready or ended, or now."""
        ends = (*(at for _, at in self.phases[1:]), self.ready_at or self.ended_at or now)
        return {phase: max(0.0, end - at) for (phase, at), end in zip(self.phases, ends, strict=False)}


@dataclass(frozen=True, kw_only=True)
class ServiceRecord:
    members: tuple[Member, ...] = ()
    next_number: int = 0
    memory: AutoscalerMemory | None = None
    """State of the autoscaler."""
    rule_of: int = 0
    """Epoch of the desired state already applied to `memory`."""
    endpoint: str = ""
    """http://host:port, or https:// with a certificate."""
    port: int = 0
    held: str = ""
    """Reason why fewer replicas start than wanted."""
    serving: tuple[int, ...] = ()
    """Replicas that receive requests."""
    problem: str = ""
    """Error that stopped the controller, if any."""
    began_at: float = 0.0


def write(record: WantedService | ServiceRecord) -> str:
    return msgspec.json.encode(record).decode()


def parse_desired(text: str) -> WantedService:
    return _read(text, WantedService)


def parse_observed(text: str) -> ServiceRecord:
    return _read(text, ServiceRecord) if text else ServiceRecord()


def _read(text: str, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(text, type=kind)
    except msgspec.DecodeError as error:  # a newer Slipway wrote the record
        raise SlipwayError(f"the journal has a service that this version cannot read: {error}") from error


def served_name(name: str, service: Service) -> str:
    """Return the model name for clients of the service `name`."""
    return service.slipway.served_name or name


def environ_of(service: Service) -> Mapping[str, str]:
    """Return the file's variables for the engine, without NOT_THEIRS (set by the controller)."""
    return {name: value for name, value in service.envs.items() if name not in NOT_THEIRS}
