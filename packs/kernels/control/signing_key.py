"""The key of the user for kernels in remote stores, and the key of jobs on rented machines, derived from that key."""

import hashlib
import hmac
from collections.abc import Mapping
from dataclasses import dataclass

from infra.errors import UsageError
from infra.settings import LEAST_KEY, PackSettings, Settings, row
from packs.kernels.records.job_variables import JOB_KEY

VARIABLE = "SLIPWAY_KERNELS_KEY"


@dataclass(frozen=True, kw_only=True)
class KernelSettings(PackSettings):
    kernels_key: str = row(
        VARIABLE, "secret text that signs compiled kernels of rented machines in a remote store", secret=True
    )


def check(settings: Settings) -> str:
    """Return the key of the user, "" = none. Raises UsageError for a short key."""
    key = settings.for_pack(KernelSettings).kernels_key
    if key and len(key) < LEAST_KEY:
        raise UsageError(
            f"{VARIABLE} has {len(key)} characters; others could guess a key with fewer than {LEAST_KEY} characters. "
            "To make a key: openssl rand -hex 32"
        )
    return key


def secrets_of(settings: Settings) -> Mapping[str, str]:
    """Return the signing key of a job by variable; {} without a usable key of the user, which stays on this machine."""
    key = settings.for_pack(KernelSettings).kernels_key
    if len(key) < LEAST_KEY:  # plans refuse a short key; commands that end runs must not
        return {}
    return {JOB_KEY: hmac.new(key.encode(), b"slipway: kernels of rented machines", hashlib.sha256).hexdigest()}
