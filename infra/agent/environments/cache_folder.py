"""The cache folder of environments. Standard library only, and syntax that Python 3.9 accepts."""

import os
from pathlib import Path
from typing import Mapping


def default_cache(environ: Mapping[str, str] = os.environ) -> Path:
    """Return the cache folder of the current user, shared by all checkouts.

    `SLIPWAY_ENVIRONMENTS` overrides the default below `XDG_CACHE_HOME`.
    """
    if environ.get("SLIPWAY_ENVIRONMENTS"):
        return Path(environ["SLIPWAY_ENVIRONMENTS"]).expanduser().absolute()
    return Path(environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "slipway" / "environments"
