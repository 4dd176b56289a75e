"""Conversion of a job into a SkyPilot task, and SkyPilot's missing features on each cloud.

    machine request or keys of a job file, job, code folder -> task YAML as a mapping

The command of the task is our guard, so limits, steps, marks and logs work as on every pod;
`packs.skypilot.agent.managed` derives the job of each node on the node. SkyPilot restarts a task after a preemption or
on exit code `RESUME_ME`, and for no other reason: our agent decides about failed steps.
"""

import copy
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from infra.agent.execution.steps import RESUME_ME
from infra.agent.job import Job
from infra.errors import UsageError
from infra.market import gpus
from infra.providers.by_name import known_providers
from infra.records import Request
from packs.skypilot.agent.managed import SUBMITTED_AT, WORDS

CLOUDS = (
    "aws azure gcp ibm lambda scp oci runpod vast vsphere cudo fluidstack paperspace primeintellect do nebius ssh "
    "slurm hyperbolic seeweb shadeform yotta mithril verda kubernetes k8s"
).split()
OWN = ("ssh", "slurm", "kubernetes", "k8s")  # the user's own clusters, without a price in SkyPilot
ENGINE_KEYS = (
    *("resources", "config", "volumes", "event_callback", "managed_secrets", "api_server_access", "inputs", "outputs"),
    "file_mounts",
)
GB = 10**9
CODE = "code"
RUN = f'cd "$HOME/sky_workdir" && PYTHONPATH={CODE} exec python3 {WORDS}'

# Features that SkyPilot 0.14 lacks on each cloud, by SkyPilot's names; a nightly test compares this table with
# SkyPilot.
MULTI_NODE, SPOT, MOUNTS = "multi-node", "spot_instance", "storage_mounting"
IMAGE, DISK_TIER, NETWORK_TIER, PORTS = "image_id", "custom_disk_tier", "custom_network_tier", "open_ports"
LACKING = {
    "runpod": (MULTI_NODE, DISK_TIER, NETWORK_TIER, MOUNTS),
    "shadeform": (MULTI_NODE, SPOT, DISK_TIER, NETWORK_TIER, MOUNTS, IMAGE),
    "lambda": (SPOT, IMAGE, DISK_TIER, NETWORK_TIER),
    "vast": (MULTI_NODE, DISK_TIER, NETWORK_TIER, MOUNTS),
    "slurm": (SPOT, PORTS, MOUNTS),
    "ssh": (SPOT, DISK_TIER, NETWORK_TIER),
    "kubernetes": (DISK_TIER,),  # some clusters have spot nodes and fast networks
    "hyperbolic": (MULTI_NODE, DISK_TIER, MOUNTS, SPOT, PORTS, IMAGE, NETWORK_TIER),
    "seeweb": (MULTI_NODE, DISK_TIER, MOUNTS, SPOT, IMAGE, NETWORK_TIER),
    "verda": (MULTI_NODE, DISK_TIER, NETWORK_TIER, PORTS, MOUNTS),
    "yotta": (MULTI_NODE, SPOT, DISK_TIER, NETWORK_TIER, MOUNTS),
    "primeintellect": (MULTI_NODE, DISK_TIER, NETWORK_TIER, IMAGE),
    "cudo": (DISK_TIER, NETWORK_TIER, IMAGE, SPOT),
    "fluidstack": (DISK_TIER, NETWORK_TIER, IMAGE, SPOT),
    "paperspace": (DISK_TIER, NETWORK_TIER, IMAGE, SPOT),
    "do": (DISK_TIER, NETWORK_TIER, SPOT),
    "scp": (DISK_TIER, NETWORK_TIER, IMAGE, SPOT),
    "mithril": (DISK_TIER, NETWORK_TIER, IMAGE, PORTS),
    "vsphere": (MULTI_NODE, DISK_TIER, NETWORK_TIER, IMAGE, SPOT, PORTS),
}
IN_WORDS = {
    MULTI_NODE: ("num_nodes", "several nodes", "set num_nodes: 1, or choose another cloud"),
    SPOT: ("use_spot", "spot machines", "leave use_spot out, or choose another cloud"),
    MOUNTS: ("file_mounts", "buckets as folders", "write mode: MOUNT_CACHED; Slipway copies these files itself"),
    IMAGE: ("image_id", "images of your own", "install missing packages in `setup`"),
    DISK_TIER: ("disk_tier", "the choice of a disk's speed", "leave it out"),
    NETWORK_TIER: ("network_tier", "the choice of a network", "leave it out"),
    PORTS: ("ports", "open ports", "leave them out"),
}


