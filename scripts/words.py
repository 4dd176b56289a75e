"""What the user typed, as values: settings, providers, durations. Shared by the tasks."""

import functools
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

from infra import gpus, spend
from infra.agent.limits import read_clocks
from infra.errors import UsageError
from infra.hosts import HostMemory
from infra.journal import Op
from infra.launch import Accept, Terms
from infra.money import micro_usd
from infra.providers import Provider, Vendors
from infra.records import Offer, Request
from infra.settings import MARKET, VENDORS, Settings
from infra.transport import Transport
from infra.vendors import open_provider
from scripts.planning import ROOT, secrets
from store import credentials

_UNITS_S = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def settings(**flags: str) -> Settings:
    """From flags (those that were given), environment, .env and slipway.yaml; stores are asked in their name."""
    found = Settings.load(ROOT, flags)
    credentials.lend(secrets(found))
    return found


@functools.lru_cache(maxsize=8)
def _provider(name: str, place: tuple[str, ...]) -> Provider:
    """One of each, so that a machine is connected to once."""
    return open_provider(name, Settings.load(ROOT))


def provider(settings: Settings, name: str) -> Provider:
    """Raises UsageError for one that cannot be used."""
    keys = [getattr(settings, key) + getattr(settings, f"{vendor}_url") for vendor, key in VENDORS.items()]
    return _provider(name, (str(settings.pods), str(settings.pools), str(settings.state_file), *keys))


def providers(settings: Settings) -> list[Provider]:
    """Those that `--provider` means: one, or every vendor whose key is set. Raises UsageError."""
    if settings.provider != MARKET:
        return [provider(settings, settings.provider)]
    found = [provider(settings, vendor) for vendor, key in VENDORS.items() if getattr(settings, key)]
    if not found:
        keys = ", ".join(key.upper() for key in VENDORS.values())
        raise UsageError(f"provider {MARKET}: no key is set; put one of {keys} into the shell or .env")
    return found


def vendors(settings: Settings) -> Vendors:
    """Every provider by its name, also of pods that an earlier launch has rented."""
    return lambda name: provider(settings, name)


def terms(settings: Settings, vendor: Provider, unchecked: bool = False) -> Terms:
    """On what terms its machines are taken; `unchecked`: without looking whether they work."""
    if vendor.is_here:
        return Terms()
    examine = None if unchecked else accept(settings)
    if not vendor.is_rented:
        return Terms(accept=examine)
    of_all = micro_usd(str(settings.spend_cap_usd)) or None

    def admit(rows: list[Op], new: Op) -> None:
        spend.admit(rows, new, of_all=of_all, now=read_clocks(), scale=settings.clock_scale)

    def blame(offer: Offer, failure: str) -> None:
        HostMemory.beside(settings.state_file).blame(known_as(offer), failure)

    return Terms(accept=examine, admit=admit, blame=blame, boot_s=settings.boot_s)


def known_as(offer: Offer) -> str:
    """The name under which a machine, or an offer of a vendor's, is remembered when it fails."""
    return f"{offer.provider}:{offer.place or offer.offer_id}"


def accept(settings: Settings) -> Accept:
    """What `start` asks of a machine before any work; an own one that fails is remembered and not offered again."""
    from infra.acceptance import Thresholds, examine

    def judge(transport: Transport, request: Request, offer: Offer) -> str:
        promised = request
        if offer.num_gpus and not offer.place:  # of rented machines: the kind that the vendor named, and its size
            kind = request.gpu if len(gpus.read_set(request.gpu)) == 1 else offer.gpu
            promised = replace(request, num_gpus=offer.num_gpus, gpu=kind.partition(":")[0],
                               gpu_memory_bytes=offer.gpu_memory_bytes)  # fmt: skip
        report = examine(transport, promised, Thresholds.of(settings), python=transport.python)
        if offer.place and not report.is_accepted:
            HostMemory.beside(settings.state_file).blame(known_as(offer), report.failure)
        return report.failure

    return judge


def homes(settings: Settings) -> Path:
    """Where what is brought home of each run is kept."""
    return settings.pods.parent / "logs"


def seconds(text: str) -> float | None:
    """`90s`, `30m`, `2h`, `1.5d` or bare seconds; None for an empty text. Raises UsageError."""
    if not text:
        return None
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([smhd]?)", text.strip())
    if not found or float(found[1]) == 0:
        raise UsageError(f"{text!r} is no duration; write 90s, 30m, 2h or 1d")
    return float(found[1]) * _UNITS_S[found[2]]


def watch_seconds(value: Any) -> float | None:
    """None: not asked for. A bare `--watch` means every 60 s."""
    if value in (None, False):
        return None
    if value is True:
        return 60.0
    found = seconds(str(value))
    assert found is not None
    return found
