"""Service file in SkyServe's format: `service:` beside `resources`, `envs`, `file_mounts`, `setup`, `run`.

A file for `sky serve up` is valid here. Options beyond SkyServe stand in the section `slipway:`, which the export
omits. Unknown keys are refused with the nearest known key. `load` returns a Service; `skyserve_export` returns the
document for SkyPilot. Pure except for reading files. Source: SkyPilot 0.14.1, sky/utils/schemas.py and
sky/serve/service_spec.py.
"""

import dataclasses
import difflib
import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from infra import strict_yaml
from infra.errors import UsageError
from infra.settings import is_secret
from serve import file_refusals, request_bounds, service_document
from serve.budget import limit_of
from serve.engine.options import PLAIN, Tuning
from serve.gateway.http.certificate import Tls
from serve.request_bounds import Bounds
from store import partial_records, strict_records

POLICIES = ("least_load", "round_robin", "instance_aware_least_load")
PLACERS = ("dynamic_fallback",)
POOLS = ("pool", "workers")
MODEL_MOUNT = "/model"
USUAL_PORT = 8000
# Keys of other file formats, and the key here with the same meaning.
MEANT = {"period_seconds": "endpoint_probe_interval_seconds", "spot_recovery": "job_recovery", "env": "envs"}
# Keys of SkyPilot's tasks that no service of Slipway has, and the advice.
INSTEAD = {
    "volumes": "a service mounts no volumes; fetch the files in `setup`, or add --provider skypilot",
    "volume_mounts": "a service mounts no volumes; fetch the files in `setup`, or add --provider skypilot",
    "managed_secrets": "Slipway has no server for secrets; list the names under `secrets:` and set them in .env",
    "api_server_access": "Slipway has no API server; remove the key, or add --provider skypilot",
    "file_mounts_mapping": "SkyPilot writes this key; remove the key",
    "accelerator_args": "this key is for TPUs, which the vendors of Slipway do not rent; add --provider skypilot",
}
# Keys without an effect here whose numbers may be negative: the lowest priority is -1000, and autostop -1 means never.
SIGNED = ("autostop", "priority")
_GPU = re.compile(r"[A-Z0-9]+(:[0-9]+)?")
_ENV = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
SHORTEST_KEY = 16  # letters; a password may be shorter
_PASSWORD = re.compile("PASSW|SECRET")
_PLACE = re.compile("(FILE|PATH|DIR)S?$")
# Names of models and of paths have shorter words; base64 has few signs between the letters.
_RANDOM = re.compile(r"(?=[A-Za-z]*[0-9])(?=[a-z0-9]*[A-Z])[A-Za-z0-9]{16}")
_WORDS = re.compile(r"^[\w.-]+/[\w.-]+$|^[/~.]|\s")  # the name of a model, a path, or several words

Scalar = str | int | float | bool | None


@dataclass(frozen=True, kw_only=True)
class Probe:
    """Readiness probe of a replica. Fields are named as in the file; durations in seconds."""

    path: str
    """Path of the probe, such as /health or /v1/models."""
    post_data: dict[str, Any] | str | None = None
    """Body to send; turns the probe into a POST."""
    headers: dict[str, str] = field(default_factory=dict)
    """Headers to send."""
    initial_delay_seconds: float = 1200
    """Failures before the first success are ignored for this long after the engine starts; making its machine and its
    environment does not count."""
    timeout_seconds: float = 15
    """Timeout of a probe."""
    endpoint_probe_interval_seconds: float = 10
    """Time between two probes."""
    consecutive_failure_threshold_timeout: float = 180
    """Time of failing probes after which a replica that was ready is ended."""


