"""What the user typed, as values: settings, providers, durations. Shared by the tasks."""

import functools
import re
from pathlib import Path
from typing import Any

from infra.errors import UsageError
from infra.launch import Accept
from infra.providers import Provider
from infra.records import Offer, Request
from infra.settings import Settings
from infra.transport import Transport
from scripts.planning import ROOT

_UNITS_S = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def settings(**flags: str) -> Settings:
    """From flags (those that were given), environment, .env and slipway.yaml."""
    return Settings.load(ROOT, flags)


def secrets(settings: Settings) -> dict[str, str]:
    """Those that a step may need, by variable; account-wide vendor keys never go to a pod."""
    found = {"HUGGINGFACEHUB_API_TOKEN": settings.huggingfacehub_api_token, "HF_TOKEN": settings.hf_token}
    return {name: value for name, value in found.items() if value}


@functools.lru_cache(maxsize=8)
def _provider(name: str, place: tuple[Path, ...]) -> Provider:
    """One of each, so that a machine is connected to once."""
    settings = Settings.load(ROOT)
    if name == "ssh":
        from infra.providers.ssh import SshPools

        return SshPools.of(settings)
    from infra.providers.local import Local

    return Local(settings.pods)


def provider(settings: Settings, name: str = "") -> Provider:
    """Raises UsageError for one that cannot be used yet."""
    name = name or settings.provider
    if name not in ("local", "ssh"):
        raise UsageError(f"provider {name!r} cannot be used yet; known: local, ssh")
    return _provider(name, (settings.pods, settings.pools, settings.state_file))


def accept(settings: Settings) -> Accept:
    """What `start` asks of a machine before any work; one that fails is remembered and not offered again."""
    from infra.acceptance import Thresholds, examine
    from infra.hosts import HostMemory

    def judge(transport: Transport, request: Request, offer: Offer) -> str:
        report = examine(transport, request, Thresholds.of(settings), python=transport.python)
        if not report.is_accepted:
            HostMemory.beside(settings.state_file).blame(f"{offer.provider}:{offer.place}", report.failure)
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
