"""Flags for the machine and the limits of a run, and their conversion into a `Request` for a machine.

This is the only declaration of these flags. A request also has the disk size that the work needs, for vendors with
rented disks billed by size. The estimates are rather too large: a full disk ends the work, and a GB costs 0.10 USD a
month at RunPod.
"""

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from infra.errors import UsageError
from infra.flags import flag
from infra.market import gpus
from infra.providers import Provider
from infra.records import Plan, Request
from infra.settings import MARKET
from infra.units import micro_usd
from store import packs

MACHINE, KIND = "Machine", "Choice of machine"
RENTED, OWN = "Rented machines", "Own machines"
LIMITS = "What ends it"
GB = 10**9
# Unpacked size of each environment's pinned packages plus the largest package file during installation: torch with CUDA
# and its libraries takes about 7 GB, vLLM with its kernels about as much again.
ENVIRONMENT_BYTES = {"train-cuda": 10 * GB, "train-cpu": 3 * GB, "serve-cuda": 18 * GB, "serve-cpu": 5 * GB}
OTHER_ENVIRONMENT_BYTES = GB  # trackers, data readers: no torch
OWN_PACKAGES_BYTES = ENVIRONMENT_BYTES["train-cuda"]  # packages of a user's own job, usually torch
BESIDE_BYTES = GB  # code, logs, conversations, questions and problems
MARGIN = 1.2  # package and text sizes are known to about 10 percent; file systems take a few percent
STEP_BYTES = 5 * GB  # rounding, to keep the price constant for small differences in data
NO_GPU = "none"  # value of --gpu and of a job file for machines without a GPU
UNITS = {"": GB, "G": GB, "GB": GB, "T": 10**12, "TB": 10**12, "Mi": 1 << 20, "Gi": 1 << 30, "Ti": 1 << 40}


@dataclass(frozen=True, kw_only=True)
class MachineSpec:
    """The requested machine, as flags; "" and 0 mean no preference."""

    gpu: str = flag(
        "",
        "kind of GPU, or any of a set: A100:1,A100-80GB:1,H100:1; none: machines without a GPU",
        group=MACHINE,
        also=("accelerators",),
    )
    num_gpus: int = flag(0, "GPUs of each pod", group=MACHINE, least=1)
    all_configs: bool = flag(False, "any number of GPUs, ignoring --num-gpus and the numbers in the set", group=KIND)
    cpus: str = flag("", "at least this many CPUs: 16 or 16+", group=KIND, unit="N")
    memory: str = flag("", "at least this much memory: 128, 128+ or 64Gi", group=KIND, unit="GB")
    disk_size: str = flag("", "at least this much disk space: 100, 100+ or 1Ti", group=KIND, unit="GB")
    country: str = flag("", "country of the machine, two letters: NL", group=KIND)
    city: str = flag("", "city of the machine", group=KIND)
    cloud: str = flag("", "cloud or tier within the vendor: hyperstack, SECURE", group=KIND)
    region: str = flag("", "region, as the vendor spells it: canada-1", group=KIND)
    instance_type: str = flag("", "instance type, as the vendor spells it: B200x8", group=KIND)
    min_upload_mbps: int = flag(
        0,
        "minimum measured upload speed, megabits per second; an unknown speed does not count",
        group=KIND,
        unit="MBPS",
    )
    min_download_mbps: int = flag(
        0,
        "minimum measured download speed, megabits per second; an unknown speed does not count",
        group=KIND,
        unit="MBPS",
    )
    use_spot: bool = flag(False, "cheaper machines that can be preempted", group=MACHINE)
    max_price: str = flag("", "maximum US dollars per hour for the whole machine", group=MACHINE, unit="USD")
    network: str = ""
    """`best` for `network_tier: best` of a job file, as in SkyPilot.

    Not a flag: no vendor publishes the interconnect between its machines, so no offer of the vendors here matches.
    """
    image: str = ""
    """Container image to boot, for `image_id: docker:IMAGE` of a job file. Not a flag."""
    machine_filter: str = flag(
        "", "only machines accepted by the filter of this extension (docs/extend.md)", group=KIND, unit="NAME"
    )
    volume: str = flag("", "id of a vendor's volume to attach; only machines that can attach it match", group=KIND)


