"""The flags of a machine in the words of a command line, from the resources of a job file."""

import shlex
from typing import Any

from packs.jobs.control.schema import Resources


def of(said: Resources) -> str:
    """Return the flags of `inv pod.create` for the resources; alternatives are left out."""
    kind = said.accelerators
    if isinstance(kind, dict):
        kind = ",".join(f"{name}:{number:g}" if number else name for name, number in kind.items())
    words: list[tuple[str, Any]] = [("gpu", kind[0] if isinstance(kind, list) and kind else kind)]
    words += [(name.replace("_", "-"), getattr(said, name)) for name in ("cpus", "memory", "disk_size")]
    cloud, _, region = (said.infra or "").partition("/")
    words += [("provider", cloud or said.cloud), ("region", region or said.region)]
    words += [("max-price", said.max_hourly_cost)]
    found = [f"--{name} {shlex.quote(str(value).rstrip('+'))}" for name, value in words if value]
    return " ".join(found + (["--use-spot"] if said.use_spot else []))
