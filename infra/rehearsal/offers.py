"""The offers of the market: rows of a file, one offer per region."""

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
    """One line of the file. RunPod's rows are single GPUs, the others' whole machines."""

    vendor: str
    kind: str  # the vendor's name of it: a GPU's id, a machine name, a shade_instance_type
    gpu: str  # name that people use
    chip: str  # name that nvidia-smi shows
    num_gpus: int
    vram_gb: int  # memory of each GPU
    cpus: int
    memory_gb: int
    usd_per_hour: str  # price of the row, decimal
    regions: list[str]
    cloud: str = ""
    disk_gb: int = 0
    usd_per_hour_spot: str = "0"
    spot: bool = False  # a Lium machine whose owner may take it back
    nvlink: bool = False
    stock: int = 2  # in each region; of RunPod, GPUs
    city: str = ""
    up_mbps: float | None = None
    down_mbps: float | None = None
    traits: list[Trait] = []


def read_offers(path: Path = BUNDLED) -> list[Offer]:
    """Return the offers in a file. Raises UsageError with the file and the place; FileNotFoundError."""
    try:
        rows = msgspec.json.decode(path.read_bytes(), type=list[Row])
        return [_offer(row, region, number) for number, row in enumerate(rows) for region in row.regions]
    except (msgspec.DecodeError, ValueError) as error:
        raise UsageError(f"{path}: {error}") from None


def digest(offers: list[Offer]) -> str:
    """Return a digest that is the same for the same offers."""
    return hashlib.sha256(repr(offers).encode()).hexdigest()[:16]


VOLUME = "vol-rehearsal"  # one with this id is at each vendor


def volume_at(offers: Iterable[Offer], vendor: str) -> tuple[str, str]:
    """Return the cloud and region of the volume: those where most is on offer.

    Of RunPod's, only its own machines count.
    """
    fit = [one for one in offers if one.vendor == vendor and (vendor != "runpod" or one.cloud in ("", "SECURE"))]
    counted = Counter((one.cloud, one.region) for one in fit).most_common(1)
    return counted[0][0] if counted else ("", "")


def micro_usd(text: str) -> int:
    """Return the micro-dollars of dollars as decimal text. Raises ValueError."""
    try:
        dollars = Decimal(text)
    except InvalidOperation:
        raise ValueError(f"{text!r} is not an amount of dollars") from None
    if not dollars.is_finite() or dollars < 0:
        raise ValueError(f"{text!r} is not an amount of dollars")
    return round(dollars * 1_000_000)


def dollars(amount_micro_usd: int) -> float:
    """Return dollars as vendors print them."""
    return amount_micro_usd / 1_000_000


def _offer(row: Row, region: str, number: int) -> Offer:
    if row.vendor not in TERMS:
        raise ValueError(f"{row.vendor!r} is no vendor")
    # A Lium machine is one of its kind; the others are known by what and where they are.
    words = [row.vendor, str(number), row.kind] if row.vendor == "lium" else [row.vendor, row.cloud, row.kind, region]
    return Offer(
        vendor=row.vendor, offer_id="/".join(word for word in words if word), cloud=row.cloud, kind=row.kind,
        gpu=row.gpu, num_gpus=row.num_gpus, region=region, micro_usd_per_hour=micro_usd(row.usd_per_hour),
        spot_micro_usd_per_hour=micro_usd(row.usd_per_hour if row.spot else row.usd_per_hour_spot),
        stock=1 if row.vendor == "lium" else row.stock, traits=tuple(row.traits), about=row,
    )  # fmt: skip