@dataclass(frozen=True, kw_only=True)
class ReplicaPolicy:
    min_replicas: int
    """Replicas that are always on."""
    max_replicas: int | None = None
    """Replicas at the highest load. None = min_replicas."""
    target_qps_per_replica: float | dict[str, float] | None = None
    """Requests per second for each replica; a mapping by kind of GPU for mixed GPUs."""
    upscale_delay_seconds: float = 300
    """How long the load must be higher before replicas are added."""
    downscale_delay_seconds: float = 1200
    """How long the load must be lower before replicas are ended."""
    num_overprovision: int | None = None
    """Extra replicas beyond the need of the load."""
    base_ondemand_fallback_replicas: int | None = None
    """Number of replicas that are never spot."""
    dynamic_ondemand_fallback: bool | None = None
    """On-demand replicas replace spot replicas that are not ready."""
    spot_placer: str | None = None

    @property
    def most(self) -> int:
        return self.min_replicas if self.max_replicas is None else self.max_replicas


@dataclass(frozen=True, kw_only=True)
class LoadBalancer:
    stream_timeout_seconds: float = 120
    """Timeout for the next byte of an answer, and for open streams of a replaced replica."""


@dataclass(frozen=True, kw_only=True)
class ServiceSection:
    readiness_probe: Probe | str = "/"
    replicas: int | None = None
    """Fixed number of replicas, instead of replica_policy."""
    replica_policy: ReplicaPolicy | None = None
    load_balancing_policy: str | None = None
    """Policy for SkyServe; the gateway selects the least loaded replica."""
    load_balancer: LoadBalancer = field(default_factory=LoadBalancer)
    ports: int | None = None
    tls: Tls | None = None

    @property
    def policy(self) -> ReplicaPolicy:
        """Return the number of replicas as a policy, also for a fixed number."""
        return self.replica_policy or ReplicaPolicy(min_replicas=1 if self.replicas is None else self.replicas)


@dataclass(frozen=True, kw_only=True)
class SlipwaySection:
    """Section `slipway:` with options beyond SkyServe."""

    model: str = ""
    """Run or artifact of our store, a folder, hf://org/name, s3:// or gs://bucket/path; reaches `run` as $MODEL."""
    served_name: str = ""
    """Name of the model for clients; reaches `run` as $SERVED_NAME. "" = the service's name."""
    target_queue_per_replica: float | None = None
    """Waiting requests for each replica: the second signal of the autoscaler."""
    hold_seconds: float = 0
    """Wait of a request for a replica; for services that scale to zero."""
    affinity_chars: int = 0
    """Characters at the start of a prompt that select the preferred replica."""
    spend_limit: str | float | None = None
    """Limit in US dollars for all replicas together; no replica starts beyond the limit."""
    engine: Tuning = PLAIN
    """Options of the engine."""
    limits: Bounds = request_bounds.PLAIN
    """Bounds on one request."""


@dataclass(frozen=True, kw_only=True)
class ReplicaResources:
    """Machine of a replica in SkyPilot's format; `16+` means at least 16."""

    infra: str | None = None
    cloud: str | None = None
    region: str | None = None
    zone: str | None = None
    instance_type: str | None = None
    accelerators: str | dict[str, float | None] | list[str] | None = None
    cpus: str | float | None = None
    memory: str | float | None = None
    disk_size: int | str | None = None
    disk_tier: str | None = None
    network_tier: str | None = None
    use_spot: bool | None = None
    job_recovery: str | dict[str, Any] | None = None
    ports: int | str | list[int | str] | None = None
    image_id: str | dict[str, str] | None = None
    labels: dict[str, str] | None = None
    max_hourly_cost: float | None = None
    local_disk: str | None = None
    autostop: bool | int | str | dict[str, Any] | None = None
    priority: int | None = None
    priority_class: str | None = None
    any_of: list["ReplicaResources"] | None = None
    ordered: list["ReplicaResources"] | None = None


@dataclass(frozen=True, kw_only=True)
class Storage:
    """Files at a path of a replica, in SkyPilot's format."""

    source: str | list[str] | None = None
    mode: str = "MOUNT"
    """COPY sends the files of this machine; SkyPilot's usual MOUNT and MOUNT_CACHED are for buckets."""
    name: str | None = None
    store: str | None = None
    persistent: bool | None = None
    type: str | None = None
    config: dict[str, Any] | None = None