def resources_of(request: Request) -> dict[str, Any]:
    """Return SkyPilot's `resources` for the requested machine."""
    found: dict[str, Any] = {}
    infra = "/".join(filter(None, (request.cloud.lower() or ("*" if request.region else ""), request.region)))
    if infra:
        found["infra"] = infra
    if request.gpu:
        pairs = gpus.read_set(request.gpu, request.num_gpus)
        kinds = {kind: number or 1 for kind, number in pairs}
        found["accelerators"] = kinds if len(kinds) > 1 else ":".join(map(str, next(iter(kinds.items()))))
    said = {
        "use_spot": request.spot or None,
        "instance_type": request.instance_type or None,
        "cpus": f"{request.cpus}+" if request.cpus else None,
        "memory": f"{-(-request.memory_bytes // GB)}+" if request.memory_bytes else None,
        "disk_size": -(-request.disk_bytes // GB) if request.disk_bytes else None,
        "network_tier": request.network or None,
        "max_hourly_cost": request.max_micro_usd_per_hour / 1e6 or None,
    }
    return {**found, **{key: value for key, value in said.items() if value is not None}}


def overlaid(said: Mapping[str, Any], typed: Mapping[str, Any], request: Request) -> tuple[dict[str, Any], list[str]]:
    """Return the `resources` of a job file, overridden by the typed options in every alternative, and notes.

    typed: the values of a `MachineSpec`, by name. Each note names a key dropped from the job file, because the typed
    cloud lacks the feature.
    """
    asked, cloud = resources_of(request), typed["cloud"]
    keys = {
        "use_spot": typed["use_spot"],
        "instance_type": typed["instance_type"],
        "cpus": typed["cpus"],
        "memory": typed["memory"],
        "disk_size": typed["disk_size"],
        "max_hourly_cost": typed["max_price"],
        "infra": cloud or typed["region"],
        "accelerators": typed["gpu"],
    }
    found = copy.deepcopy(dict(said))
    aliases = {"accelerators": "gpus", "disk_size": "ephemeral_storage"}
    for key in [key for key, value in keys.items() if value]:
        for one in (found, *(found.get("any_of") or ()), *(found.get("ordered") or ())):
            one.pop(key, None)
            one.pop(aliases.get(key, key), None)
            if key == "infra":
                for old in ("cloud", "region", "zone"):
                    one.pop(old, None)
        if key in asked:
            found[key] = asked[key]
    notes = []
    for feature in (SPOT, DISK_TIER, NETWORK_TIER, PORTS) if cloud else ():
        key, what, _ = IN_WORDS[feature]
        ways = (found, *(found.get("any_of") or ()), *(found.get("ordered") or ()))
        if feature in LACKING.get(cloud.lower(), ()) and not keys.get(key) and any(key in one for one in ways):
            notes.append(f"{key} has no effect: SkyPilot has no {what} on {cloud}")
            for one in ways:
                one.pop(key, None)
    return found, notes


def task_of(
    job: Job, *, nodes: int, keys: Mapping[str, Any], bundle: Path, secrets: Mapping[str, str], now: float
) -> dict[str, Any]:
    """Return the task of a managed job. `keys`: SkyPilot's keys of the job file, such as `resources`."""
    resources = copy.deepcopy(dict(keys.get("resources") or {}))
    ways = [one for one in (*(resources.get("any_of") or ()), *(resources.get("ordered") or ()))]
    strategy = next(filter(None, map(_strategy, (resources, *ways))), None)
    for one in (resources, *ways):
        one.pop("job_recovery", None)
    recovery: dict[str, Any] = {"max_restarts_on_errors": 0, "recover_on_exit_codes": [RESUME_ME]}
    resources["job_recovery"] = {"strategy": strategy, **recovery} if strategy else recovery
    found: dict[str, Any] = {
        "name": job.token,
        "num_nodes": nodes,
        "workdir": str(bundle),
        "resources": resources,
        "envs": {**(keys.get("envs") or {}), SUBMITTED_AT: f"{now:.0f}"},
        "run": RUN,
    }
    chosen = {name: secrets[name] for name in job.secrets if secrets.get(name)}
    if chosen:
        found["secrets"] = chosen
    return {**found, **{key: keys[key] for key in ENGINE_KEYS[1:] if keys.get(key)}}


def check(keys: Mapping[str, Any], nodes: int, mounts: bool, where: str) -> None:
    """Raise UsageError if each alternative asks for a feature missing on its cloud, or for a vendor of Slipway alone.

    SkyPilot itself judges a cloud unknown here, before anything is rented.
    """
    resources = keys.get("resources") or {}
    problems: list[str] = []
    for cloud, one in _ways(resources):
        if cloud in known_providers() and cloud not in CLOUDS:
            problems.append(f"{where}: SkyPilot has no back end for {cloud}; known: {', '.join(CLOUDS)}")
            continue
        wanted = {
            MULTI_NODE: nodes > 1,
            MOUNTS: mounts,
            SPOT: one.get("use_spot"),
            IMAGE: one.get("image_id"),
            DISK_TIER: str(one.get("disk_tier") or "best").lower() != "best",
            NETWORK_TIER: str(one.get("network_tier")).lower() == "best",
            PORTS: one.get("ports"),
        }
        for feature in LACKING.get("kubernetes" if cloud == "k8s" else cloud, ()):
            if wanted[feature]:
                key, what, instead = IN_WORDS[feature]
                problems.append(f"{where}: {key}: SkyPilot has no {what} on {cloud}; {instead}")
                break
        else:
            return
    raise UsageError(problems[0])


def _ways(resources: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the cloud ("" for none) and the merged resources of each alternative."""
    several = resources.get("any_of") or resources.get("ordered") or [{}]
    for one in several:
        way = {**resources, **one}
        cloud = str(way.get("infra") or way.get("cloud") or "").split("/")[0].lower()
        yield ("" if cloud == "*" else cloud), way


def _strategy(resources: Mapping[str, Any]) -> str | None:
    said = resources.get("job_recovery")
    return said.get("strategy") if isinstance(said, Mapping) else said
