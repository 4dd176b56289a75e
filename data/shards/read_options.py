"""Properties of a text request known before reading: options, file stamps, sizes, number of processes.

From a `TextSpec` and its `Inputs`, the functions return plain values. A run uses them to recognize an earlier run, to
estimate the remaining time and to choose the number of processes.
"""

import os
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from data import processors
from data.config import TextSpec
from data.text.inputs import STDIN, Inputs

MOST_WORKERS = 16


def recorded_options(spec: TextSpec) -> dict[str, Any]:
    """Return the requested options, without newer options at default values, for manifests from older versions."""
    newer = {one.name for one in fields(spec) if one.metadata.get("newer") and getattr(spec, one.name) == one.default}
    return {name: value for name, value in asdict(spec).items() if name not in newer}


def weights(inputs: Inputs) -> list[float]:
    """Return the weight of each file for progress estimates: the size in bytes, or 1 if unknown."""
    paths = [Path(one.uri) for one in inputs.files]
    are_here = all(path.is_file() for path in paths)
    return [float(path.stat().st_size) if are_here else 1.0 for path in paths]


def stamps(inputs: Inputs) -> list[Any]:
    """Return path and modification time of each local file, to detect changes."""
    paths = [Path(one.uri) for one in inputs.files if "://" not in one.uri]
    return [[str(path), path.stat().st_mtime_ns] for path in paths if path.exists()]


def workers_for(spec: TextSpec, inputs: Inputs, asked: int) -> int:
    """Return the number of reading processes: `asked`, or a useful number for the source."""
    first = inputs.files[0].uri
    if first in STDIN or first == "pydocs" or any(one.code for one in inputs.files):
        return 1
    if not hasattr(os, "memfd_create"):  # macOS: the ring of a worker is a memfd
        return 1
    if all(one.stream for one in inputs.files):  # a process reads whole streams
        return min(asked or processors.count_usable(), len(inputs.files), MOST_WORKERS)
    if asked:
        return asked
    local = "://" not in first
    if local and sum(os.path.getsize(one.uri) for one in inputs.files if "://" not in one.uri) < 4 << 20:
        return 1  # starting a second process would take longer
    return min(MOST_WORKERS, processors.count_usable())