@dataclass(frozen=True, kw_only=True)
class ServiceFile:
    """Parsed service file; `Service` is the validated form."""

    service: ServiceSection
    name: str | None = None
    workdir: str | None = None
    num_nodes: int | None = None
    """Machines of a replica: 1."""
    resources: ReplicaResources = field(default_factory=ReplicaResources)
    envs: dict[str, Scalar] = field(default_factory=dict)
    secrets: dict[str, Scalar] | list[str] = field(default_factory=dict)
    file_mounts: dict[str, str | Storage] = field(default_factory=dict)
    setup: str = ""
    run: str = ""
    config: dict[str, Any] | None = None
    inputs: Any = None
    outputs: Any = None
    event_callback: Any = None
    slipway: SlipwaySection = field(default_factory=SlipwaySection)


@dataclass(frozen=True, kw_only=True)
class Service:
    """Validated service with consistent parts."""

    file: ServiceFile
    probe: Probe
    policy: ReplicaPolicy
    port: int
    envs: Mapping[str, str]

    @property
    def secrets(self) -> tuple[str, ...]:
        """Return the names of the secret variables; their values are never part of a file."""
        empty = (name for name, value in self.file.envs.items() if value is None)
        return tuple(dict.fromkeys([*self.file.secrets, *empty]))

    @property
    def slipway(self) -> SlipwaySection:
        return self.file.slipway

    @property
    def tls(self) -> Tls | None:
        """Return the certificate of the gateway, or None for plain HTTP."""
        return self.file.service.tls


def load(path: Path, given: Mapping[str, str] = MappingProxyType({})) -> Service:
    """Return the service in a file. Raises UsageError with the line of every refusal.

    given: variables of the command line, which override the variables of the file.
    """
    service, found = examine_file(path, given)
    file_refusals.raise_all(str(path), found, path)
    return service


def examine_file(path: Path, given: Mapping[str, str] = MappingProxyType({})) -> tuple[Service, list[str]]:
    """Return the service in a file without the refused parts, and all refusals. Raises UsageError if there is no YAML.

    given: as for `load`.
    """
    try:
        document = strict_yaml.without_dates(strict_yaml.read(path))
    except FileNotFoundError:
        raise UsageError(f"no service file {path}; copy serve/service.yaml to {path}") from None
    service, found = examine(service_document.with_variables(document, given) if given else document, str(path))
    return service, [*found, *_values_of_secrets(service.envs)]


def parse(where: str, document: Any) -> Service:
    """Return the service in a parsed document; `where` prefixes errors. Raises UsageError."""
    service, found = examine(document)
    file_refusals.raise_all(where, found)
    return service


def examine(document: Any, where: str = "FILE") -> tuple[Service, list[str]]:
    """Return the service in a parsed document without the refused parts, and all refusals. where: path of the file."""
    found: list[str] = []
    document = service_document.without_empty(document)
    if not isinstance(document, dict):
        found.append(f"the file: expected a mapping, got {type(document).__name__}")
        document = {"service": {}}
    document = service_document.with_values(service_document.without_aliases(document, found), found)
    found += map(_explained, strict_records.unknown_keys(ServiceFile, document, spared=POOLS))
    section = document.get("service")
    if not isinstance(section, dict):
        found.append("the section `service:` is missing")
        section = {}
    if {*POOLS} & {*section, *document}:
        found.append("service: pools of workers are for batch jobs; a service has `replicas`")
    if not document.get("run"):  # an engine of ours reports readiness at /health
        section = {"readiness_probe": "/health", **section}
    if isinstance(document.get("workdir"), dict):
        found.append("workdir: replicas get a folder of this machine; clone the repository in `setup`: git clone URL")
        document = {**document, "workdir": None}
    usual = ServiceFile(service=ServiceSection())
    file, mismatches = partial_records.convert(ServiceFile, {**document, "service": section}, usual)
    found += [f"{_in_words(place)}: {what}" for place, what in mismatches]
    found += [*_wrong_numbers("", file), *_wrong_secrets(file.secrets), *_wrong_policy(file.service, file.slipway)]
    if file.num_nodes not in (None, 1):
        found.append(
            f"num_nodes: a replica is one machine; for one run on several machines: inv launch {where}; for replicas "
            "of several machines add --provider skypilot"
        )
    service = Service(
        file=file,
        probe=_probe(file.service.readiness_probe, found),
        policy=file.service.policy,
        port=_port(file.service, file.resources, found),
        envs=_envs(file.envs, found),
    )
    return service, found


