"""The request and what is known of its source before anything is read: options, stamps, sizes, processes.

In: a `TextSpec` and its `Inputs`. Out: plain values, by which a run knows its earlier self, estimates what is left, and
chooses how many processes read.
"""

import os
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from data.config import TextSpec
from data.text.inputs import STDIN, Inputs

MOST_WORKERS = 16


def options_of(spec: TextSpec) -> dict[str, Any]:
    """Return the requested options; newer options at their defaults are left out, as nobody named them before."""
    newer = {one.name for one in fields(spec) if one.metadata.get("newer") and getattr(spec, one.name) == one.default}
    return {name: value for name, value in asdict(spec).items() if name not in newer}


def weights(inputs: Inputs) -> list[float]:
    """Return the weight of each file, for an estimate of what is left: its bytes, or 1 where they are unknown."""
    paths = [Path(one.uri) for one in inputs.files]
    are_here = all(path.is_file() for path in paths)
    return [float(path.stat().st_size) if are_here else 1.0 for path in paths]


def stamps(inputs: Inputs) -> list[Any]:
    """Return stamps that change when somebody writes into a local file."""
    paths = [Path(one.uri) for one in inputs.files if "://" not in one.uri]
    return [[str(path), path.stat().st_mtime_ns] for path in paths if path.exists()]


def workers_for(spec: TextSpec, inputs: Inputs, asked: int) -> int:
    """Return how many processes read: `asked`, or as many as are of use."""
    first = inputs.files[0].uri
    if first in STDIN or first == "pydocs" or any(one.code for one in inputs.files):
        return 1
    if all(one.stream for one in inputs.files):  # a process reads whole ones
        return min(asked or len(os.sched_getaffinity(0)), len(inputs.files), MOST_WORKERS)
    if asked:
        return asked
    local = "://" not in first
    if local and sum(os.path.getsize(one.uri) for one in inputs.files if "://" not in one.uri) < 4 << 20:
        return 1  # a second process would take longer to start
    return min(MOST_WORKERS, len(os.sched_getaffinity(0)))
