"""The offers of the market, read from a file; each row gives an offer per region."""

import hashlib
from collections import Counter
from collections.abc import Iterable
from decimal import Decimal, InvalidOperation
from pathlib import Path

import msgspec

from infra.errors import UsageError
from infra.rehearsal.faults import Trait
from infra.rehearsal.records import TERMS, Offer

BUNDLED = Path(__file__).with_name("offers.json")


class Row(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A row of the file: a single GPU for RunPod, a whole machine for other vendors."""

    vendor: str
    kind: str  # the vendor's name: id of a GPU, machine name, or shade_instance_type
    gpu: str  # common name
    chip: str  # name in nvidia-smi
    num_gpus: int
    vram_gb: int  # memory per GPU
    cpus: int
    memory_gb: int
    usd_per_hour: str  # price of the row, decimal
    regions: list[str]
    cloud: str = ""
    disk_gb: int = 0
    usd_per_hour_spot: str = "0"
    spot: bool = False  # a Lium machine that the owner may take back
    nvlink: bool = False
    stock: int = 2  # per region; for RunPod, number of GPUs
    city: str = ""
    up_mbps: float | None = None
    down_mbps: float | None = None
    traits: list[Trait] = []


def read_offers(path: Path = BUNDLED) -> list[Offer]:
    """Read the offers in a file. Raises UsageError with file and position, and FileNotFoundError."""
    try:
        rows = msgspec.json.decode(path.read_bytes(), type=list[Row])
        return [_offer(row, region, number) for number, row in enumerate(rows) for region in row.regions]
    except (msgspec.DecodeError, ValueError) as error:
        raise UsageError(f"{path}: {error}") from None


def digest(offers: list[Offer]) -> str:
    """Return a digest of the offers; equal offers have equal digests."""
    return hashlib.sha256(repr(offers).encode()).hexdigest()[:16]


VOLUME = "vol-rehearsal"  # id of the only volume, present at every vendor


def volume_at(offers: Iterable[Offer], vendor: str) -> tuple[str, str]:
    """Return the cloud and region of the volume: the pair with the most offers of the vendor.

    For RunPod, only Secure Cloud offers count.
    """
    fit = [one for one in offers if one.vendor == vendor and (vendor != "runpod" or one.cloud in ("", "SECURE"))]
    counted = Counter((one.cloud, one.region) for one in fit).most_common(1)
    return counted[0][0] if counted else ("", "")


def micro_usd(text: str) -> int:
    """Convert decimal text in dollars to micro-dollars. Raises ValueError."""
    try:
        dollars = Decimal(text)
    except InvalidOperation:
        raise ValueError(f"{text!r} is not an amount of dollars") from None
    if not dollars.is_finite() or dollars < 0:
        raise ValueError(f"{text!r} is not an amount of dollars")
    return round(dollars * 1_000_000)


def dollars(amount_micro_usd: int) -> float:
    """Convert micro-dollars to dollars in the format of vendors."""
    return amount_micro_usd / 1_000_000


def _offer(row: Row, region: str, number: int) -> Offer:
    if row.vendor not in TERMS:
        raise ValueError(f"{row.vendor!r} is not a vendor")
    # A Lium machine is unique; other offers are identified by type and location.
    words = [row.vendor, str(number), row.kind] if row.vendor == "lium" else [row.vendor, row.cloud, row.kind, region]
    return Offer(
        vendor=row.vendor,
        offer_id="/".join(word for word in words if word),
        cloud=row.cloud,
        kind=row.kind,
        gpu=row.gpu,
        num_gpus=row.num_gpus,
        region=region,
        micro_usd_per_hour=micro_usd(row.usd_per_hour),
        spot_micro_usd_per_hour=micro_usd(row.usd_per_hour if row.spot else row.usd_per_hour_spot),
        stock=1 if row.vendor == "lium" else row.stock,
        traits=tuple(row.traits),
        about=row,
    )
