"""Prices for whoever has no account: a catalogue with a date in every line, which shows what things cost and no more.

In: `catalogue.json`, which came along, or what `inv offers --save` has written beside the journal. Out: offers, each
with the line's mark. Nothing is rented by them. The figures that came along are those that the vendors and lists of
their prices published: Lium and Shadeform by SkyPilot's catalogue of 2026, RunPod by lists of March 2026.
"""

import json
import time
from collections.abc import Collection, Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from infra.errors import UsageError
from infra.market import gpus
from infra.money import BadAmount, dollars, micro_usd
from infra.records import Offer
from store import local_files, outside, strict_records

BUNDLED = Path(__file__).with_name("catalogue.json")
MOST_BYTES, MOST_ROWS = 8 << 20, 10_000
COUNTS = (1, 2, 4, 8)
GB = 10**9


@dataclass(frozen=True, kw_only=True)
class CatalogueRow:
    """One machine, or with `up_to` the price of one GPU of a machine with so many."""

    provider: str
    gpu: str
    num_gpus: int
    usd_per_hour: str
    as_of: str
    """The date of the price, as exact as it is known: 2026, 2026-03, 2026-11-23."""
    cloud: str = ""
    instance_type: str = ""
    cpus: int = 0
    memory_gb: int = 0
    up_to: int = 1
    regions: tuple[str, ...] = ()


@dataclass(frozen=True)
class Priced:
    """An offer with a price on record that nobody makes now."""

    offer: Offer
    as_of: str
    is_illustrative: bool
    """True if it ships with Slipway; False if the user has saved it."""

    @property
    def mark(self) -> str:
        return f"{self.as_of}, {'illustrative' if self.is_illustrative else 'saved'}"


def file_beside(journal: Path) -> Path:
    """Return the path of the user's own catalogue, which may not exist yet."""
    return journal.with_name(f"{journal.stem}-prices.json")


def read(own: Path, only: str = "") -> list[Priced]:
    """Return all lines, or those of one vendor: of `own`, and of vendors that it does not have, those that came along.

    Raises UsageError for a file that is damaged.
    """
    saved = _rows(own) if own.exists() else []
    known = {row.provider for row in saved}
    came = [row for row in _rows(BUNDLED) if row.provider not in known]
    found = [(row, False) for row in saved] + [(row, True) for row in came]
    return [Priced(offer, row.as_of, is_ours) for row, is_ours in found if only in ("", row.provider)
            for offer in _offers(row)]  # fmt: skip


def save(own: Path, offers: Iterable[Offer], vendors: Collection[str], now: float) -> int:
    """Replace the lines of the vendors that have answered by their offers of today; return how many those are.

    The cheapest are kept where there are very many. Lines of other vendors stay, with their dates.
    """
    today = time.strftime("%Y-%m-%d", time.gmtime(now))
    kept = [row for row in (_rows(own) if own.exists() else []) if row.provider not in vendors]
    cheapest = sorted((one for one in offers if one.provider in vendors), key=lambda one: one.micro_usd_per_hour)
    rows: dict[CatalogueRow, None] = {}
    for one in cheapest:
        where = one.region or one.country
        row = CatalogueRow(provider=one.provider, cloud=one.cloud, instance_type=one.instance_type, gpu=one.gpu,
                           num_gpus=one.num_gpus, cpus=one.cpus, memory_gb=one.memory_bytes // GB,
                           usd_per_hour=dollars(one.micro_usd_per_hour), as_of=today,
                           regions=(where,) if where else ())  # fmt: skip
        rows.setdefault(row)
        if len(rows) >= MOST_ROWS:
            break
    lines = [json.dumps({key: value for key, value in asdict(row).items() if value}) for row in (*kept, *rows)]
    local_files.replace(own, ("[\n" + ",\n".join(lines) + "\n]\n").encode())
    return len(rows)


def _rows(path: Path) -> list[CatalogueRow]:
    try:
        read = outside.parse(outside.content(path, MOST_BYTES), MOST_BYTES)
        if not isinstance(read, list):
            raise ValueError("expected a list of machines")
        return [strict_records.read(CatalogueRow, one) for one in read]
    except (OSError, ValueError, TypeError) as error:
        raise UsageError(f"{path}: {error}; write it again: inv offers --save, or remove it") from None


def _offers(row: CatalogueRow) -> Iterator[Offer]:
    rate = _micro_usd(row.usd_per_hour)
    for times in [one for one in COUNTS if one <= row.up_to] or [1]:
        facts: dict[str, Any] = {}
        if times == 1:
            facts = {"cpus": row.cpus, "memory_bytes": row.memory_gb * GB}
        memory_gb = next((one.memory_gb for one in gpus.GPUS if gpus.is_asked(row.gpu, one.name)), 0)
        for region in row.regions or ("",):
            yield Offer(provider=row.provider, offer_id=f"{row.cloud}/{row.instance_type}/{region}/{times}",
                        cloud=row.cloud, region=region, instance_type=row.instance_type, gpu=row.gpu,
                        num_gpus=row.num_gpus * times, micro_usd_per_hour=rate * times,
                        gpu_memory_bytes=memory_gb * GB, **facts)  # fmt: skip


def _micro_usd(text: str) -> int:
    try:
        return micro_usd(text)
    except BadAmount as error:
        raise UsageError(f"the catalogue of prices: {error}") from None
