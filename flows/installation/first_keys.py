"""Checks of a vendor key or a store address of a new user, by asking the vendor or the store; called by `inv init`.

Each check returns the finding as text without the key. The checks store no key and rent no machine.
"""

import contextlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path
from typing import Any

from flows.installation import env_file
from infra.errors import AuthError, SlipwayError, UsageError
from infra.providers.by_name import open_market
from infra.settings import VENDORS, Settings
from infra.units import in_usd
from store import credentials
from store.artifacts.artifacts import Store
from store.manifest import StoreError
from store.masking import Mask

NAMES = {"runpod": "RunPod", "lium": "Lium", "shadeform": "Shadeform"}
STORE_KEYS = {"hf": ("HF_TOKEN",), "s3": ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"), "gs": ("GOOGLE_CREDENTIALS",)}

OWN_TOOLS = {"runpod": ("~/.runpod/config.toml", "~/.runpod.yaml")}  # Files of runpodctl, current and former.
KEY_LINE = re.compile(r"""(?im)^\s*api_?key\s*[=:]\s*["']?([^"'\s#]+)""")


class Verdict(Enum):
    """The outcomes of a check."""

    GOOD = "good"
    REFUSED = "refused"
    UNKNOWN = "unknown"
    """No answer: no network, or a server error."""


@dataclass(frozen=True)
class KeyCheck:
    """The finding of a check."""

    verdict: Verdict
    message: str


def saved(name: str) -> tuple[str, str]:
    """Return the key stored by a vendor's own tool in the home folder, and the file; ("", "") without a key.

    The key is never used without consent: with a key, commands may rent.
    """
    for file in OWN_TOOLS.get(name, ()):
        with contextlib.suppress(OSError, UnicodeDecodeError):  # The user can type a key instead.
            found = KEY_LINE.search(Path(file).expanduser().read_text(encoding="utf-8"))
            if found:
                return found[1], file
    return "", ""


def ask_vendor(name: str, key: str, settings: Settings) -> KeyCheck:
    """Ask a vendor for the owner of the key, without renting or changing anything."""
    variable = VENDORS[name]
    try:
        env_file.check(variable.upper(), key)
        changed: dict[str, Any] = {variable: key}
        mine = open_market(name, replace(settings, **changed)).account()
    except (AuthError, UsageError) as error:
        return KeyCheck(Verdict.REFUSED, _without([key], str(error)))
    except SlipwayError as error:
        return KeyCheck(Verdict.UNKNOWN, _without([key], str(error)))
    left = "" if mine.balance_micro_usd is None else f", a balance of {in_usd(mine.balance_micro_usd)}"
    return KeyCheck(Verdict.GOOD, _without([key], f"{mine.display_owner}{left}"))


def ask_store(uri: str, keys: Mapping[str, str]) -> KeyCheck:
    """Test with these keys if a store is writable; delete the test data afterwards."""
    credentials.set_credentials(keys)
    try:
        env_file.check("SLIPWAY_STORE", uri)
        Store(uri).check_writable()
    except (StoreError, SlipwayError) as error:
        return KeyCheck(Verdict.REFUSED, _without(keys.values(), " ".join(str(error).split())))
    return KeyCheck(Verdict.GOOD, "the store is writable")


def _without(keys: Iterable[str], text: str) -> str:
    """Return the text as a single printable line without any of the keys."""
    hidden = b"".join(Mask(keys)([text.encode("utf-8", "replace")])).decode(errors="replace")
    return " ".join("".join(letter if letter.isprintable() else " " for letter in hidden).split())