def _of_packs(flag_name: str) -> list[str]:
    """Return the meaning of a flag for each provider of a pack, as text."""
    return [f"{name}: {one[flag_name]}" for name, one in packs.provider_traits().items() if one[flag_name]]


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class PlaceSpec:
    """The provider of a machine, and the choice among own machines."""

    provider: str = flag(
        "",
        f"where: local, ssh, runpod, lium, shadeform, {', '.join(packs.words('providers'))}, market for all "
        "vendors, or the name of an extension (default: from .env)",
        group=MACHINE,
    )
    pool: str = flag("", "; ".join(("ssh: only machines of this pool", *_of_packs("pool"))), group=OWN)
    host: str = flag("", "; ".join(("ssh: only this machine", *_of_packs("host"))), group=OWN)


@dataclass(frozen=True, kw_only=True)
class LimitSpec:
    """The limits of a pod, enforced regardless of the work."""

    ttl: str = flag("", "end the pod after this time: 90s, 30m, 2h", group=LIMITS, unit="DURATION")
    spend_limit: str = flag(
        "",
        "rented: end the pod before the cost exceeds this many US dollars (without --spend-limit and --ttl: a "
        "multiple of the estimate, at most 150)",
        group=LIMITS,
        unit="USD",
    )
    budget: str = flag(
        "",
        "reserve the spend limit from this budget, shared with other runs and pods; NAME=USD sets the "
        "size of the budget (with --wait: wait in line until enough is free)",
        group=RENTED,
        unit="NAME[=USD]",
    )
    idle_stop: str = flag(
        "",
        "end the pod when no GPU has worked for this time, setup included: 15m",
        group=LIMITS,
        unit="DURATION",
    )


def disk_of_environments(names: Collection[str], torch: str) -> int:
    """Return the bytes of the named environments; `torch` selects the build of the training environment."""
    own = {f"{name}-{torch}" if name == "train" else name for name in names if name}
    return sum(ENVIRONMENT_BYTES.get(name, OTHER_ENVIRONMENT_BYTES) for name in own)


def disk_of_plan(plan: Plan) -> int:
    """Return the disk size in bytes for a plan; 0 = no work to do."""
    if plan.job is None:
        return 0
    built = disk_of_environments({*plan.job.setup, *(step.environment for step in plan.job.steps)}, plan.job.torch)
    # With a volume, all results of the work are stored on the volume.
    lies_here = 0 if plan.request.volume else plan.data_bytes + plan.disk_bytes
    return disk_needed(built, plan.job.limits.reserve_bytes, lies_here)