def model_of(service: Service) -> str:
    """Return the model named by a file: `slipway.model`, else $MODEL as in SkyServe files; "" without a model."""
    said = service.slipway.model or service.envs.get("MODEL", "")
    if said == MODEL_MOUNT:
        mount = service.file.file_mounts.get(MODEL_MOUNT, "")
        return mount if isinstance(mount, str) else ""
    is_of_hub = not service.slipway.model and re.fullmatch(r"[\w.-]+/[\w.-]+", said)
    return f"hf://{said}" if is_of_hub else said


def _wrong_numbers(at: str, record: Any) -> Iterator[str]:
    """Yield a refusal for each number of all sections that is not finite, or below 0 without a sign in the format."""
    for one in dataclasses.fields(record):
        value = getattr(record, one.name)
        if dataclasses.is_dataclass(value):
            yield from _wrong_numbers(f"{at}{one.name}: ", value)
        elif isinstance(value, (int, float)) and one.name not in SIGNED and not 0 <= value < math.inf:
            yield f"{at}{one.name} is {value:g}; it must be a number from 0 on"


def _probe(said: Probe | str, found: list[str]) -> Probe:
    probe = Probe(path=said) if isinstance(said, str) else said
    where = "service.readiness_probe"
    if not probe.path.startswith(("/", "$")):  # The value of a variable is unknown here.
        found.append(f"{where}: the path is {probe.path!r}; it must begin with /")
    if isinstance(probe.post_data, str):
        try:
            probe = dataclasses.replace(probe, post_data=json.loads(probe.post_data))
        except ValueError as error:
            found.append(f"{where}: post_data is not JSON: {error}")
    for name in ("timeout_seconds", "endpoint_probe_interval_seconds"):
        if getattr(probe, name) == 0:
            found.append(f"{where}: {name} must be more than 0")
    return probe


def _wrong_policy(section: ServiceSection, ours: SlipwaySection) -> Iterator[str]:
    """Yield the refusals about the number of replicas and the spend limit."""
    policy = section.policy
    target = policy.target_qps_per_replica
    if section.replicas is not None and section.replica_policy is not None:
        yield "service: `replicas` and `replica_policy` exclude each other"
    if policy.most < policy.min_replicas:
        yield (
            f"service: min_replicas ({policy.min_replicas}) must be at least 0 and at most max_replicas ({policy.most})"
        )
    if target is not None and policy.max_replicas is None:
        yield "service: target_qps_per_replica needs max_replicas"
    targets = target if isinstance(target, dict) else {} if target is None else {"A1": target}
    if any(not _GPU.fullmatch(gpu) or qps <= 0 for gpu, qps in targets.items()) or target == {}:
        yield f"service: target_qps_per_replica is {target}; it must be more than 0, or a mapping of GPU to more than 0"
    if ours.target_queue_per_replica == 0:
        yield "slipway.target_queue_per_replica must be more than 0"
    if target is None and ours.target_queue_per_replica is None and policy.most > policy.min_replicas:
        yield f"service: {policy.min_replicas} to {policy.most} replicas, but target_qps_per_replica is missing"
    if ours.spend_limit is not None:
        try:
            limit_of(ours.spend_limit)
        except ValueError as error:
            yield f"slipway.spend_limit: {error}"
    if not policy.most:
        yield "service: max_replicas must be at least 1, got 0"
    for name, known in (("load_balancing_policy", POLICIES), ("spot_placer", PLACERS)):
        value = getattr(section, name, None) or getattr(policy, name, None)
        if value is not None and value not in known:
            yield f"service: {name} is {value!r}; {_near(value, known)}"


