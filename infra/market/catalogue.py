"""Price catalogue for users without an account: dated prices for display only, never for renting.

`read` turns the bundled `catalogue.json`, or the user's file written by `inv offers --save`, into offers marked with
the date of each price. The bundled figures are published prices: Lium and Shadeform from SkyPilot's catalogue of 2026,
RunPod from price lists of March 2026.
"""

import json
import time
from collections.abc import Collection, Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from infra.errors import UsageError
from infra.market import gpus
from infra.records import Offer
from infra.units import BadAmount, dollars, micro_usd
from store import local_files, strict_records, untrusted_input

BUNDLED = Path(__file__).with_name("catalogue.json")
MOST_BYTES, MOST_ROWS = 8 << 20, 10_000
COUNTS = (1, 2, 4, 8)
GB = 10**9


@dataclass(frozen=True, kw_only=True)
class CatalogueRow:
    """A machine, or with `up_to` the price per GPU of a machine with up to `up_to` GPUs."""

    provider: str
    gpu: str
    num_gpus: int
    usd_per_hour: str
    as_of: str
    """Date of the price, as precise as known: 2026, 2026-03, 2026-11-23."""
    cloud: str = ""
    instance_type: str = ""
    cpus: int = 0
    memory_gb: int = 0
    up_to: int = 1
    regions: tuple[str, ...] = ()


@dataclass(frozen=True)
class PricedOffer:
    """An offer with a recorded price, which no vendor currently guarantees."""

    offer: Offer
    as_of: str
    is_illustrative: bool
    """True if the row ships with Slipway; False if the user saved the row."""

    @property
    def label(self) -> str:
        return f"{self.as_of}, {'illustrative' if self.is_illustrative else 'saved'}"


def file_beside(journal: Path) -> Path:
    """Return the path of the user's own catalogue; the file may not exist."""
    return journal.with_name(f"{journal.stem}-prices.json")


def read(own: Path, only: str = "") -> list[PricedOffer]:
    """Return the prices of all vendors, or of the vendor `only`; rows of `own` replace a vendor's bundled rows.

    Raises UsageError for a damaged file.
    """
    saved = _rows(own) if own.exists() else []
    known = {row.provider for row in saved}
    came = [row for row in _rows(BUNDLED) if row.provider not in known]
    found = [(row, False) for row in saved] + [(row, True) for row in came]
    return [
        PricedOffer(offer, row.as_of, is_ours)
        for row, is_ours in found
        if only in ("", row.provider)
        for offer in _offers(row)
    ]


def save(own: Path, offers: Iterable[Offer], vendors: Collection[str], now: float) -> int:
    """Replace the rows of the responding vendors with the given offers and return the number of new rows.

    Keeps at most the MOST_ROWS cheapest offers. Rows of other vendors stay, with their dates.
    """
    today = time.strftime("%Y-%m-%d", time.gmtime(now))
    kept = [row for row in (_rows(own) if own.exists() else []) if row.provider not in vendors]
    cheapest = sorted((one for one in offers if one.provider in vendors), key=lambda one: one.micro_usd_per_hour)
    rows: dict[CatalogueRow, None] = {}
    for one in cheapest:
        where = one.region or one.country
        row = CatalogueRow(
            provider=one.provider,
            cloud=one.cloud,
            instance_type=one.instance_type,
            gpu=one.gpu,
            num_gpus=one.num_gpus,
            cpus=one.cpus,
            memory_gb=one.memory_bytes // GB,
            usd_per_hour=dollars(one.micro_usd_per_hour),
            as_of=today,
            regions=(where,) if where else (),
        )
        rows.setdefault(row)
        if len(rows) >= MOST_ROWS:
            break
    lines = [json.dumps({key: value for key, value in asdict(row).items() if value}) for row in (*kept, *rows)]
    local_files.replace(own, ("[\n" + ",\n".join(lines) + "\n]\n").encode())
    return len(rows)


def _rows(path: Path) -> list[CatalogueRow]:
    try:
        read = untrusted_input.parse(untrusted_input.content(path, MOST_BYTES), MOST_BYTES)
        if not isinstance(read, list):
            raise ValueError("expected a list of machines")
        return [strict_records.read(CatalogueRow, one) for one in read]
    except (OSError, ValueError, TypeError) as error:
        raise UsageError(f"{path}: {error}; write the file again: inv offers --save, or remove the file") from None


def _offers(row: CatalogueRow) -> Iterator[Offer]:
    rate = _micro_usd(row.usd_per_hour)
    for times in [one for one in COUNTS if one <= row.up_to] or [1]:
        facts: dict[str, Any] = {}
        if times == 1:
            facts = {"cpus": row.cpus, "memory_bytes": row.memory_gb * GB}
        memory_gb = next((one.memory_gb for one in gpus.GPUS if gpus.is_asked(row.gpu, one.name)), 0)
        for region in row.regions or ("",):
            yield Offer(
                provider=row.provider,
                offer_id=f"{row.cloud}/{row.instance_type}/{region}/{times}",
                cloud=row.cloud,
                region=region,
                instance_type=row.instance_type,
                gpu=row.gpu,
                num_gpus=row.num_gpus * times,
                micro_usd_per_hour=rate * times,
                gpu_memory_bytes=memory_gb * GB,
                **facts,
            )


def _micro_usd(text: str) -> int:
    try:
        return micro_usd(text)
    except BadAmount as error:
        raise UsageError(f"the catalogue of prices: {error}") from None
