"""Checks of what a new user enters, a vendor's key or a store, at those who issued it. Nothing is kept or rented here.

In: a key, or the address of a store. Out: what was found out about it, in words without the key. `inv init` calls it.
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
from infra.money import in_usd
from infra.providers.by_name import open_market
from infra.settings import VENDORS, Settings
from store import credentials
from store.artifacts.artifacts import Store
from store.manifest import StoreError
from store.masking import Mask

NAMES = {"runpod": "RunPod", "lium": "Lium", "shadeform": "Shadeform"}
STORE_KEYS = {"hf": ("HF_TOKEN",), "s3": ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"),
              "gs": ("GOOGLE_CREDENTIALS",)}  # fmt: skip

OWN_TOOLS = {"runpod": ("~/.runpod/config.toml", "~/.runpod.yaml")}  # runpodctl's, of today and of before
KEY_LINE = re.compile(r"""(?im)^\s*api_?key\s*[=:]\s*["']?([^"'\s#]+)""")


class Verdict(Enum):
    """The outcomes of a check."""

    GOOD = "good"
    REFUSED = "refused"
    UNKNOWN = "unknown"
    """Nobody answered: no network, a server in trouble."""


@dataclass(frozen=True)
class Found:
    """The finding of a check."""

    verdict: Verdict
    said: str


def saved(name: str) -> tuple[str, str]:
    """Return the key that a vendor's own tool keeps in this home, and the file; "" and "" where there is none.

    It is not used by itself: with a key, commands may rent.
    """
    for file in OWN_TOOLS.get(name, ()):
        with contextlib.suppress(OSError, UnicodeDecodeError):  # a key can be typed instead
            found = KEY_LINE.search(Path(file).expanduser().read_text(encoding="utf-8"))
            if found:
                return found[1], file
    return "", ""


def ask_vendor(name: str, key: str, settings: Settings) -> Found:
    """Ask a vendor whose that key is. It rents nothing, and changes nothing there."""
    variable = VENDORS[name]
    try:
        env_file.check(variable.upper(), key)
        changed: dict[str, Any] = {variable: key}
        mine = open_market(name, replace(settings, **changed)).account()
    except (AuthError, UsageError) as error:
        return Found(Verdict.REFUSED, _without([key], str(error)))
    except SlipwayError as error:
        return Found(Verdict.UNKNOWN, _without([key], str(error)))
    left = "" if mine.balance_micro_usd is None else f", a balance of {in_usd(mine.balance_micro_usd)}"
    return Found(Verdict.GOOD, _without([key], f"{mine.whose}{left}"))


def ask_store(uri: str, keys: Mapping[str, str]) -> Found:
    """Find out whether a store can be written, with these keys; what is written for that is removed again."""
    credentials.lend(keys)
    try:
        env_file.check("SLIPWAY_STORE", uri)
        Store(uri).check_writable()
    except (StoreError, SlipwayError) as error:
        return Found(Verdict.REFUSED, _without(keys.values(), " ".join(str(error).split())))
    return Found(Verdict.GOOD, "it can be written")


def _without(keys: Iterable[str], text: str) -> str:
    """Return a text in one printable line in which no key stands, whatever another side has quoted."""
    hidden = b"".join(Mask(keys)([text.encode("utf-8", "replace")])).decode(errors="replace")
    return " ".join("".join(letter if letter.isprintable() else " " for letter in hidden).split())