def _port(section: ServiceSection, resources: ReplicaResources, found: list[str]) -> int:
    """Return the engine's port: `service.ports`, else the only open port of the resources, else 8000."""
    said = resources.ports
    opened = [str(one) for one in (said if isinstance(said, list) else [] if said is None else [said])]
    port = section.ports
    if port is None:
        if len(opened) > 1 or any(not (one.isascii() and one.isdecimal()) for one in opened):
            found.append(f"service.ports must name the port of the engine; resources.ports lists {', '.join(opened)}")
            return USUAL_PORT
        port = int(opened[0]) if opened else USUAL_PORT
    if not 0 < port < 65536:
        found.append(f"{'resources' if section.ports is None else 'service'}.ports: {port} is not a port")
    return port


def _envs(said: Mapping[str, Scalar], found: list[str]) -> dict[str, str]:
    found += [f"envs: {name!r} is not the name of a variable" for name in said if not _ENV.fullmatch(name)]
    empty = [name for name, value in said.items() if value is None and not is_secret(name)]
    if empty:
        found.append(f"envs: {', '.join(empty)} must have a value; write one, or give -e {empty[0]}=VALUE")
    given = {name: value for name, value in said.items() if value is not None}
    return {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in given.items()}


def is_hidden(name: str, value: str) -> bool:
    """Return whether the name and the value of a variable are those of a secret, unlike EOS_TOKEN or SSL_KEYFILE."""
    said = name.upper().replace("TOKENIZER", "")
    if not value or not is_secret(said) or _PLACE.search(said):
        return False
    if _PASSWORD.search(said) or _RANDOM.search(value):  # A password has any length, and any letters.
        return True
    return len(value) >= SHORTEST_KEY and not _WORDS.search(value)


_NOT_STORED = "the journal stores this file; write `{}:` without the value, and set the variable in .env"


def _values_of_secrets(envs: Mapping[str, str]) -> Iterator[str]:
    """Yield a refusal for each value of a secret in `envs`: the journal stores the file of a service."""
    for name, value in envs.items():
        if is_hidden(name, value):
            yield f"envs: {name}: {_NOT_STORED.format(name)}"


def _wrong_secrets(said: Mapping[str, Scalar] | Sequence[str]) -> Iterator[str]:
    """Yield a refusal for each wrong name, and each value of a secret: the journal stores the file of a service."""
    for name in said:
        if not _ENV.fullmatch(name):
            yield f"secrets: {name!r} is not the name of a variable"
        elif isinstance(said, Mapping) and said[name] is not None:
            yield f"secrets: {name}: {_NOT_STORED.format(name)}"


def _in_words(place: partial_records.Place) -> str:
    """Return a place of the file, such as `resources.any_of 1.cpus`."""
    words = "".join(f" {one + 1}" if isinstance(one, int) else f".{one}" for one in place)
    return words.removeprefix(".") or "the file"


def _explained(error: strict_records.RecordMismatch) -> str:
    """Return the refusal of an unknown key with the place in the file and the nearest known key."""
    place = "".join(f"{one}: " for one in error.place)
    if error.key in INSTEAD:
        return f"{place}{error.key}: {INSTEAD[error.key]}"
    meant = MEANT.get(error.key)
    hint = f"did you mean {meant}?" if meant in error.known else _near(error.key, error.known)
    return f"{place}{error}; {hint}"


def _near(word: str, known: Sequence[str]) -> str:
    near = difflib.get_close_matches(word, known, 1)
    return f"did you mean {near[0]}?" if near else f"known: {', '.join(known)}"
