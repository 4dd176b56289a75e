"""Schema of a job file: the keys of a SkyPilot 0.14 task. `job_file` parses the file with these records."""

import types
import typing
from collections.abc import Iterator
from dataclasses import dataclass, field, fields, replace
from typing import Any

Scalar = str | int | float | bool | None
Number = str | int | float


@dataclass(frozen=True, kw_only=True)
class Recovery:
    strategy: str | None = None
    max_restarts_on_errors: int = 0
    recover_on_exit_codes: int | list[int] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class Resources:
    """The machine of a task; `16+` means at least 16."""

    infra: str | None = None
    cloud: str | None = None
    region: str | None = None
    zone: str | None = None
    instance_type: str | None = None
    accelerators: str | dict[str, float | None] | list[str] | None = None
    gpus: str | dict[str, float | None] | list[str] | None = None
    """An alias of `accelerators`."""
    accelerator_args: dict[str, Any] | None = None
    cpus: Number | None = None
    memory: Number | None = None
    disk_size: int | str | None = None
    ephemeral_storage: int | str | None = None
    """The disk of a container; an alias of `disk_size`."""
    disk_tier: str | None = None
    local_disk: str | None = None
    network_tier: str | None = None
    use_spot: bool | None = None
    job_recovery: str | Recovery | None = None
    ports: int | str | list[int | str] | None = None
    image_id: str | dict[str, str] | None = None
    labels: dict[str, str] | None = None
    max_hourly_cost: float | None = None
    autostop: bool | int | str | dict[str, Any] | None = None
    priority: int | None = None
    priority_class: str | None = None
    volumes: list[dict[str, Any]] | None = None
    any_of: list["Resources"] | None = None
    ordered: list["Resources"] | None = None


@dataclass(frozen=True, kw_only=True)
class Storage:
    """A folder or bucket that is mounted at a path of the task."""

    name: str | None = None
    source: str | list[str] | None = None
    store: str | None = None
    mode: str = "MOUNT"
    persistent: bool | None = None
    type: str | None = None
    config: dict[str, Any] | None = None


@dataclass(frozen=True, kw_only=True)
class SlipwayTaskKeys:
    """Slipway's extensions to SkyPilot's keys."""

    environment: str = ""
    """`train` runs the task with the packages of Slipway's own trainings, including PyTorch."""
    train: dict[str, Any] | None = None
    """Flags of `inv launch` for a Slipway training, in place of `run`; `$NAME` refers to a variable in `envs`."""


@dataclass(frozen=True, kw_only=True)
class TaskFile:
    """One document of a job file, before checks of the values."""

    name: str | None = None
    workdir: str | dict[str, str] | None = None
    num_nodes: int | None = None
    resources: Resources | None = None
    envs: dict[str, Scalar] | None = None
    secrets: dict[str, Scalar] | list[str] | None = None
    file_mounts: dict[str, str | Storage] | None = None
    setup: str | None = None
    run: str | None = None
    config: dict[str, Any] | None = None
    slipway: SlipwayTaskKeys = SlipwayTaskKeys()
    # Unsupported SkyPilot keys; `REFUSED` names the alternative.
    managed_secrets: Any = None
    volumes: Any = None
    volume_mounts: Any = None
    service: Any = None
    pool: Any = None
    event_callback: Any = None
    inputs: Any = None
    outputs: Any = None
    file_mounts_mapping: Any = None
    api_server_access: Any = None


JOB_KEYS = ("run", "setup", "resources", "slipway")  # any of these keys identifies a job file
IN_SERVICE = ("readiness_probe", "replica_policy", "replicas", "load_balancing_policy", "tls")
"""Keys of the section `service`, found only in service files."""
VOLUME = (
    "remove the key, add --volume ID with the volume of a vendor, and write $SLIPWAY_VOLUME in place of the path in "
    "`setup` and `run`"
)
REFUSED = {
    "pool": "only SkyPilot has pools of workers; remove the key: FILE runs the commands of one worker as a job; for "
    "many runs, write a sweep (docs/guides/sweeps.md)",
    "managed_secrets": "Slipway has no server for secrets; remove the key, list the names under `secrets:` and set the "
    "variables in .env",
    "volumes": VOLUME,
    "volume_mounts": VOLUME,
    "event_callback": "Slipway makes no callbacks; remove the key. `inv launch` and `inv keep` exit with the state of "
    "the run, and --notify NAMES sends a notice",
    "file_mounts_mapping": "SkyPilot writes this key; remove the key",
    "api_server_access": "Slipway has no API server; remove the key",
}
REFUSED_RESOURCES = {
    "accelerator_args": "this key is for TPUs, which the vendors of Slipway do not rent; remove the key, or add "
    "--provider skypilot",
    "volumes": VOLUME,
}
OLDER = {"experimental": "remove the key, or write the keys of config_overrides under `config`"}
"""Keys of earlier versions of SkyPilot."""
ALIASES = {"gpus": "accelerators", "ephemeral_storage": "disk_size"}
OF_ENGINES = ("managed_secrets", "volumes", "event_callback", "api_server_access")
"""Keys of a task that an engine such as SkyPilot carries out; an engine carries out all keys of `resources`."""
IN_ENGINE_JOBS = {
    "service": "a launch runs the commands of a replica as a job, without an address; to serve behind one address, "
    "give a different provider: inv serve.up FILE",
    "pool": "a launch runs the commands of a worker once, as a job; only `sky jobs pool apply FILE` makes a pool",
}
"""Keys without effect in a job of an engine, as with `sky launch`."""
NO_EFFECT = {
    "service": "a launch runs the commands of a replica as a job, without an address, until a limit ends the job; "
    "reach a port with: inv forward RUN PORT; to serve behind one address: inv serve.up FILE",
    "inputs": "Slipway's providers do not count egress",
    "outputs": "Slipway's providers do not count egress",
    "config": "this key configures SkyPilot's own clouds",
}
NO_EFFECT_MOUNTS = ("store", "persistent", "type", "config")
NO_EFFECT_RESOURCES = {
    "disk_tier": "vendors do not publish the speed of disks",
    "local_disk": "vendors do not publish the kind of disks",
    "labels": "pods carry only Slipway's own mark",
    "priority": "Slipway does not queue runs",
    "priority_class": "Slipway does not queue runs",
    "autostop": "a pod of Slipway ends as soon as the job is over; --ttl and --spend-limit end the pod earlier",
    "ports": "Slipway opens no port to the internet; reach a port with: inv forward RUN PORT",
}


def alternatives(said: Resources) -> Iterator[Resources]:
    """Yield each entry of `any_of` or `ordered`, merged over the common resources."""
    several = said.any_of or said.ordered
    above = replace(said, any_of=None, ordered=None)
    if not several:
        yield above
        return
    for one in several:
        own = {each.name: value for each in fields(one) if (value := getattr(one, each.name)) is not None}
        yield replace(above, **own)


def inner(hint: Any) -> type | None:
    """Return the dataclass inside a type hint, or None."""
    parts = [hint]
    while parts:
        one = parts.pop()
        if isinstance(one, type) and hasattr(one, "__dataclass_fields__"):
            return one
        if typing.get_origin(one) in (typing.Union, types.UnionType, list, dict):
            parts += typing.get_args(one)
    return None


def is_mapping_of_records(hint: Any) -> bool:
    """Return True for a mapping type with arbitrary keys, such as `dict[str, Storage]`."""
    return any(typing.get_origin(one) is dict for one in (hint, *typing.get_args(hint)))
