"""The flags of a machine in the words of a command line, from the resources of a job file."""

import contextlib
import shlex
from typing import Any

from infra.errors import UsageError
from infra.providers.by_name import known_providers
from infra.units import amount
from packs.jobs.control.schema import Resources, alternatives
from store import packs


def of(said: Resources) -> str:
    """Return the flags of `inv pod.create` for the first alternative; "" without a kind of machine to rent."""
    said = next(alternatives(said))
    kind = said.accelerators
    if isinstance(kind, dict):
        kind = ",".join(f"{name}:{number:g}" if number else name for name, number in kind.items())
    kind = kind[0] if isinstance(kind, list) and kind else kind
    cloud, _, region = (said.infra or "").partition("/")
    cloud, region = (cloud or said.cloud or "").lower(), region or said.region or ""
    if not (kind or said.instance_type) or cloud not in (
        "",
        "*",
        *(one for one in known_providers() if one not in packs.engines()),
    ):
        return ""
    words: list[tuple[str, Any]] = [("gpu", kind), ("instance-type", said.instance_type)]
    for name in ("cpus", "memory", "disk_size"):
        with contextlib.suppress(UsageError):
            value = getattr(said, name)
            words.append((name.replace("_", "-"), amount(value, name) if value is not None else None))
    words += [("provider", cloud.strip("*")), ("region", region.strip("*/")), ("max-price", said.max_hourly_cost)]
    found = [f"--{name} {shlex.quote(str(value))}" for name, value in words if value]
    return " ".join(found + (["--use-spot"] if said.use_spot else []))
