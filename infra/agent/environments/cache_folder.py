"""The folder in which environments are kept. Standard library only, and a grammar that Python 3.9 reads."""

import os
from pathlib import Path
from typing import Mapping


def default_cache(environ: Mapping[str, str] = os.environ) -> Path:
    """Return the folder that all checkouts of this user share."""
    if environ.get("SLIPWAY_ENVIRONMENTS"):
        return Path(environ["SLIPWAY_ENVIRONMENTS"]).expanduser().absolute()
    return Path(environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "slipway" / "environments"