def disk_needed(*parts_bytes: int) -> int:
    """Return the total disk size in bytes: all parts, BESIDE_BYTES and a margin, rounded up to STEP_BYTES."""
    return -(-round(MARGIN * (BESIDE_BYTES + sum(parts_bytes))) // STEP_BYTES) * STEP_BYTES


def request_on(
    candidates: Sequence[Provider], spec: MachineSpec, run: str, nodes: int = 1, pool: str = "", host: str = ""
) -> Request:
    """Return the request of a run to the candidate providers; omitted flags leave a property open.

    Raises UsageError for flags not supported by the candidates.
    """
    for name, value in (("use-spot", spec.use_spot), ("max-price", spec.max_price)):
        if value and not candidates[0].is_rented:
            raise UsageError(f"--{name} is for rented machines; this provider costs nothing")
    if spec.volume and not candidates[0].is_rented:
        raise UsageError("--volume is for rented machines; own machines keep their disks")
    if spec.machine_filter and (not candidates[0].is_rented or candidates[0].restarts_runs):
        raise UsageError(
            f"--machine-filter {spec.machine_filter}: {candidates[0].name} does not list single machines; "
            "the flag works only with vendors in: inv offers"
        )
    wanted = request_for(spec)
    numbers = {number for _, number in gpus.read_set(wanted.gpu)}
    has_one_number = len(numbers) == 1 and 0 not in numbers
    if candidates[0].restarts_runs or has_one_number and not candidates[0].is_rented:
        wanted = counted(wanted)
    provider = candidates[0].name if len(candidates) == 1 else MARKET
    return replace(wanted, run=run, provider=provider, nodes=nodes, pool=pool, host=host)


def expected_gpus(request: Request) -> int:
    """Return the number of GPUs for a job; 1 if the offer decides the number, which `renting` then takes."""
    return request.num_gpus or int(bool(request.gpu or request.instance_type or request.gpu_memory_bytes))


def refuse_open(request: Request) -> None:
    """Raise UsageError for a request that specifies no machine and has no work to derive a machine from."""
    if not (request.gpu or request.num_gpus or request.without_gpu or request.instance_type):
        raise UsageError(
            "no machine is specified, and no work implies a machine: give --gpu, --num-gpus or --instance-type; "
            "to list machines: inv offers; to see which GPUs fit a recipe: inv fit"
        )


def counted(wanted: Request) -> Request:
    """Return the request with `H100:8` split into GPU kinds and a count, as a job queue requires; default count 1.

    Raises UsageError for different counts.
    """
    if not wanted.gpu:
        return wanted
    pairs = gpus.read_set(wanted.gpu, wanted.num_gpus or 1)
    numbers = sorted({number for _, number in pairs})
    if len(numbers) > 1:
        raise UsageError(
            f"--gpu {wanted.gpu}: a job is queued with one number of GPUs; give the same number to each kind"
        )
    return replace(wanted, gpu=",".join(kind for kind, _ in pairs), num_gpus=numbers[0])


def request_for(spec: MachineSpec) -> Request:
    """Return the request for a machine specification. Raises UsageError for invalid values."""
    for name, number in (
        ("num-gpus", spec.num_gpus),
        ("min-upload-mbps", spec.min_upload_mbps),
        ("min-download-mbps", spec.min_download_mbps),
    ):
        if number < 0:
            raise UsageError(f"--{name} is {number}; the number cannot be negative")
    gpu, num_gpus = spec.gpu, spec.num_gpus
    without_gpu = gpu.strip().lower() == NO_GPU
    if without_gpu:
        if num_gpus:
            raise UsageError(f"--gpu {NO_GPU} asks for machines without a GPU; leave --num-gpus {num_gpus} out")
        gpu = ""
    if spec.all_configs:
        gpu, num_gpus = ",".join(dict.fromkeys(kind for kind, _ in gpus.read_set(gpu))), 0
    gpus.read_set(gpu)
    try:
        most = micro_usd(spec.max_price.lstrip("$")) if spec.max_price else 0
    except ValueError as error:
        raise UsageError(f"--max-price: {error}") from None
    return Request(
        run="new",
        provider="",
        gpu=gpu,
        num_gpus=num_gpus,
        without_gpu=without_gpu,
        spot=spec.use_spot,
        cpus=at_least("cpus", spec.cpus),
        memory_bytes=at_least_bytes("memory", spec.memory),
        disk_bytes=at_least_bytes("disk-size", spec.disk_size),
        country=spec.country,
        city=spec.city,
        cloud=spec.cloud,
        region=spec.region,
        instance_type=spec.instance_type,
        upload_mbps=spec.min_upload_mbps,
        download_mbps=spec.min_download_mbps,
        network=spec.network,
        volume=spec.volume,
        image=spec.image,
        max_micro_usd_per_hour=most,
        machine_filter=spec.machine_filter,
    )


def at_least(flag: str, text: str) -> int:
    """Parse the minimum `16` or `16+` into a number; 0 for an empty text. Raises UsageError."""
    found = re.fullmatch(r"([0-9]{1,9})\+?", text.strip())
    if text and not found:
        raise UsageError(f"--{flag} {text}: expected a whole number, such as 16 or 16+")
    return int(found[1]) if found else 0


def at_least_bytes(flag: str, text: str) -> int:
    """Parse a minimum size into bytes: `64`, `64+` or `64GB` in GB, or `64Gi` in Kubernetes notation.

    Raises UsageError.
    """
    found = re.fullmatch(r"([0-9]{1,9})([A-Za-z]*)\+?", text.strip())
    if text and not (found and found[2] in UNITS):
        units = ", ".join(filter(None, UNITS))
        raise UsageError(f"--{flag} {text}: expected a whole number of GB, such as 64 or 64+, or a unit: {units}")
    return int(found[1]) * UNITS[found[2]] if found else 0
