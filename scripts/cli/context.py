"""What the user typed, as values: settings, providers, durations. Shared by the tasks."""

import functools
import re
from pathlib import Path
from typing import Any

from infra.errors import UsageError
from infra.providers import Provider, Vendors
from infra.providers.registry import open_provider
from infra.settings import MARKET, VENDORS, Settings
from store import credentials

ROOT = Path(__file__).resolve().parents[2]
MOST_S = 10 * 365 * 86400.0
_UNITS_S = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def settings(**flags: str) -> Settings:
    """From flags (those that were given), environment, .env and slipway.yaml; stores are asked in their name."""
    found = Settings.load(ROOT, flags)
    credentials.lend(secrets(found))
    return found


def asked_at(settings: Settings) -> set[str]:
    """Kinds of stores that a step speaks to: what it writes to, and where its text lies."""
    return {credentials.kind(settings.store), credentials.kind(settings.source)}


def secrets(settings: Settings) -> dict[str, str]:
    """Those that a step may need, by variable; account-wide vendor keys never go to a pod."""
    found = {"HUGGINGFACEHUB_API_TOKEN": settings.huggingfacehub_api_token, "HF_TOKEN": settings.hf_token,
             "WANDB_API_KEY": settings.wandb_api_key}  # fmt: skip
    if "s3" in asked_at(settings):
        found |= {name: getattr(settings, name.lower()) for name in credentials.S3}
    return {name: value for name, value in found.items() if value}


def tracking(settings: Settings) -> dict[str, str]:
    """Which project of W&B a step tells its figures to, and how."""
    found = {"WANDB_PROJECT": settings.wandb_project, "WANDB_MODE": settings.wandb_mode}
    return {name: value for name, value in found.items() if value}


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


def homes(settings: Settings) -> Path:
    """Where what is brought home of each run is kept."""
    return settings.pods.parent / "logs"


def seconds(text: str) -> float | None:
    """`90s`, `30m`, `2h`, `1.5d` or bare seconds, up to ten years; None for an empty text. Raises UsageError."""
    if not text:
        return None
    found = re.fullmatch(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)([smhd]?)", text.strip())
    read = float(found[1]) * _UNITS_S[found[2]] if found else 0.0
    if not 0 < read <= MOST_S:
        raise UsageError(f"{text[:40]!r} is no duration; write 90s, 30m, 2h or 1d")
    return read


def watch_seconds(value: Any) -> float | None:
    """None: not asked for. A bare `--watch` means every 60 s."""
    if value in (None, False):
        return None
    if value is True:
        return 60.0
    found = seconds(str(value))
    assert found is not None
    return found
