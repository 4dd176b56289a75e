"""The environment of the steps of a job: secrets by name, and the variables that are its own."""

import os
from collections.abc import Iterable, Mapping

from infra.settings import VENDORS, Settings, is_secret, sources_of, variables
from store import credentials, packs

ACCOUNTS = (*(key.upper() for key in VENDORS.values()), "LIUM_SELF_END_KEY")  # variables whose values never go to a pod


def asked_at(settings: Settings) -> set[str]:
    """Return the kinds of stores that a step speaks to: what it writes to, and where its text lies."""
    return {credentials.kind(one) for one in (settings.store, *sources_of(settings.source))}


def secrets(settings: Settings) -> dict[str, str]:
    """Return the secrets that a step may need, by variable; account-wide vendor keys never go to a pod."""
    found = {"HUGGINGFACEHUB_API_TOKEN": settings.huggingfacehub_api_token, "HF_TOKEN": settings.hf_token}
    for one in packs.named_trackers().values():
        found |= one.secrets(settings)
    if "s3" in asked_at(settings):
        found |= {name: getattr(settings, name.lower()) for name in credentials.S3}
    if "gs" in asked_at(settings):
        found["GOOGLE_CREDENTIALS"] = credentials.google_key(settings.google_credentials)
    found |= {name: value for name, value in of_job(settings).items() if is_secret(name)}
    return {name: value for name, value in found.items() if value}


def secrets_for(names: Iterable[str], settings: Settings, environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the secrets of a job that was begun earlier.

    They are those of our settings and, of what it was given by `--env`, those that this process was given too.
    """
    return {**{name: environ[name] for name in names if environ.get(name)}, **secrets(settings)}


def of_job(settings: Settings) -> dict[str, str]:
    """Return the variables of `--env` that are the job's own: those that are no settings of ours."""
    ours = variables()
    return {name: value for name, value in settings.given.items() if name not in ours}


def of_own_job(settings: Settings) -> dict[str, str]:
    """Return the variables of `--env` for a job of one's own, where TOKENS or RUN_SHARD are the job's business.

    A key that was typed is among them, as `--env WANDB_API_KEY` is for this job; keys of an account with a vendor are
    not, since they never go to a pod.
    """
    return {name: value for name, value in settings.given.items()
            if name not in ACCOUNTS and not name.startswith("SLIPWAY_")}  # fmt: skip


def plain(settings: Settings) -> dict[str, str]:
    """Return those that anybody may read; the others are secrets by their names."""
    return {name: value for name, value in of_job(settings).items() if not is_secret(name)}
