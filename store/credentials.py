"""The credentials of stores: values from the settings, else from the environment.

The code that loads settings calls `set_credentials`; the stores call `value_of`. No value is written to disk or passed
on.
"""

import contextlib
import os
from collections.abc import Mapping
from pathlib import Path

from store.masking import Mask

HUB = ("HUGGINGFACEHUB_API_TOKEN", "HF_TOKEN")
S3 = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")
GS = ("GOOGLE_CREDENTIALS",)
PLACES = {  # non-secret endpoints and regions by URI scheme, which a pod needs as well
    "hf": ("HF_ENDPOINT",),
    "s3": ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_REGION", "AWS_DEFAULT_REGION"),
    "gs": ("STORAGE_EMULATOR_HOST",),
}
KEYS = {"hf": HUB, "s3": S3, "gs": GS}
EVERY = (*HUB, *S3, *GS)
_lent: dict[str, str] = {}


def set_credentials(values: Mapping[str, str]) -> None:
    """Set credentials for this process; they override the environment."""
    _lent.update({name: value for name, value in values.items() if value})


def value_of(name: str) -> str:
    return _lent.get(name) or os.environ.get(name, "")


def google_key(said: str) -> str:
    """Return the key file content from `said` (content or path), else from GOOGLE_APPLICATION_CREDENTIALS, else ""."""
    said = said or os.environ.get("GOOGLE_APPLICATION_CREDENTIALS", "")
    if not said or said.lstrip().startswith("{"):
        return said
    with contextlib.suppress(OSError, ValueError):  # `store.backends.gs` reports an invalid key file
        return Path(said).expanduser().read_text(encoding="utf-8")
    return ""


def kind(uri: str) -> str:
    """Return the scheme of a URI (`hf`, `s3`, ...), or "" for a folder."""
    return uri.partition("://")[0] if "://" in uri else ""


def masked(text: str) -> str:
    """Return `text` with every credential value masked by stars."""
    mask = Mask(value_of(name) for name in EVERY)
    return b"".join(mask([text.encode()])).decode()
