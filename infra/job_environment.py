"""Environment of a job's steps: secrets by name, and the job's own variables."""

import os
from collections.abc import Iterable, Mapping

from infra.settings import VENDORS, Settings, is_secret, sources_of, variables
from store import credentials, packs

ACCOUNTS = (*(key.upper() for key in VENDORS.values()), "LIUM_SELF_END_KEY")  # variables never sent to a pod


def store_kinds(settings: Settings) -> set[str]:
    """Return the kinds of stores accessed by a step: the artifact store and the text sources."""
    return {credentials.kind(one) for one in (settings.store, *sources_of(settings.source))}


def secrets(settings: Settings) -> dict[str, str]:
    """Return the secrets for a step, by variable; account-wide vendor keys never go to a pod."""
    found = {"HUGGINGFACEHUB_API_TOKEN": settings.huggingfacehub_api_token, "HF_TOKEN": settings.hf_token}
    for one in packs.named_trackers().values():
        found |= one.secrets(settings)
    if "s3" in store_kinds(settings):
        found |= {name: getattr(settings, name.lower()) for name in credentials.S3}
    if "gs" in store_kinds(settings):
        found["GOOGLE_CREDENTIALS"] = credentials.google_key(settings.google_credentials)
    if credentials.kind(settings.store) not in ("", "file"):
        for where in packs.entries("store_secrets").values():
            found |= packs.load(where)(settings)
    found |= {name: value for name, value in of_job(settings).items() if is_secret(name)}
    return {name: value for name, value in found.items() if value}


def secrets_for(names: Iterable[str], settings: Settings, environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the secrets of a job from an earlier start.

    The result has the secrets of the current settings, plus the variables in `names` from the environment of this
    process.
    """
    return {**{name: environ[name] for name in names if environ.get(name)}, **secrets(settings)}


def of_job(settings: Settings) -> dict[str, str]:
    """Return the job's own variables of `--env`: all variables except settings."""
    ours = variables()
    return {name: value for name, value in settings.given.items() if name not in ours}


def of_own_job(settings: Settings) -> dict[str, str]:
    """Return the variables of `--env` for a user's own job, for which settings such as TOKENS are ordinary variables.

    A typed key such as `--env WANDB_API_KEY` is included. Vendor account keys and SLIPWAY_ variables are excluded;
    account keys never go to a pod.
    """
    return {
        name: value
        for name, value in settings.given.items()
        if name not in ACCOUNTS and not name.startswith("SLIPWAY_")
    }


def plain(settings: Settings) -> dict[str, str]:
    """Return the job's variables without secret names."""
    return {name: value for name, value in of_job(settings).items() if not is_secret(name)}
