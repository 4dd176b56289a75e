"""Conversion of command-line flags into a `Request` for a machine."""

import re
from collections.abc import Sequence
from dataclasses import replace

from infra.errors import UsageError
from infra.market import gpus
from infra.money import micro_usd
from infra.providers import Provider
from infra.records import Request
from infra.selection.machine_spec import MachineSpec
from infra.settings import MARKET

GB = 10**9
NO_GPU = "none"  # value of --gpu and of a job file for machines without a GPU
UNITS = {"": GB, "G": GB, "GB": GB, "T": 10**12, "TB": 10**12, "Mi": 1 << 20, "Gi": 1 << 30, "Ti": 1 << 40}


def request_on(
    candidates: Sequence[Provider], spec: MachineSpec, run: str, nodes: int = 1, pool: str = "", host: str = ""
) -> Request:
    """Return the request of a run to the candidate providers; omitted flags leave a property open.

    Raises UsageError for flags not supported by the candidates.
    """
    for flag, value in (("use-spot", spec.use_spot), ("max-price", spec.max_price)):
        if value and not candidates[0].is_rented:
            raise UsageError(f"--{flag} is for rented machines; this provider costs nothing")
    if spec.volume and not candidates[0].is_rented:
        raise UsageError("--volume is for rented machines; own machines keep their disks")
    if spec.machine_filter and (not candidates[0].is_rented or candidates[0].recovers):
        raise UsageError(
            f"--machine-filter {spec.machine_filter}: {candidates[0].name} does not list single machines; "
            "the flag works only with vendors in: inv offers"
        )
    wanted = request_for(spec)
    if candidates[0].recovers:
        wanted = counted(wanted)
    provider = candidates[0].name if len(candidates) == 1 else MARKET
    return replace(wanted, run=run, provider=provider, nodes=nodes, pool=pool, host=host)


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
    for flag, number in (
        ("num-gpus", spec.num_gpus),
        ("min-upload-mbps", spec.min_upload_mbps),
        ("min-download-mbps", spec.min_download_mbps),
    ):
        if number < 0:
            raise UsageError(f"--{flag} is {number}; the number cannot be negative")
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
