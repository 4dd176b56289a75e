"""Reconciliation of a pod file with the journal: create missing pods, keep matching pods and end surplus pods. Pure.

    file -> PodEntry records; journal -> rows; decide -> actions, in the order of execution

The pods of one file are a set, and each row stores the name of the set. The name and a hash of the entry identify a
pod: after a change of the entry, the pod is ended and created again. No other state exists, so after a crash the next
process decides from the rows alone.
"""

import difflib
import hashlib
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING, Field, asdict, dataclass, field, fields
from types import MappingProxyType
from typing import Any, get_type_hints

from infra.errors import UsageError
from infra.flags import flags_of
from infra.ledger.op import TERMINATING, UNKNOWN, Op
from infra.names import check_name
from infra.runs.keepers import recovery
from infra.runs.keepers.recovery import RecoveryAction
from infra.runs.observation import GONE, Observation
from infra.selection.machine_spec import MachineSpec, PlaceSpec


def key(default: Any, about: str) -> Any:
    return field(default=default, metadata={"about": about})


def flag_field(record: type, flag: str, default: Any = None) -> Any:
    """Return a field with the description of a flag of `record`; None = the flag is not given."""
    return key(default, next(one.about for one in flags_of(record) if one.name == flag))


@dataclass(frozen=True, kw_only=True)
class PodEntry:
    """One pod of a pod file; None = no restriction."""

    name: str = field(metadata={"about": "name of the pod; unique among live pods"})
    gpu_type: str | None = key("A100", "kind of GPU, or any of a set: A100:1,H100:1; own machines: any")
    gpu_count: int = key(8, "GPUs of the pod; own machines: 0 means any number")
    country: str | None = flag_field(MachineSpec, "country")
    volume_id: str | None = flag_field(MachineSpec, "volume")
    ttl_hours: float | None = key(None, "end the pod after this many hours")
    min_upload_mbps: int | None = flag_field(MachineSpec, "min_upload_mbps")
    min_download_mbps: int | None = flag_field(MachineSpec, "min_download_mbps")
    idle_stop_minutes: float | None = key(None, "end the pod when no GPU has worked for this many minutes")
    spend_limit: str | None = key(
        None, "rented: end the pod before the cost exceeds this many US dollars (150 without spend_limit and ttl_hours)"
    )
    provider: str | None = key(None, "where: local, ssh, runpod, lium, shadeform, market; null: as in the settings")
    pool: str | None = flag_field(PlaceSpec, "pool")
    host: str | None = flag_field(PlaceSpec, "host")
    cpus: str | None = flag_field(MachineSpec, "cpus")
    memory: str | None = flag_field(MachineSpec, "memory")
    disk_size: str | None = flag_field(MachineSpec, "disk_size")
    city: str | None = flag_field(MachineSpec, "city")
    cloud: str | None = flag_field(MachineSpec, "cloud")
    region: str | None = flag_field(MachineSpec, "region")
    instance_type: str | None = flag_field(MachineSpec, "instance_type")
    use_spot: bool = flag_field(MachineSpec, "use_spot", False)
    max_price: str | None = flag_field(MachineSpec, "max_price")
    recover: bool = key(
        False, "rented: replace the pod when the provider takes the pod away; the files on the pod are lost"
    )

    @property
    def digest(self) -> str:
        """Return a hash of all keys but `name` and `recover`: pods with equal digests are interchangeable."""
        said = {name: value for name, value in asdict(self).items() if name not in ("name", "recover")}
        return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()


ALIASES = {"gpu": "gpu_type", "num_gpus": "gpu_count"}  # Flag names of `launch`.
WORDS = {str: "text", int: "a whole number", float: "a number", bool: "true or false"}


def schema() -> list[tuple[str, Any, str]]:
    """Return (key, default, description) of every key; the default "" marks a required key."""
    return [
        (one.name, "" if one.default is MISSING else one.default, one.metadata["about"]) for one in fields(PodEntry)
    ]


def read_set(where: str, stem: str, document: Any, provider: str, own: Iterable[str]) -> tuple[str, list[PodEntry]]:
    """Return the name of the set and the pods of a parsed pod file. Raises UsageError with the location in the file.

    `stem` names the set if the file has no `set` key. `provider` is the default provider of a pod. `own` holds the
    providers with own machines, where `gpu_type` and `gpu_count` default to any.
    """
    _check_keys(where, document, ("set", "pods", "spend_limit"))
    name = document.get("set", stem)
    if not isinstance(name, str):
        raise UsageError(f"{where}: set is {name!r}; expected text")
    entries = document.get("pods")
    if not isinstance(entries, list):  # A missing list is an error; the user must write an empty list explicitly.
        raise UsageError(f"{where}: `pods` must be a list; [] ends all pods of the set")
    specs: dict[str, PodEntry] = {}
    for number, entry in enumerate(entries, 1):
        spec = read_spec(f"{where}: pod {number}", entry, provider, own)
        if spec.name in specs:
            raise UsageError(f"{where}: two pods have the name {spec.name}")
        specs[spec.name] = spec
    return check_name(name), list(specs.values())


