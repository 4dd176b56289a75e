"""Translation of a task's `resources` into machine requests with the same meaning as the flags of a launch.

Flags override the file. The result has one `MachineWish` per acceptable alternative, and notes about keys without
effect on the selected provider.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from infra.errors import UsageError
from infra.market import accelerators
from infra.providers import container_images
from infra.providers.by_name import known_providers
from infra.selection.machine_spec import NO_GPU, MachineSpec
from infra.settings import LOCAL
from infra.units import amount
from packs.jobs.control import mounts
from packs.jobs.control.job_file import JobTask, near
from packs.jobs.control.refusals import Refusals
from packs.jobs.control.schema import (
    IN_ENGINE_JOBS,
    NO_EFFECT,
    NO_EFFECT_RESOURCES,
    Recovery,
    Resources,
    alternatives,
)
from store import packs

SKYPILOTS = (
    "aws azure gcp ibm lambda scp oci vast vsphere cudo fluidstack paperspace primeintellect do nebius "
    "hyperbolic seeweb yotta mithril verda kubernetes k8s"
).split()
ANY = "*"
RENTED_ONLY = ("use_spot", "disk_size", "max_hourly_cost", "network_tier", "instance_type")


@dataclass(frozen=True, kw_only=True)
class MachineWish:
    """An acceptable alternative for the machine of a task."""

    provider: str
    """The provider; "" accepts any provider."""
    machine: MachineSpec
    pool: str = ""


@dataclass(frozen=True, kw_only=True)
class MachineWishes:
    """All acceptable alternatives for the machine of a task, with notes for the user."""

    wishes: tuple[MachineWish, ...]
    is_ordered: bool
    """True to take the first available alternative; False to take the cheapest."""
    notes: tuple[str, ...] = ()


def accepted_providers() -> tuple[str, ...]:
    """Return the provider names accepted by `infra`. Engines are excluded: only --provider selects an engine."""
    return tuple(name for name in known_providers() if name not in packs.engines())


def provider_of(task: JobTask, where: str) -> str:
    """Return the single provider in the file for the task, or "" for none or several."""
    found = {_place(one, where, task)[0] for one in alternatives(task.resources)}
    return found.pop() if len(found) == 1 else ""


def wishes(task: JobTask, typed: MachineSpec, provider: str, is_rented: bool, where: str) -> MachineWishes:
    """Return the alternatives of a task.

    `typed` holds the machine flags and `provider` the --provider flag, "" without one. Raise UsageError for invalid
    resources, or if no alternative is left.
    """
    notes: list[str] = []
    found: list[MachineWish] = []
    is_engine = provider in packs.engines()
    for one in alternatives(task.resources):
        cloud, region, zone, pool = _place(one, where, task)
        if is_engine:
            cloud, zone, pool, one = "", "", "", _known_part(one, where, task)
        if cloud and cloud not in accepted_providers() and not provider:
            notes.append(f"infra: Slipway does not rent at {cloud}, a cloud of SkyPilot; the entry is left out")
            continue
        if cloud and provider and cloud != provider:
            keys = [key for key in ("infra", "cloud", "region", "zone") if getattr(one, key)]
            place = "/".join(filter(None, (cloud, region, zone, pool)))
            notes.append(f"{', '.join(keys)}: {place} has no effect, because --provider {provider} was given")
            cloud, region, zone, pool = "", "", "", ""
        if zone:
            notes.append(f"zone {zone} has no effect: no vendor here has zones")
        for gpu, num_gpus in _accelerators(one, where, task):
            asked = _flags(one, gpu, num_gpus, region, where, task)
            if provider in container_images.CONTAINERS:
                asked["image"] = ""  # The steps run in a container on the machine.
            machine = replace(typed, **{name: value for name, value in asked.items() if not getattr(typed, name)})
            if typed.gpu:
                machine = replace(machine, gpu=typed.gpu, num_gpus=typed.num_gpus)
            if machine.gpu.lower() == NO_GPU:
                machine = replace(machine, gpu="", num_gpus=0)
            wish = MachineWish(provider=cloud, machine=machine, pool=pool)
            if wish not in found:
                found.append(wish)
    if not found:
        raise UsageError(
            f"{where}: line {task.document.line('resources')}: {'; '.join(notes)}. Give a provider: "
            "--provider skypilot, which rents at these clouds, --provider runpod, or write `infra: "
            f"runpod` (known: {', '.join(accepted_providers())})"
        )
    notes += _without_effect_on_engine(task) if is_engine else _without_effect(task, is_rented, provider)
    is_ordered = task.resources.ordered is not None or isinstance(task.resources.accelerators, list)
    return MachineWishes(wishes=tuple(found), is_ordered=is_ordered, notes=tuple(dict.fromkeys(notes)))


def collect_refusals(task: JobTask, where: str, refused: Refusals) -> None:
    """Collect every key of the resources that no provider can carry out, each by itself."""
    for one in alternatives(task.resources):
        for key in ("infra", "accelerators", "cpus", "memory", "disk_size", "network_tier"):
            if getattr(one, key) is not None:
                more = {"cpus": one.cpus} if key == "memory" and str(one.memory).endswith("x") else {}
                alone = Resources(**{**more, key: getattr(one, key)})
                for check in (_place, _accelerators, partial(_flags, gpu="", num_gpus=0, region="")):
                    with refused.collecting():
                        check(alone, where=where, task=task)
        with refused.collecting():
            _place(one, where, task)


def _known_part(said: Resources, where: str, task: JobTask) -> Resources:
    """Return the resources without values that only the engine understands, such as TPUs and parts of a GPU.

    The engine gets the keys of the file as written; our request serves estimates.
    """
    for key in ("accelerators", "cpus", "memory", "disk_size"):
        alone = Resources(**{"cpus": said.cpus, key: getattr(said, key)})
        try:
            _accelerators(alone, where, task)
            _flags(alone, "", 0, "", where, task)
        except UsageError:
            said = replace(said, **{key: None})
    return said


def recovery_of(task: JobTask) -> tuple[int, tuple[int, ...]]:
    """Return the maximum number of restarts after errors, and the exit codes for unconditional restarts."""
    said = task.resources.job_recovery
    if not isinstance(said, Recovery):
        return 0, ()
    codes = said.recover_on_exit_codes
    return said.max_restarts_on_errors, tuple(codes) if isinstance(codes, list) else (codes,)


def _place(said: Resources, where: str, task: JobTask) -> tuple[str, str, str, str]:
    """Return provider, region, zone and pool, each "" for any. Raise UsageError for an unknown cloud."""
    line = f"{where}: line {task.document.line('resources', 'infra')}"
    if said.infra and (said.cloud or said.region or said.zone):
        raise UsageError(f"{line}: infra and cloud, region or zone exclude each other; keep infra: CLOUD/REGION/ZONE")
    parts = (said.infra or "").strip("/").split("/")
    cloud, region, zone = [*parts, "", "", ""][:3] if said.infra else (said.cloud, said.region, said.zone)
    cloud, region, zone = ("" if one in (None, ANY) else str(one) for one in (cloud, region, zone))
    cloud = cloud.lower()
    if cloud and cloud not in (*accepted_providers(), *SKYPILOTS):
        why = packs.missing_pack_message("providers", cloud)
        raise UsageError(
            f"{line}: infra: {why or f'unknown cloud {cloud!r}; {near(cloud, (*accepted_providers(), *SKYPILOTS))}'}"
        )
    if cloud in packs.providers():
        return cloud, "", "", "/".join(filter(None, (region, zone)))
    return (cloud, "", "", region) if cloud == "ssh" else (cloud, region, zone, "")


def _accelerators(said: Resources, where: str, task: JobTask) -> list[tuple[str, int]]:
    """Return (`--gpu`, `--num-gpus`) pairs for the accelerators.

    A mapping yields one set of GPU kinds per GPU count; a list keeps each entry and the order.
    """
    asked = said.accelerators
    if asked is None:
        return [("", 0)]
    line = f"{where}: line {task.document.line('resources', 'accelerators')}"
    for word in asked if isinstance(asked, list) else [asked] if isinstance(asked, str) else []:
        several = [one.partition(":") for one in word.split()]
        if len(several) > 1 and all(number.isdecimal() for _, _, number in several):
            meant = ", ".join(f"{kind}: {number}" for kind, _, number in several)
            raise UsageError(
                f"{line}: accelerators: YAML reads these lines as one text, because the colons have no space "
                f"after them; write accelerators: {{{meant}}}"
            )
    try:
        pairs = accelerators.read(asked)
    except UsageError as error:
        raise UsageError(f"{line}: {error}") from None
    if not pairs:
        raise UsageError(f"{line}: accelerators: the list is empty; remove the line for a machine without a GPU")
    for kind, _ in pairs:
        if kind.lower().startswith("tpu"):
            raise UsageError(
                f"{line}: accelerators: {kind}: the vendors of Slipway do not rent TPUs; add --provider skypilot"
            )
    if isinstance(asked, list):
        return pairs
    by_number: dict[int, list[str]] = {}
    for kind, number in pairs:
        by_number.setdefault(number, []).append(kind)
    return [(",".join(kinds), number) for number, kinds in by_number.items()]


def _flags(said: Resources, gpu: str, num_gpus: int, region: str, where: str, task: JobTask) -> dict[str, Any]:
    """Return the requested values by `MachineSpec` field name."""
    line = task.document.line
    found: dict[str, Any] = {"gpu": gpu, "num_gpus": num_gpus, "region": region}
    cpus = 0
    if said.cpus is not None:
        cpus = amount(said.cpus, f"{where}: line {line('resources', 'cpus')}: cpus")
        found["cpus"] = str(cpus)
    if said.memory is not None:
        at = f"{where}: line {line('resources', 'memory')}: memory"
        times = re.fullmatch(r"([0-9]{1,6})x", str(said.memory))
        if times and not cpus:
            raise UsageError(f"{at}: {said.memory} is GB per CPU; give cpus too")
        found["memory"] = str(int(times[1]) * cpus if times else amount(said.memory, at))
    if said.disk_size is not None:
        found["disk_size"] = str(amount(said.disk_size, f"{where}: line {line('resources', 'disk_size')}: disk_size"))
    if said.max_hourly_cost is not None:
        found["max_price"] = f"{said.max_hourly_cost:f}"
    if said.network_tier is not None:
        if said.network_tier.lower() not in ("best", "standard"):
            raise UsageError(
                f"{where}: line {line('resources', 'network_tier')}: network_tier is {said.network_tier!r}; "
                "known: best, standard"
            )
        found["network"] = "best" if said.network_tier.lower() == "best" else ""
    found["image"] = container_images.name_of(said.image_id)
    return {**found, "use_spot": bool(said.use_spot), "instance_type": said.instance_type or ""}


def _without_effect(task: JobTask, is_rented: bool, provider: str) -> list[str]:
    """Return one note per key of the task that has no effect on the selected provider, with the reason."""
    found = [f"{key} has no effect: {why}" for key, why in NO_EFFECT.items() if getattr(task.said, key) is not None]
    several: Sequence[Resources] = list(alternatives(task.resources))

    def says(key: str) -> bool:
        return any(getattr(one, key) is not None for one in several)

    found += [f"{key} has no effect: {why}" for key, why in NO_EFFECT_RESOURCES.items() if says(key)]
    found += mounts.without_effect(task, {one.path for one in task.mounts})
    if foreign := [one.image_id for one in several if one.image_id and not container_images.name_of(one.image_id)]:
        found.append(
            f"image_id has no effect: {foreign[0]} is an image of a cloud's own machines, and not of a registry "
            "(docker:NAME)"
        )
    if any(_strategy(one) for one in several):
        found.append("job_recovery.strategy has no effect: a preempted run continues at the next best offer")
    if not is_rented:
        own = [key for key in (*RENTED_ONLY, *(("cpus", "memory") if provider == LOCAL else ())) if says(key)]
        if own:
            found.append(f"{', '.join(own)}: no effect on a machine of your own ({provider})")
    elif any(re.fullmatch(r"[0-9.]+", str(getattr(one, key) or "")) for one in several for key in ("cpus", "memory")):
        found.append("cpus and memory are lower bounds, with and without a +")
    return found


def _without_effect_on_engine(task: JobTask) -> list[str]:
    """Return one note per key of the task that has no effect in a job of an engine, with the reason."""
    idle = [(key, why) for key, why in IN_ENGINE_JOBS.items() if getattr(task.said, key) is not None]
    found = [f"{key} has no effect: {why}" for key, why in idle]
    ours = {one.path for one in task.mounts if not mounts.is_of_engine(one)}
    return found + mounts.without_effect(task, ours)


def _strategy(said: Resources) -> str | None:
    return said.job_recovery.strategy if isinstance(said.job_recovery, Recovery) else said.job_recovery
