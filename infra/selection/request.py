"""The request for a machine from command-line flags."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from infra.errors import UsageError
from infra.market import gpus
from infra.money import micro_usd
from infra.providers import Provider
from infra.records import Request
from infra.settings import MARKET

GB = 10**9
GPU, NUM_GPUS = "B200", 8  # what is rented when nothing is said


def request_on(
    candidates: Sequence[Provider], flags: Mapping[str, Any], run: str, nodes: int = 1, pool: str = "", host: str = ""
) -> Request:
    """Return what a run asks of one of these providers; without a word about GPUs, the default of rented machines.

    `flags`: as `request_for` takes them.
    """
    asked = dict(flags)
    if candidates[0].is_rented and not asked.get("gpu") and not asked.get("instance_type"):
        asked |= {"gpu": GPU, "num_gpus": asked.get("num_gpus") or NUM_GPUS}
    if asked.get("volume") and not candidates[0].is_rented:
        raise UsageError("--volume is of a vendor's; own machines keep what is on their disks")
    wanted = request_for(**asked)
    provider = candidates[0].name if len(candidates) == 1 else MARKET
    return replace(wanted, run=run, provider=provider, nodes=nodes, pool=pool, host=host)


def request_for(
    *, gpu: str = "", num_gpus: int = 0, all_configs: bool = False, cpus: str = "", memory: str = "",
    disk_size: str = "", country: str = "", city: str = "", cloud: str = "", region: str = "", instance_type: str = "",
    min_upload_mbps: int = 0, min_download_mbps: int = 0, use_spot: bool = False, max_price: str = "",
    network: str = "", volume: str = "",
) -> Request:  # fmt: skip
    """Return what kind of machine is wanted. Raises UsageError for words that mean nothing."""
    for flag, number in (("num-gpus", num_gpus), ("min-upload-mbps", min_upload_mbps),
                         ("min-download-mbps", min_download_mbps)):  # fmt: skip
        if number < 0:
            raise UsageError(f"--{flag} is {number}; it cannot be negative")
    if network not in ("", "best"):
        raise UsageError(f"--network {network}: known: best")
    if all_configs:
        gpu, num_gpus = ",".join(dict.fromkeys(kind for kind, _ in gpus.read_set(gpu))), 0
    gpus.read_set(gpu)
    try:
        most = micro_usd(max_price.lstrip("$")) if max_price else 0
    except ValueError as error:
        raise UsageError(f"--max-price: {error}") from None
    return Request(
        run="new",
        provider="",
        gpu=gpu,
        num_gpus=num_gpus,
        spot=use_spot,
        cpus=at_least("cpus", cpus),
        memory_bytes=at_least("memory", memory) * GB,
        disk_bytes=at_least("disk-size", disk_size) * GB,
        country=country,
        city=city,
        cloud=cloud,
        region=region,
        instance_type=instance_type,
        upload_mbps=min_upload_mbps,
        download_mbps=min_download_mbps,
        network=network,
        volume=volume,
        max_micro_usd_per_hour=most,
    )


def at_least(flag: str, text: str) -> int:
    """Return the number of `16` or `16+`, which are the same floor. Raises UsageError."""
    found = re.fullmatch(r"([0-9]{1,9})\+?", text.strip())
    if text and not found:
        raise UsageError(f"--{flag} {text}: expected a whole number, such as 16 or 16+")
    return int(found[1]) if found else 0