def limit_of(where: str, document: Mapping[str, Any]) -> str:
    """Return the shared spend limit of all rented pods of the set as written in the file; "" = no limit."""
    return str(
        _value(f"{where}: spend_limit", PodEntry.__dataclass_fields__["spend_limit"], document.get("spend_limit")) or ""
    )


def read_spec(where: str, entry: Any, provider: str, own: Iterable[str]) -> PodEntry:
    """Return one pod of a file. Raises UsageError."""
    known = {one.name: one for one in fields(PodEntry)}
    _check_keys(where, entry, (*known, *ALIASES))
    said: dict[str, Any] = {}
    for word, value in entry.items():
        name = ALIASES.get(word, word)
        if name in said:
            raise UsageError(
                f"{where}: {word} and {next(one for one in entry if ALIASES.get(one, one) == name)} "
                "are the same key; give only one"
            )
        said[name] = _value(f"{where}: {word}", known[name], value)
    if not said.get("name"):
        raise UsageError(f"{where}: the pod needs a name, as text")
    said["provider"] = said.get("provider") or provider
    if said["provider"] in own or said.get("instance_type"):  # An instance type determines the GPUs.
        said = {"gpu_type": None, "gpu_count": 0, **said}
    if said.get("ttl_hours") == 0:
        raise UsageError(f"{where}: ttl_hours is 0; expected a number above 0")
    if said.get("idle_stop_minutes") == 0:
        raise UsageError(f"{where}: idle_stop_minutes is 0; expected a number above 0")
    if said.get("recover") and said.get("idle_stop_minutes"):
        raise UsageError(
            f"{where}: recover would rent a new pod after idle_stop_minutes has ended the pod; give only one of the two"
        )
    check_name(said["name"])
    return PodEntry(**said)


def set_lease(set_name: str) -> str:
    """Return the name of the lease for changes to the pods of a set."""
    return f"apply:{set_name}"


def _check_keys(where: str, body: Any, known: Sequence[str]) -> None:
    if not isinstance(body, dict):
        raise UsageError(f"{where}: expected lines of the form `key: value`")
    for word in body:
        if word not in known:
            near = difflib.get_close_matches(str(word), known, 1)
            hint = f"did you mean {near[0]}?" if near else f"known: {', '.join(known)}"
            raise UsageError(f"{where}: unknown key {word!r}; {hint}")


def _value(where: str, one: Field[Any], value: Any) -> Any:
    """Return a value converted to the type of the field. Raises UsageError for a value of the wrong type.

    Convert a number to text for a text field: `cpus: 16`, `spend_limit: 12.50`.
    """
    hint = get_type_hints(PodEntry)[one.name]
    kinds = getattr(hint, "__args__", (hint,))
    if value is None and type(None) in kinds:
        return None
    if type(value) in kinds:
        if type(value) not in (int, float) or 0 <= value < math.inf:
            return value
    elif float in kinds and type(value) is int and value >= 0:
        return float(value)
    elif str in kinds and type(value) in (int, float):
        return str(value)
    floor = ", from 0" if kinds[0] in (int, float) else ""
    raise UsageError(f"{where} is {value!r}; expected {WORDS[kinds[0]]}{floor}")


@dataclass(frozen=True)
class PodAction:
    """One action on a pod: `action` is keep, end or create; `token` identifies the row to keep or end."""

    action: str
    name: str
    token: str = ""
    why: str = ""


def decide(
    set_name: str,
    wanted: Mapping[str, str],
    rows: Iterable[Op],
    sights: Mapping[str, Observation] = MappingProxyType({}),
) -> list[PodAction]:
    """Return the actions that turn the live pods of the set into `wanted`, in the order of execution.

    `wanted` maps names to digests. `rows` are journal rows, including ended rows. `sights` maps tokens to observations.
    Ends come first, because ends free names, machines and money. A pod still being created is kept. Raises UsageError
    if a name belongs to a pod outside of the set.
    """
    live = {op.run: op for op in rows if op.is_live and op.is_head}
    ends, keeps, missing = [], [], []
    for name, op in live.items():
        if op.pod_set != set_name:
            if name in wanted:
                raise UsageError(
                    f"{name} already exists outside of the set {set_name}; choose a different name, or: inv down {name}"
                )
        elif name not in wanted:
            ends.append(PodAction("end", name, op.token, "no longer in the file"))
        elif op.state in (TERMINATING, UNKNOWN):
            ends.append(PodAction("end", name, op.token, f"the pod is {op.state}"))
        elif op.spec_hash != wanted[name]:
            ends.append(PodAction("end", name, op.token, "changed in the file"))
        elif (
            op.token in sights and recovery.decide([sights[op.token]], recovery.POD).action is RecoveryAction.BEGIN_ANEW
        ):
            ends.append(PodAction("end", name, op.token, sights[op.token].why or GONE))
        else:
            keeps.append(PodAction("keep", name, op.token))
    kept = {step.name for step in keeps}
    ended = {step.name: step.why for step in ends}
    for name in wanted:
        if name not in kept:
            missing.append(PodAction("create", name, why=ended.get(name, "")))
    return [*ends, *keeps, *missing]
