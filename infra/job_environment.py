"""The environment of the steps of a job: secrets by name, and where they track their metrics."""

from infra.settings import Settings
from store import credentials


def asked_at(settings: Settings) -> set[str]:
    """Return the kinds of stores that a step speaks to: what it writes to, and where its text lies."""
    return {credentials.kind(settings.store), credentials.kind(settings.source)}


def secrets(settings: Settings) -> dict[str, str]:
    """Return the secrets that a step may need, by variable; account-wide vendor keys never go to a pod."""
    found = {"HUGGINGFACEHUB_API_TOKEN": settings.huggingfacehub_api_token, "HF_TOKEN": settings.hf_token,
             "WANDB_API_KEY": settings.wandb_api_key}  # fmt: skip
    if "s3" in asked_at(settings):
        found |= {name: getattr(settings, name.lower()) for name in credentials.S3}
    return {name: value for name, value in found.items() if value}


def tracking(settings: Settings) -> dict[str, str]:
    """Return the project of W&B that a step logs its metrics to, and how."""
    found = {"WANDB_PROJECT": settings.wandb_project, "WANDB_MODE": settings.wandb_mode}
    return {name: value for name, value in found.items() if value}
